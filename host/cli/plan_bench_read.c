/* plan_bench_read.c: a run's summary.json, as far as plan compares with it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/input.h"
#include "host/cli/plan_bench.h"
#include "host/flock/spec.h"
#include "host/model/json.h"

#define LEAST 1e-4   // what bench writes has four decimals
#define MOST_MS 1e10 // months
#define MOST_TOKENS 1e6

/* A number of the file. Ranges are of what machines and runs can be: beyond them the file is damaged. */
struct field {
    const char *key;
    double low, high;
    bool whole;
    double *to; // NAN where there is none, or null: not measured
};

static int take(const cJSON *object, const struct field *f, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++, f++) {
        const cJSON *item = cJSON_GetObjectItem(object, f->key);
        *f->to = NAN;
        if (!item || cJSON_IsNull(item)) continue;
        if (!cJSON_IsNumber(item))
            return error_set(err, -EINVAL, "%s is %s, it must be a number", f->key, json_show(item).s);
        double x = item->valuedouble;
        if (!(x >= f->low && x <= f->high) || (f->whole && x != floor(x)))
            return error_set(err, -ERANGE, "%s is %.10g, it can be %s%.10g to %.10g", f->key, x,
                             f->whole ? "a whole number " : "", f->low, f->high);
        *f->to = x;
    }
    return 0;
}

static bool is(const cJSON *object, const char *key, const char *text)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));
    return s && !strcmp(s, text);
}

static int read_hardware(struct plan_bench *b, const cJSON *h, struct error *err)
{
    const struct field fields[] = {{"ducks", 1, FLOCK_MAX_DUCKS, true, &b->ducks},
                                   {"kv_bytes", 1, 4, true, &b->kv_bytes},
                                   {"rows", 0, 65536, true, &b->rows},
                                   {"duck_bandwidth_gb_s", LEAST, 1e4, false, &b->gb_s},
                                   {"duck_gflops", LEAST, 1e6, false, &b->gflops},
                                   {"backend_row_ms", LEAST, MOST_MS, false, &b->row_ms},
                                   {"backend_layer_ms", LEAST, MOST_MS, false, &b->layer_ms},
                                   {"pair_bandwidth_gb_s", LEAST, 1e4, false, &b->pair_gb_s},
                                   {"backend_pair_ms", LEAST, MOST_MS, false, &b->pair_ms}};
    int rc = take(h, fields, sizeof fields / sizeof fields[0], err);
    if (rc) error_prefix(err, "hardware");
    return rc;
}

static int read_case(struct plan_bench_case *c, const cJSON *item, bool cpu_time, struct error *err)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));
    double cached = 0;
    const struct field fields[] = {
        {"prompt_tokens", 1, MOST_TOKENS, true, &c->prompt},
        {"cached_tokens", 0, MOST_TOKENS, true, &cached},
        {"output_tokens", 1, MOST_TOKENS, true, &c->output},
        {"draft_share", 0, 1, false, &c->share},
        {"mtp_accept", 0, 1, false, &c->accept},
        {cpu_time ? "ttft_cpu_ms" : "ttft_ms", LEAST, MOST_MS, false, &c->ttft_ms},
        {cpu_time ? "tpot_cpu_ms" : "tpot_ms", LEAST, MOST_MS, false, &c->tpot_ms}};
    c->name = name ? name : "?";
    int rc = take(item, fields, sizeof fields / sizeof fields[0], err);
    if (!rc && (isnan(c->prompt) || isnan(cached) || isnan(c->output)))
        rc = error_set(err, -EINVAL, "has no prompt_tokens, cached_tokens or output_tokens");
    if (!rc && c->prompt - cached < 1)
        rc = error_set(err, -EINVAL,
                       "cached_tokens is %g of prompt_tokens %g, one at least is always computed", cached,
                       c->prompt);
    c->prompt -= cached;
    if (rc) error_prefix(err, "case %s", c->name);
    return rc;
}

static int read_cases(struct plan_bench *b, const cJSON *cases, struct error *err)
{
    const cJSON *item;
    b->one = calloc((size_t)cJSON_GetArraySize(cases) + 1, sizeof *b->one);
    if (!b->one) return error_set(err, -ENOMEM, "no memory for %d cases", cJSON_GetArraySize(cases));
    cJSON_ArrayForEach(item, cases)
    {
        int rc = read_case(&b->one[b->cases++], item, b->cpu_time, err);
        if (rc) return rc;
    }
    return 0;
}

static int read_members(struct plan_bench *b, struct error *err)
{
    const cJSON *h = cJSON_GetObjectItem(b->root, "hardware"), *cases = cJSON_GetObjectItem(b->root, "cases");
    const struct field held = {"distinct_experts", 1, 65536, true, &b->held_experts};
    b->model = cJSON_GetStringValue(cJSON_GetObjectItem(b->root, "model"));
    b->mtp = cJSON_IsTrue(cJSON_GetObjectItem(b->root, "mtp"));
    b->cpu_time = is(h, "clock", "cpu");
    b->on_cpu = is(b->root, "backend", "cpu");
    b->e4m3 = is(h, "expert_format", "e4m3");
    b->local = cJSON_IsTrue(cJSON_GetObjectItem(h, "local"));
    b->shared_on_gpu = cJSON_IsTrue(cJSON_GetObjectItem(h, "shared_on_gpu"));
    int rc = read_hardware(b, h, err);
    if (!rc && cJSON_IsTrue(cJSON_GetObjectItem(b->root, "synthetic"))) rc = take(b->root, &held, 1, err);
    if (rc) return rc;
    if (!(b->held_experts > 0)) b->held_experts = 0; // all
    if (!b->model || !cJSON_IsArray(cases) || !(b->ducks >= 1))
        return error_set(err, -EINVAL, "has no model, cases or hardware: bench did not write it");
    if (!(b->gb_s > 0 && b->gflops > 0 && b->kv_bytes >= 1))
        return error_set(err, -EINVAL, "hardware was not measured (an interrupted run, or no experts)");
    if (b->on_cpu && !(b->row_ms > 0 && b->rows >= 1 && b->layer_ms > 0))
        return error_set(err, -EINVAL,
                         "hardware has no times of the CPU backend: an older bench wrote it, run it again");
    return read_cases(b, cases, err);
}

int plan_bench_read(struct plan_bench *out, const char *dir, struct error *err)
{
    char path[4096];
    *out = (struct plan_bench){0};
    snprintf(path, sizeof path, "%s/summary.json", dir);
    int rc = input_json(path, &out->root, err);
    if (rc) return rc;
    rc = read_members(out, err);
    if (rc) error_prefix(err, "%s", json_path_tail(path));
    return rc;
}

void plan_bench_free(struct plan_bench *b)
{
    cJSON_Delete(b->root);
    free(b->one);
    *b = (struct plan_bench){0};
}
