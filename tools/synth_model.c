/* synth_model.c: writes a complete random checkpoint of any supported config, for tests and benches.
 *
 * Values are those of host/model/random_weights.h: the number of shards changes none of them. With
 * quantization_config in the config linear layers are fp8 with fp32 block scales (powers of two with
 * --ue8m0), without it bf16. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/model/config.h"
#include "host/model/json.h"
#include "host/model/random_weights.h"

#define CHUNK ((uint64_t)1 << 20) // elements made at a time

struct synth {
    struct model_config config;
    struct random_model random;
    uint32_t shards;
    const char *out;
};

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("synth-model: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* ---- files ---- */

static FILE *create(const struct synth *s, const char *file)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", s->out, file);
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: %s", path, strerror(errno));
    return f;
}

static void finish(const struct synth *s, FILE *f, const char *file)
{
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) die("%s/%s: writing failed: %s", s->out, file, strerror(errno));
}

static void shard_name(const struct synth *s, uint32_t shard, char name[64])
{
    if (s->shards == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, s->shards);
}

static const char *dtype_name(enum random_kind k)
{
    return k == RANDOM_FP8 ? "F8_E4M3" : k == RANDOM_BF16 ? "BF16" : "F32";
}

static char *make_header(const struct synth *s, uint32_t shard, size_t *length)
{
    char *text;
    FILE *f = open_memstream(&text, length);
    if (!f) die("no memory for a header");
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    uint64_t at = 0;
    for (const struct random_tensor *t = s->random.tensors; t < s->random.tensors + s->random.count; t++) {
        if (t->file != shard) continue;
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64, t->name, dtype_name(t->kind),
                t->shape[0]);
        if (t->dims == 2) fprintf(f, ",%" PRIu64, t->shape[1]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    fputc('}', f);
    fflush(f);
    while (*length % 8) {
        fputc(' ', f);
        fflush(f);
    }
    fclose(f);
    return text;
}

static void write_shard(const struct synth *s, uint32_t shard, uint8_t *buffer)
{
    char file[64];
    shard_name(s, shard, file);
    FILE *f = create(s, file);
    size_t length;
    char *header = make_header(s, shard, &length);
    const uint64_t n = length; // little-endian hosts only, like the rest of duckd
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, length, f);
    free(header);
    for (const struct random_tensor *t = s->random.tensors; t < s->random.tensors + s->random.count; t++) {
        if (t->file != shard) continue;
        for (uint64_t first = 0; first < t->count; first += CHUNK) {
            uint64_t part = t->count - first < CHUNK ? t->count - first : CHUNK;
            random_model_elements(&s->random, t, first, part, buffer);
            fwrite(buffer, t->bytes / t->count, part, f);
        }
    }
    finish(s, f, file);
}

static void write_index(const struct synth *s, uint64_t bytes)
{
    const char *file = "model.safetensors.index.json";
    FILE *f = create(s, file);
    fprintf(f, "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{", bytes);
    for (size_t i = 0; i < s->random.count; i++) {
        char shard[64];
        shard_name(s, s->random.tensors[i].file, shard);
        fprintf(f, "%s\n\"%s\":\"%s\"", i ? "," : "", s->random.tensors[i].name, shard);
    }
    fputs("}}\n", f);
    finish(s, f, file);
}

/* What an earlier run with another number of shards left would be opened instead of ours. */
static void remove_other_layout(const struct synth *s)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", s->out,
             s->shards == 1 ? "model.safetensors.index.json" : "model.safetensors");
    if (remove(path) != 0 && errno != ENOENT) die("%s: cannot remove: %s", path, strerror(errno));
}

static uint64_t assign_shards(struct synth *s)
{
    uint64_t total = 0, at = 0;
    for (size_t i = 0; i < s->random.count; i++) total += s->random.tensors[i].bytes;
    for (size_t i = 0; i < s->random.count; i++) {
        s->random.tensors[i].file = (uint32_t)((double)at / (double)total * s->shards);
        at += s->random.tensors[i].bytes;
    }
    return total;
}

static char *read_text(const char *path, size_t *length)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) die("%s: %s", path, strerror(errno));
    char *text = malloc((size_t)st.st_size + 1);
    if (!text) die("%s: no memory for %lld bytes", path, (long long)st.st_size);
    *length = fread(text, 1, (size_t)st.st_size, f);
    if (*length != (size_t)st.st_size)
        die("%s: %zu of %lld bytes read", path, *length, (long long)st.st_size);
    fclose(f);
    return text;
}

