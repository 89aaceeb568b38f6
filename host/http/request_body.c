/* request_body.c: see request_body.h. */
#include "host/http/request_body.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "host/model/json.h"
#include "host/text/json_numbers.h"
#include "host/util/json_depth.h"

#define MAX_STOPS 16

/* The code unit of the escape \uXXXX at `text`, -1: there is none. */
static long escaped_unit(const char *text, size_t length)
{
    char digits[5] = "";
    if (length < 6 || text[0] != '\\' || text[1] != 'u') return -1;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

/* Halves of a character, which JavaScript writes where a text was cut in the middle of one, become U+FFFD.
 * False: a string holds an escaped NUL. */
static bool mend_escapes(char *text, size_t length)
{
    for (size_t i = 0; i + 1 < length; i++) {
        if (text[i] != '\\') continue;
        long unit = escaped_unit(text + i, length - i);
        if (unit == 0) return false;
        if (unit >= 0xD800 && unit < 0xE000) {
            long next = escaped_unit(text + i + 6, length - i - 6);
            if (unit < 0xDC00 && next >= 0xDC00 && next < 0xE000)
                i += 6;
            else
                memcpy(text + i + 2, "fffd", 4);
        }
        i++; // the escaped character
    }
    return true;
}

int body_parse(const struct request *r, cJSON **out, struct api_problem *p)
{
    char *text = r->body.data;
    size_t length = r->body.length;
    *out = NULL;
    if (length == 0) return api_problem_set(p, 400, "invalid_json", NULL, "the request has no body");
    if (memchr(text, 0, length) || !mend_escapes(text, length))
        return api_problem_set(p, 400, "invalid_json", NULL, "the body holds a NUL character");
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    if (!root) {
        size_t at = end ? (size_t)(end - text) : 0;
        if (json_stopped_too_deep(text, end, CJSON_NESTING_LIMIT))
            return api_problem_set(p, 400, "invalid_json", NULL,
                                   "the body is nested deeper than %d at byte %zu", CJSON_NESTING_LIMIT, at);
        return api_problem_set(p, 400, "invalid_json", NULL, "the body is no JSON: error at byte %zu of %zu",
                               at, length);
    }
    end += strspn(end, " \t\r\n"); // the buffer ends with a NUL
    if (end < text + length || !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return api_problem_set(p, 400, "invalid_json", NULL, "the body is not one JSON object");
    }
    if (cJSON_GetObjectItemCaseSensitive(root, "tools") && !json_keep_numbers(root, text)) { // for the prompt
        cJSON_Delete(root);
        return api_problem_set(p, 500, NULL, NULL, "out of memory");
    }
    *out = root;
    return 0;
}

/* The member, or NULL when it is absent or null. */
static const cJSON *get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static int wrong(struct api_problem *p, const char *key, const char *what, const cJSON *item)
{
    if (!item) return api_problem_set(p, 400, "invalid_value", key, "%s is missing: %s", key, what);
    return api_problem_set(p, 400, "invalid_value", key, "%s must be %s, not %s", key, what,
                           json_show(item).s);
}

/* Leaves *out alone when the key is absent. */
static int read_number(const cJSON *body, const char *key, double low, double high, bool whole, double *out,
                       struct api_problem *p)
{
    const cJSON *item = get(body, key);
    if (!item) return 0;
    double x = item->valuedouble;
    if (!cJSON_IsNumber(item) || !isfinite(x) || x < low || x > high || (whole && x != floor(x)))
        return api_problem_set(p, 400, "invalid_value", key,
                               "%s must be a %snumber from %.10g to %.10g, not %s", key,
                               whole ? "whole " : "", low, high, json_show(item).s);
    *out = x;
    return 0;
}

static int read_float(const cJSON *body, const char *key, double low, double high, float *out,
                      struct api_problem *p)
{
    double x = (double)*out;
    int rc = read_number(body, key, low, high, false, &x, p);
    *out = (float)x;
    return rc;
}

static int read_bool(const cJSON *body, const char *key, bool *out, struct api_problem *p)
{
    const cJSON *item = get(body, key);
    if (!item) return 0;
    if (!cJSON_IsBool(item)) return wrong(p, key, "true or false", item);
    *out = cJSON_IsTrue(item);
    return 0;
}

/* ---- sampling ---- */

static int read_seed(const cJSON *body, uint64_t *seed, struct api_problem *p)
{
    double x = 0;
    if (!get(body, "seed")) {
        if (getrandom(seed, sizeof *seed, 0) != sizeof *seed)
            return api_problem_set(p, 500, NULL, NULL, "no random seed to be had: %s", strerror(errno));
        return 0;
    }
    // Clients draw 64 bits. A double holds 53 of them: what is rounded is rounded alike the next time.
    int rc = read_number(body, "seed", -0x1p63, 0x1p64, true, &x, p);
    *seed = x < 0 ? (uint64_t)(int64_t)x : x < 0x1p64 ? (uint64_t)x : UINT64_MAX;
    return rc;
}

static int read_bias(const cJSON *body, uint32_t vocab, struct job *j, struct api_problem *p)
{
    const cJSON *bias = get(body, "logit_bias"), *item;
    if (!bias) return 0;
    if (!cJSON_IsObject(bias)) return wrong(p, "logit_bias", "an object of token ids and numbers", bias);
    int count = cJSON_GetArraySize(bias);
    if (count == 0) return 0;
    j->bias = calloc((size_t)count, sizeof *j->bias);
    if (!j->bias) return api_problem_set(p, 500, NULL, NULL, "out of memory");
    size_t n = 0;
    cJSON_ArrayForEach(item, bias)
    {
        char *end;
        long id = strtol(item->string, &end, 10);
        if (*end || end == item->string || id < 0 || id >= (long)vocab)
            return api_problem_set(p, 400, "invalid_value", "logit_bias",
                                   "logit_bias names token '%.20s'; ids are 0 to %u", item->string,
                                   vocab - 1);
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 100))
            return api_problem_set(p, 400, "invalid_value", "logit_bias",
                                   "logit_bias of token %ld must be a number from -100 to 100, not %s", id,
                                   json_show(item).s);
        j->bias[n++] = (struct logit_bias){(int32_t)id, (float)item->valuedouble};
    }
    j->sampling.bias = j->bias;
    j->sampling.bias_count = n;
    return 0;
}

