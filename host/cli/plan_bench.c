/* plan_bench.c: see plan_bench.h. */
#include "host/cli/plan_bench.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "host/cli/input.h"
#include "host/cli/output.h"
#include "host/flock/spec.h"
#include "host/plan/work.h"

static double number(const cJSON *object, const char *key) // NAN: not there, or null
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, key));
}

static bool is(const cJSON *object, const char *key, const char *text)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));
    return s && !strcmp(s, text);
}

int plan_bench_read(struct plan_bench *out, const char *dir, struct error *err)
{
    char path[4096];
    *out = (struct plan_bench){0};
    snprintf(path, sizeof path, "%s/summary.json", dir);
    int rc = input_json(path, &out->root, err);
    if (rc) return rc;
    const cJSON *h = cJSON_GetObjectItem(out->root, "hardware");
    out->model = cJSON_GetStringValue(cJSON_GetObjectItem(out->root, "model"));
    out->mtp = cJSON_IsTrue(cJSON_GetObjectItem(out->root, "mtp"));
    out->cpu_time = is(h, "clock", "cpu");
    out->ducks = number(h, "ducks");
    out->gb_s = number(h, "duck_bandwidth_gb_s");
    out->gflops = number(h, "duck_gflops");
    out->kv_bytes = number(h, "kv_bytes");
    out->held_experts =
        cJSON_IsTrue(cJSON_GetObjectItem(out->root, "synthetic")) ? number(out->root, "distinct_experts") : 0;
    out->row_ms = number(h, "backend_row_ms");
    out->rows = number(h, "rows");
    out->layer_ms = number(h, "backend_layer_ms");
    out->pair_gb_s = number(h, "pair_bandwidth_gb_s");
    out->pair_ms = number(h, "backend_pair_ms");
    if (!out->model || !cJSON_IsArray(cJSON_GetObjectItem(out->root, "cases")) ||
        !(out->ducks >= 1 && out->ducks <= FLOCK_MAX_DUCKS))
        return error_set(err, -EINVAL, "%s: has no model, cases or hardware: bench did not write it", path);
    if (!(out->gb_s > 0 && out->gflops > 0 && out->kv_bytes >= 1))
        return error_set(err, -EINVAL, "%s: hardware was not measured (an interrupted run, or no experts)",
                         path);
    if (is(out->root, "backend", "cpu") && !(out->row_ms > 0 && out->rows >= 1 && out->layer_ms > 0))
        return error_set(
            err, -EINVAL,
            "%s: hardware has no times of the CPU backend: an older bench wrote it, run it again", path);
    return 0;
}

void plan_bench_free(struct plan_bench *b)
{
    cJSON_Delete(b->root);
    b->root = NULL;
}

/* The rate at which what the backend reads for a few rows, as it is counted here, takes the time that it was
 * measured to take by itself in all layers and the head. */
static double backend_gb_s(const struct model_config *c, const struct forecast_inputs *in, double rows,
                           double ms)
{
    const double head = 2 * forecast_work(c, in).head; // bf16
    return (c->layers * forecast_attention(c, in, rows, rows).bytes + head) / ms * 1e-6;
}

/* And of many rows' operations in one layer. */
static void apply_backend(const struct plan_bench *b, const struct model_config *c,
                          struct forecast_inputs *in)
{
    const struct forecast_load many = forecast_attention(c, in, b->rows, b->rows / 2);
    in->host_bandwidth_gb_s = backend_gb_s(c, in, 1, b->row_ms);
    in->host_gflops = (many.flops + many.key_flops) / b->layer_ms * 1e-6;
}

int plan_bench_apply(const struct plan_bench *b, const struct model_config *c, struct forecast_inputs *in,
                     struct error *err)
{
    const cJSON *h = cJSON_GetObjectItem(b->root, "hardware");
    const bool cpu = is(b->root, "backend", "cpu");
    if (!cpu && in->gpu < 1)
        return error_set(err, -EINVAL, "the run used a GPU, the hardware file has none: gpu is %g", in->gpu);
    in->kinds = 0;
    in->ducks = b->ducks;
    in->duck_bandwidth_gb_s = b->gb_s;
    in->duck_gflops = b->gflops;
    in->memory_share = in->flop_share = 1; // measured, not peaks
    in->kv_bytes = b->kv_bytes;
    in->held_experts = b->held_experts;
    in->expert_bits = is(h, "expert_format", "e4m3") ? 8 : 9;
    const bool local = cJSON_IsTrue(cJSON_GetObjectItem(h, "local"));
    if (local) in->domains = 1; // whatever wires the file has, these ducks have none
    in->shared_on_gpu = cJSON_IsTrue(cJSON_GetObjectItem(h, "shared_on_gpu"));
    if (!cpu) return 0;
    in->one_job = local ? 1 : 0;   // mtp_verify_policy()
    in->dual_lane = local ? 0 : 1; // nor do two chunks of a prompt share the cores
    in->draft_bits = 4;
    in->gpu = 0;
    apply_backend(b, c, in);
    return 0;
}

/* ---- cases ---- */

struct beside {
    const char *name;
    double prompt, output;
    double ttft_ms, tpot_ms;                     // measured
    double projected_ttft_ms, projected_tpot_ms; //
};

