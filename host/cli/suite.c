/* suite.c: reads a suite and makes token ids of its prompts. */
#include "host/cli/suite.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/answer.h"
#include "host/cli/input.h"
#include "host/cli/prompt.h"

static const char *const suite_keys[] = {"name", "about", "n", "cases", NULL};
static const char *const case_keys[] = {
    "name",          "about",  "prompt", "prompt_file", "tokens",     "n", "repeat",
    "repeat_tokens", "system", "think",  "raw",         "ignore_eos", NULL};

static int check_keys(const cJSON *object, const char *const *known, struct error *err)
{
    const cJSON *item;
    if (!cJSON_IsObject(object)) return error_set(err, -EINVAL, "is not a JSON object");
    cJSON_ArrayForEach(item, object)
    {
        size_t k = 0;
        while (known[k] && strcmp(known[k], item->string) != 0) k++;
        if (!known[k]) return error_set(err, -EINVAL, "unknown key '%.60s'", item->string);
    }
    return 0;
}

/* Optional members of the right type. */
static int get_text(const cJSON *object, const char *key, const char **out, struct error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = cJSON_GetStringValue(item);
    if (item && !*out) return error_set(err, -EINVAL, "%s is not a string", key);
    return 0;
}

static int get_flag(const cJSON *object, const char *key, bool *out, struct error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = cJSON_IsTrue(item);
    if (item && !cJSON_IsBool(item)) return error_set(err, -EINVAL, "%s is not true or false", key);
    return 0;
}

static int get_count(const cJSON *object, const char *key, uint32_t *out, struct error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item) return 0; // keeps its default
    double x = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (x < 1 || x > 1e9 || x != floor(x)) {
        return error_set(err, -EINVAL, "%s is not a whole number from 1 to 1000000000", key);
    }
    *out = (uint32_t)x;
    return 0;
}

struct prompt_source {
    const char *prompt, *file, *repeat, *system;
    uint32_t repeat_tokens;
    bool think, raw;
};

static int encode_repeated(const struct session *s, const struct prompt_source *p, uint32_t times,
                           struct ids *out, struct error *err)
{
    struct text_buffer text = {0};
    const char *last = p->prompt ? p->prompt : "";
    struct prompt_form form = {.system = p->system, .think = p->think, .raw = p->raw};
    int rc = 0;
    for (uint32_t i = 0; !rc && i < times; i++) rc = text_append(&text, p->repeat, strlen(p->repeat));
    if (!rc) rc = text_append(&text, last, strlen(last));
    if (rc) error_set(err, rc, "out of memory");
    out->count = 0;
    if (!rc) rc = prompt_encode(s, &form, text.text, text.length, out, err);
    text_free(&text);
    return rc;
}

/* As many repetitions as come closest below the wanted length; tokens may join across the seams, so the
 * number is found from two trials and not by division. */
static int encode_repeat(const struct session *s, const struct prompt_source *p, struct ids *out,
                         struct error *err)
{
    int rc = encode_repeated(s, p, 1, out, err);
    size_t one = out->count;
    if (!rc) rc = encode_repeated(s, p, 9, out, err);
    if (rc) return rc;
    double each = (double)(out->count - one) / 8;
    if (each <= 0 || p->repeat_tokens < one) {
        return error_set(err, -EINVAL, "repeat_tokens is %u, one repetition already makes %zu",
                         p->repeat_tokens, one);
    }
    return encode_repeated(s, p, 1 + (uint32_t)((double)(p->repeat_tokens - one) / each), out, err);
}

static int encode_file(const struct session *s, const struct prompt_source *p, const char *suite_path,
                       struct ids *out, struct error *err)
{
    char path[8192];
    const char *slash = strrchr(suite_path, '/');
    int folder = slash && p->file[0] != '/' ? (int)(slash + 1 - suite_path) : 0;
    snprintf(path, sizeof path, "%.*s%s", folder, suite_path, p->file);
    char *text = NULL;
    size_t length;
    struct prompt_form form = {.system = p->system, .think = p->think, .raw = p->raw};
    int rc = input_text(path, &text, &length, err);
    if (!rc) rc = prompt_encode(s, &form, text, length, out, err);
    free(text);
    return rc;
}

static int read_prompt(struct suite_case *c, const cJSON *json, const struct prompt_source *p,
                       const char *path, const struct session *s, struct error *err)
{
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(json, "tokens");
    int sources = (p->repeat != NULL) + (p->file != NULL) + (tokens != NULL) + (p->prompt && !p->repeat);
    if (sources != 1) {
        return error_set(err, -EINVAL,
                         "has %d prompts, it needs one of prompt, prompt_file, tokens and repeat", sources);
    }
    if (tokens) {
        int rc = input_ids_from(tokens, "tokens", &c->prompt, err);
        return rc ? rc : input_check_ids(&c->prompt, s->config.vocab_size, "tokens", err);
    }
    if (p->file) return encode_file(s, p, path, &c->prompt, err);
    if (!p->repeat) {
        struct prompt_form form = {.system = p->system, .think = p->think, .raw = p->raw};
        return prompt_encode(s, &form, p->prompt, strlen(p->prompt), &c->prompt, err);
    }
    if (!*p->repeat || !p->repeat_tokens) {
        return error_set(err, -EINVAL, "repeat needs a text and repeat_tokens");
    }
    return encode_repeat(s, p, &c->prompt, err);
}