static int read_sampling(const struct http_options *o, const cJSON *body, struct job *j,
                         struct api_problem *p)
{
    struct sampling *s = &j->sampling;
    double top_k;
    *s = o->sampling;
    top_k = s->top_k;
    int rc = read_float(body, "temperature", 0, 100, &s->temperature, p);
    if (!rc) rc = read_float(body, "top_p", 0, 1, &s->top_p, p);
    if (!rc) rc = read_float(body, "min_p", 0, 1, &s->min_p, p);
    if (!rc) rc = read_number(body, "top_k", -1, 1e9, true, &top_k, p);
    if (!rc) rc = read_float(body, "frequency_penalty", -2, 2, &s->frequency_penalty, p);
    if (!rc) rc = read_float(body, "presence_penalty", -2, 2, &s->presence_penalty, p);
    if (!rc) rc = read_float(body, "repetition_penalty", 0.01, 100, &s->repetition_penalty, p);
    if (!rc) rc = read_seed(body, &s->seed, p);
    if (!rc) rc = read_bias(body, o->config->vocab_size, j, p);
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k; // -1 is how others say "off"
    struct error err;
    if (!rc && sampling_check(s, o->config->vocab_size, &err))
        rc = api_problem_set(p, 400, "invalid_value", NULL, "%s", err.text);
    return rc;
}

/* ---- what ends an answer ---- */

static int read_stop(const cJSON *body, struct job *j, struct api_problem *p)
{
    const cJSON *stop = get(body, "stop"), *item;
    const char *text[MAX_STOPS];
    size_t count = 0;
    if (cJSON_IsString(stop)) {
        text[count++] = stop->valuestring;
    } else if (cJSON_IsArray(stop)) {
        cJSON_ArrayForEach(item, stop)
        {
            if (!cJSON_IsString(item)) return wrong(p, "stop", "a string or an array of strings", item);
            if (count == MAX_STOPS)
                return api_problem_set(p, 400, "invalid_value", "stop", "stop has more than %d strings",
                                       MAX_STOPS);
            text[count++] = item->valuestring;
        }
    } else if (stop) {
        return wrong(p, "stop", "a string or an array of strings", stop);
    }
    for (size_t i = 0; i < count; i++)
        if (!*text[i]) return api_problem_set(p, 400, "invalid_value", "stop", "a stop string is empty");
    struct error err;
    if (stop_strings_open(&j->stop, text, count, &err))
        return api_problem_set(p, 500, NULL, NULL, "%s", err.text);
    return 0;
}