/* Two rows of a step and job read at rates of their own. */
static void apply_pair(const struct plan_bench *b, const struct model_config *c, struct forecast_inputs *in)
{
    if (b->pair_gb_s > 0) in->duck_bandwidth_gb_s *= b->pair_gb_s / b->gb_s;
    if (b->pair_ms > 0)
        in->host_bandwidth_gb_s *= backend_gb_s(c, in, 2, b->pair_ms) / backend_gb_s(c, in, 1, b->row_ms);
}

/* Rounds with a draft and without are projected each for itself and mixed as the run mixed them. The first
 * token is there before the MTP layer gets the prompt's last rows: those come with the second. */
static int project(struct beside *out, const cJSON *item, const struct plan_bench *b,
                   const struct model_config *c, const struct forecast_inputs *base, struct error *err)
{
    struct forecast_inputs in = *base;
    struct forecast alone, drafted, paired;
    const double share = number(item, "draft_share"), accept = number(item, "mtp_accept");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));
    *out = (struct beside){.name = name ? name : "?",
                           .prompt = number(item, "prompt_tokens") - number(item, "cached_tokens"),
                           .output = number(item, "output_tokens"),
                           .ttft_ms = number(item, b->cpu_time ? "ttft_cpu_ms" : "ttft_ms"),
                           .tpot_ms = number(item, b->cpu_time ? "tpot_cpu_ms" : "tpot_ms")};
    if (!(out->prompt >= 1 && out->output >= 1))
        return error_set(err, -EINVAL, "case %s: %g prompt tokens and %g of output", out->name, out->prompt,
                         out->output);
    in.prompt_tokens = out->prompt;
    in.output_tokens = out->output;
    in.mtp = 0;
    int rc = forecast_make(&alone, c, &in, err);
    if (rc) return rc;
    out->projected_ttft_ms = 1e3 * alone.ttft_s;
    out->projected_tpot_ms = alone.tpot_ms;
    if (!b->mtp || !(share > 0)) return 0;
    in.mtp = 1;
    in.acceptance = accept > 0 ? accept : 0;
    rc = forecast_make(&drafted, c, &in, err);
    if (rc) return rc;
    apply_pair(b, c, &in);
    rc = forecast_make(&paired, c, &in, err);
    if (rc) return rc;
    if (in.gpu < 1) out->projected_ttft_ms = 1e3 * drafted.ttft_s; // more rows of the last layer are wanted
    double with = paired.pair_ms + drafted.round_ms - drafted.pair_ms; // the MTP layer gets one row
    double round = share * with + (1 - share) * alone.tpot_ms;
    out->projected_tpot_ms =
        round / (1 + share * in.acceptance) + drafted.mtp_prompt_ms / fmax(out->output - 1, 1);
    return 0;
}

static void print_pair(double measured, double projected)
{
    if (isfinite(measured))
        printf(" %12.2f %12.2f %+6.1f %%", measured, projected, 100 * (projected / measured - 1));
    else
        printf(" %12s %12.2f %8s", "-", projected, "-");
}

static void json_pair(const char *name, double measured, double projected)
{
    printf(", \"%s\": {\"measured\": ", name);
    output_json_number(stdout, measured, 4);
    fputs(", \"projected\": ", stdout);
    output_json_number(stdout, projected, 4);
    fputs(", \"off\": ", stdout);
    output_json_number(stdout, projected / measured - 1, 4);
    fputs("}", stdout);
}

static void print_case(const struct beside *c, bool json)
{
    if (!json) {
        printf("%-20s %6.0f %6.0f", c->name, c->prompt, c->output);
        print_pair(c->ttft_ms, c->projected_ttft_ms);
        print_pair(c->tpot_ms, c->projected_tpot_ms);
        putchar('\n');
        return;
    }
    fputs("{\"name\": ", stdout);
    output_json_string(stdout, c->name, strlen(c->name));
    printf(", \"prompt_tokens\": %.0f, \"output_tokens\": %.0f", c->prompt, c->output);
    json_pair("ttft_ms", c->ttft_ms, c->projected_ttft_ms);
    json_pair("tpot_ms", c->tpot_ms, c->projected_tpot_ms);
    fputs("}", stdout);
}

int plan_bench_print(const struct plan_bench *b, const struct model_config *c,
                     const struct forecast_inputs *in, const struct options *o, struct error *err)
{
    const char *clock = b->cpu_time ? "CPU time" : "wall time", *comma = "";
    const cJSON *item;
    if (o->json)
        printf("{\"projected\": true, \"clock\": \"%s\", \"ducks\": %g, \"duck_bandwidth_gb_s\": %.4f, "
               "\"duck_gflops\": %.4f, \"cases\": [",
               clock, b->ducks, b->gb_s, b->gflops);
    else
        printf(
            "projected from %g duck%s of %.1f GB/s and %.1f GFLOP/s, as the run measured them by themselves, "
            "beside what it took (%s)\n\n%-20s %6s %6s %35s %35s\n%-20s %6s %6s %12s %12s %8s %12s %12s "
            "%8s\n",
            b->ducks, b->ducks > 1 ? "s" : "", b->gb_s, b->gflops, clock, "", "prompt", "output",
            "TTFT [ms]            ", "TPOT [ms]            ", "case", "tokens", "tokens", "measured",
            "projected", "off", "measured", "projected", "off");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(b->root, "cases"))
    {
        struct beside one;
        int rc = project(&one, item, b, c, in, err);
        if (rc) return rc;
        fputs(o->json ? comma : "", stdout);
        print_case(&one, o->json);
        comma = ", ";
    }
    if (o->json) puts("]}");
    return 0;
}