static int read_case(struct suite_case *c, const cJSON *json, const char *path, const struct session *s,
                     struct error *err)
{
    struct prompt_source p = {0};
    int rc = get_text(json, "name", &c->name, err);
    if (!rc) rc = check_keys(json, case_keys, err);
    if (!rc && (!c->name || !*c->name || c->name[0] == '.' || strlen(c->name) > 60 ||
                strspn(c->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") !=
                    strlen(c->name))) {
        rc = error_set(err, -EINVAL, "needs a name of letters, digits, . _ - (it names files)");
    }
    if (!rc) rc = get_text(json, "about", &c->about, err);
    if (!rc) rc = get_text(json, "prompt", &p.prompt, err);
    if (!rc) rc = get_text(json, "prompt_file", &p.file, err);
    if (!rc) rc = get_text(json, "repeat", &p.repeat, err);
    if (!rc) rc = get_text(json, "system", &p.system, err);
    if (!rc) rc = get_count(json, "repeat_tokens", &p.repeat_tokens, err);
    if (!rc) rc = get_flag(json, "think", &p.think, err);
    if (!rc) rc = get_flag(json, "raw", &p.raw, err);
    if (!rc) rc = get_flag(json, "ignore_eos", &c->ignore_eos, err);
    if (!rc) rc = get_count(json, "n", &c->n, err);
    if (!rc) rc = read_prompt(c, json, &p, path, s, err);
    if (!rc) rc = session_check_length(s, c->prompt.count, "its prompt", err);
    return rc;
}

static int read_cases(struct suite *suite, const cJSON *cases, uint32_t n, const char *path,
                      const struct session *s, struct error *err)
{
    size_t count = cJSON_IsArray(cases) ? (size_t)cJSON_GetArraySize(cases) : 0;
    if (count == 0) return error_set(err, -EINVAL, "has no cases");
    suite->cases = calloc(count, sizeof *suite->cases);
    if (!suite->cases) return error_set(err, -ENOMEM, "out of memory");
    for (const cJSON *item = cases->child; item; item = item->next) {
        struct suite_case *c = &suite->cases[suite->count++];
        c->n = n;
        int rc = read_case(c, item, path, s, err);
        for (size_t k = 0; !rc && k + 1 < suite->count; k++) {
            if (!strcmp(suite->cases[k].name, c->name)) rc = error_set(err, -EINVAL, "its name is taken");
        }
        if (rc) {
            error_prefix(err, "case %zu (%s)", suite->count, c->name ? c->name : "without a name");
            return rc;
        }
    }
    return 0;
}

int suite_read(struct suite *out, const char *path, const struct session *s, struct error *err)
{
    uint32_t n = 0;
    *out = (struct suite){0};
    int rc = input_json(path, &out->json, err);
    if (rc) return rc;
    rc = check_keys(out->json, suite_keys, err);
    if (!rc) rc = get_text(out->json, "name", &out->name, err);
    if (!rc) rc = get_count(out->json, "n", &n, err);
    if (!rc) rc = read_cases(out, cJSON_GetObjectItemCaseSensitive(out->json, "cases"), n, path, s, err);
    if (rc) {
        error_prefix(err, "%s", path);
        suite_free(out);
    }
    return rc;
}

int suite_synthetic(struct suite *out, const struct session *s, uint32_t prompt, uint32_t n,
                    struct error *err)
{
    *out = (struct suite){.name = "synthetic"};
    int rc = session_check_length(s, (size_t)prompt + n, "prompt and answer", err);
    if (rc) return rc;
    out->cases = calloc(1, sizeof *out->cases);
    int32_t *ids = malloc(prompt * sizeof *ids);
    if (!out->cases || !ids) {
        free(ids);
        suite_free(out);
        return error_set(err, -ENOMEM, "out of memory");
    }
    uint64_t state = 1;
    for (uint32_t i = 0; i < prompt; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % s->config.vocab_size);
    }
    out->count = 1;
    out->cases[0] = (struct suite_case){.name = "synthetic",
                                        .about = "random weights, random ids",
                                        .prompt = {ids, prompt},
                                        .n = n,
                                        .ignore_eos = true};
    return 0;
}

void suite_free(struct suite *suite)
{
    for (size_t i = 0; i < suite->count; i++) ids_free(&suite->cases[i].prompt);
    free(suite->cases);
    cJSON_Delete(suite->json);
    *suite = (struct suite){0};
}