static int read_length(const cJSON *body, struct job *j, struct api_problem *p)
{
    double n = 0;
    const char *key = get(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    const cJSON *item = get(body, key);
    if (cJSON_IsNumber(item) && item->valuedouble == -1) return 0; // how some say "no limit"
    int rc = read_number(body, key, 1, 1e9, true, &n, p);
    j->max_tokens = (uint32_t)n;
    return rc;
}

static int read_logprobs(const cJSON *body, bool chat, struct job *j, struct api_problem *p)
{
    double top = 0;
    int rc;
    if (chat) {
        rc = read_bool(body, "logprobs", &j->logprobs, p);
        if (!rc) rc = read_number(body, "top_logprobs", 0, JOB_MAX_TOP_LOGPROBS, true, &top, p);
        if (!rc && top > 0 && !j->logprobs)
            rc =
                api_problem_set(p, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
    } else {
        const cJSON *item = get(body, "logprobs");
        j->logprobs = cJSON_IsNumber(item) || cJSON_IsTrue(item);
        rc = cJSON_IsBool(item) ? 0 : read_number(body, "logprobs", 0, JOB_MAX_TOP_LOGPROBS, true, &top, p);
    }
    j->top_logprobs = (uint32_t)top;
    return rc;
}

/* What would change the answer but is not done here. */
static int check_undone(const cJSON *body, struct api_problem *p)
{
    double n = 1;
    int rc = read_number(body, "n", 1, 1, true, &n, p);
    if (rc) return api_problem_set(p, 400, "unsupported_value", "n", "n can only be 1");
    rc = read_number(body, "best_of", 1, 1, true, &n, p);
    if (rc) return api_problem_set(p, 400, "unsupported_value", "best_of", "best_of can only be 1");
    const cJSON *format = get(body, "response_format"), *type = format ? get(format, "type") : NULL;
    if (format && !(cJSON_IsString(type) && strcmp(type->valuestring, "text") == 0))
        return api_problem_set(p, 400, "unsupported_value", "response_format",
                               "response_format can only be of type text");
    const cJSON *functions = get(body, "functions"), *call = get(body, "function_call");
    if ((functions && !(cJSON_IsArray(functions) && !functions->child)) || cJSON_IsObject(call))
        return api_problem_set(p, 400, "unsupported_value", "functions",
                               "functions are called as tools here");
    const cJSON *suffix = get(body, "suffix");
    if (suffix && !(cJSON_IsString(suffix) && !*suffix->valuestring))
        return api_problem_set(p, 400, "unsupported_value", "suffix", "suffix is not supported");
    if (cJSON_IsTrue(get(body, "echo")))
        return api_problem_set(p, 400, "unsupported_value", "echo", "echo is not supported");
    return 0;
}

static int read_stream(const cJSON *body, struct completion_request *q, struct api_problem *p)
{
    const cJSON *options = get(body, "stream_options");
    int rc = read_bool(body, "stream", &q->stream, p);
    if (!rc && options && !cJSON_IsObject(options)) rc = wrong(p, "stream_options", "an object", options);
    if (!rc && options) rc = read_bool(options, "include_usage", &q->include_usage, p);
    return rc;
}

/* ---- thinking ---- */

/* A forced call leaves no room for thoughts: a wish for them is dropped, an order refused. */
static int read_thinking(const struct http_options *o, const cJSON *body, bool forced, bool *thinking,
                         struct api_problem *p)
{
    const cJSON *effort = get(body, "reasoning_effort"), *kwargs = get(body, "chat_template_kwargs");
    const cJSON *block = get(body, "thinking"), *type = block ? get(block, "type") : NULL;
    bool can = o->chat->think >= 0, wanted = false;
    if (effort && !cJSON_IsString(effort)) return wrong(p, "reasoning_effort", "a string", effort);
    // An effort is a wish: a model without thoughts answers at once.
    *thinking = can && !forced && effort && strcmp(effort->valuestring, "none") != 0;
    if (block && !cJSON_IsString(type)) return wrong(p, "thinking", "an object with a type", block);
    if (type) *thinking = wanted = !strcmp(type->valuestring, "enabled");
    if (kwargs && !cJSON_IsObject(kwargs)) return wrong(p, "chat_template_kwargs", "an object", kwargs);
    static const char *const names[] = {"thinking", "enable_thinking"};
    for (size_t i = 0; kwargs && i < 2; i++) {
        const cJSON *item = get(kwargs, names[i]);
        if (item && !cJSON_IsBool(item))
            return api_problem_set(p, 400, "invalid_value", "chat_template_kwargs",
                                   "%s in chat_template_kwargs must be true or false, not %s", names[i],
                                   json_show(item).s);
        if (item) *thinking = wanted = cJSON_IsTrue(item);
    }
    if (wanted && !can)
        return api_problem_set(p, 400, "unsupported_value", "chat_template_kwargs",
                               "this model cannot think");
    if (wanted && forced)
        return api_problem_set(p, 400, "unsupported_value", "tool_choice",
                               "a forced call leaves no room for thoughts: tool_choice auto does");
    return 0;
}

/* ---- prompts ---- */

static int read_ids(const cJSON *array, uint32_t vocab, struct ids *out, struct api_problem *p)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        double x = item->valuedouble;
        if (!cJSON_IsNumber(item) || x != floor(x) || x < 0 || x >= vocab)
            return api_problem_set(p, 400, "invalid_value", "prompt",
                                   "a token id is a whole number below %u, not %s", vocab, json_show(item).s);
        if (ids_push(out, (int32_t)x)) return api_problem_set(p, 500, NULL, NULL, "out of memory");
    }
    return 0;
}