static void write_text(const struct synth *s, const char *file, const char *text, size_t length)
{
    FILE *f = create(s, file);
    fwrite(text, 1, length, f);
    finish(s, f, file);
}

static void copy_tokenizer(const struct synth *s, const char *from)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char path[4400];
        snprintf(path, sizeof path, "%s/%s", from, files[i]);
        size_t length;
        char *text = read_text(path, &length);
        write_text(s, files[i], text, length);
        free(text);
    }
}

static bool wants_fp8(const char *text, size_t length, const char *name)
{
    cJSON *root;
    struct error err;
    if (json_parse(&root, text, length, name, &err)) die("%s", err.text);
    bool fp8 = json_get(root, "quantization_config") != NULL;
    cJSON_Delete(root);
    return fp8;
}

static uint64_t number(const char *option, const char *text, uint64_t min, uint64_t max)
{
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || v < min || v > max)
        die("--%s %s: must be an integer %" PRIu64 " to %" PRIu64, option, text, min, max);
    return v;
}

static void generate(struct synth *s, const char *config, const char *tokenizer)
{
    size_t length;
    char *text = read_text(config, &length);
    struct error err;
    if (model_config_parse(&s->config, text, length, config, &err)) die("%s", err.text);
    s->random.config = &s->config;
    s->random.fp8 = wants_fp8(text, length, config);
    if (mkdir(s->out, 0777) != 0 && errno != EEXIST) die("%s: %s", s->out, strerror(errno));
    write_text(s, "config.json", text, length);
    free(text);
    if (tokenizer) copy_tokenizer(s, tokenizer);
    if (random_model_list(&s->random)) die("no memory for the list of tensors");
    uint64_t bytes = assign_shards(s);
    uint8_t *buffer = malloc(4 * CHUNK);
    if (!buffer) die("no memory for %" PRIu64 " bytes", 4 * CHUNK);
    for (uint32_t i = 0; i < s->shards; i++) write_shard(s, i, buffer);
    if (s->shards > 1) write_index(s, bytes);
    remove_other_layout(s);
    free(buffer);
    random_model_free(&s->random);
    fprintf(stderr, "synth-model: %s: %zu tensors, %.1f MB, %u file%s\n", s->out, s->random.count,
            (double)bytes / 1e6, s->shards, s->shards == 1 ? "" : "s");
}

static const char help[] =
    "usage: synth-model --config CONFIG.json --out DIR [options]\n"
    "Writes a complete random checkpoint of a model's shape: the same bytes for the same seed.\n"
    "  --config F       the shape, a config.json\n"
    "  --out DIR        where to, made if it is missing\n"
    "  --seed N         of the random values (1)\n"
    "  --shards K       files to cut it into (1)\n"
    "  --ue8m0          scales are powers of two\n"
    "  --tokenizer DIR  copies the tokenizer of that checkpoint\n"
    "  --help\n";

static int wrong(const char *what, const char *argument)
{
    fprintf(stderr, "synth-model: %s%s (try: synth-model --help)\n", what, argument);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'},
        {"config", required_argument, NULL, 'c'},
        {"out", required_argument, NULL, 'o'},
        {"seed", required_argument, NULL, 's'},
        {"shards", required_argument, NULL, 'k'},
        {"ue8m0", no_argument, NULL, 'u'},
        {"tokenizer", required_argument, NULL, 't'},
        {NULL, 0, NULL, 0},
    };
    struct synth s = {.random = {.seed = 1}, .shards = 1};
    const char *config = NULL, *tokenizer = NULL;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (o == 'c')
            config = optarg;
        else if (o == 'o')
            s.out = optarg;
        else if (o == 's')
            s.random.seed = number("seed", optarg, 0, UINT64_MAX);
        else if (o == 'k')
            s.shards = (uint32_t)number("shards", optarg, 1, 1000);
        else if (o == 'u')
            s.random.ue8m0 = true;
        else if (o == 't')
            tokenizer = optarg;
        else
            return 2; // getopt has said it
    }
    if (optind != argc) return wrong("there is no use for ", argv[optind]);
    if (!config) return wrong("--config CONFIG.json is missing", "");
    if (!s.out) return wrong("--out DIR is missing", "");
    generate(&s, config, tokenizer);
    return 0;
}