/* A string, an array of ids, or an array with one of these. */
static int read_prompt(const struct http_options *o, const cJSON *body, struct ids *out,
                       struct api_problem *p)
{
    const cJSON *prompt = get(body, "prompt");
    struct error err;
    if (cJSON_IsArray(prompt) && cJSON_GetArraySize(prompt) >= 1 && !cJSON_IsNumber(prompt->child)) {
        if (prompt->child->next)
            return api_problem_set(p, 400, "unsupported_value", "prompt", "only one prompt per request");
        prompt = prompt->child;
    }
    if (cJSON_IsArray(prompt) && prompt->child) return read_ids(prompt, o->config->vocab_size, out, p);
    if (!cJSON_IsString(prompt)) return wrong(p, "prompt", "a string or an array of token ids", prompt);
    if (o->config->bos_id >= 0 && ids_push(out, o->config->bos_id))
        return api_problem_set(p, 500, NULL, NULL, "out of memory");
    if (tokenizer_encode(o->tokenizer, prompt->valuestring, strlen(prompt->valuestring), false, out, &err))
        return api_problem_set(p, 500, NULL, NULL, "%s", err.text);
    if (out->count == 0) return api_problem_set(p, 400, "invalid_value", "prompt", "prompt has no tokens");
    return 0;
}

static int check_length(const struct http_options *o, const struct job *j, bool chat, struct api_problem *p)
{
    uint32_t room = o->config->max_positions;
    if (j->prompt.count < room) return 0;
    return api_problem_set(
        p, 400, "context_length_exceeded", chat ? "messages" : "prompt",
        "this model's maximum context length is %u tokens; the %s %zu tokens and %s no room "
        "for an answer",
        room, chat ? "messages have" : "prompt has", j->prompt.count, chat ? "leave" : "leaves");
}

static int read_chat(const struct http_options *o, const cJSON *body, const struct completion_request *q,
                     struct job *j, struct api_problem *p)
{
    struct chat_request chat = {0};
    int rc = tools_read(body, &chat, p);
    if (!rc) rc = read_thinking(o, body, chat.choice != CHAT_CHOICE_AUTO, &chat.thinking, p);
    if (!rc) rc = messages_encode(o, body, &chat, &j->prompt, p);
    if (!rc) rc = tools_begin(o, body, &chat, q->stream, j, p);
    j->thinking = chat.thinking;
    return rc;
}

int completion_read(const struct http_options *o, const cJSON *body, struct completion_request *q,
                    struct api_problem *p)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) return api_problem_set(p, 500, NULL, NULL, "out of memory");
    j->plain = !q->chat;
    int rc = check_undone(body, p);
    if (!rc) rc = read_stream(body, q, p);
    if (!rc) rc = read_length(body, j, p);
    if (!rc) rc = read_sampling(o, body, j, p);
    if (!rc) rc = read_stop(body, j, p);
    if (!rc) rc = read_logprobs(body, q->chat, j, p);
    if (!rc) rc = q->chat ? read_chat(o, body, q, j, p) : read_prompt(o, body, &j->prompt, p);
    if (!rc) rc = check_length(o, j, q->chat, p);
    if (rc) {
        job_free(j);
        return rc;
    }
    q->job = j;
    return 0;
}
