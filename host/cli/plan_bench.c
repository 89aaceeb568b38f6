/* plan_bench.c: see plan_bench.h. */
#include "host/cli/plan_bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/output.h"
#include "host/plan/work.h"

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
    if (!b->on_cpu && in->gpu < 1)
        return error_set(err, -EINVAL, "the run used a GPU, the hardware file has none: gpu is %g", in->gpu);
    in->kinds = 0;
    in->ducks = b->ducks;
    in->duck_bandwidth_gb_s = b->gb_s;
    in->duck_gflops = b->gflops;
    in->memory_share = in->flop_share = 1; // measured, not peaks
    in->kv_bytes = b->kv_bytes;
    in->held_experts = b->held_experts;
    in->expert_bits = b->e4m3 ? 8 : 9;
    if (b->local) in->domains = 1; // whatever wires the file has, these ducks have none
    in->shared_on_gpu = b->shared_on_gpu;
    if (!b->on_cpu) return 0;
    in->one_job = b->local ? 1 : 0;   // mtp_verify_policy()
    in->dual_lane = b->local ? 0 : 1; // nor do two chunks of a prompt share the cores
    in->draft_bits = 4;
    in->gpu = 0;
    apply_backend(b, c, in);
    return 0;
}

/* ---- cases ---- */

struct beside {
    const struct plan_bench_case *took;
    double ttft_ms, tpot_ms; // projected
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
static int project(struct beside *out, const struct plan_bench_case *took, const struct plan_bench *b,
                   const struct model_config *c, const struct forecast_inputs *base, struct error *err)
{
    struct forecast_inputs in = *base;
    struct forecast alone, drafted, paired;
    const double share = took->share;
    *out = (struct beside){.took = took};
    in.prompt_tokens = took->prompt;
    in.output_tokens = took->output;
    in.mtp = 0;
    int rc = forecast_make(&alone, c, &in, err);
    if (rc) return rc;
    out->ttft_ms = 1e3 * alone.ttft_s;
    out->tpot_ms = alone.tpot_ms;
    if (!b->mtp || !(share > 0)) return 0;
    in.mtp = 1;
    in.acceptance = took->accept > 0 ? took->accept : 0;
    rc = forecast_make(&drafted, c, &in, err);
    if (rc) return rc;
    apply_pair(b, c, &in);
    rc = forecast_make(&paired, c, &in, err);
    if (rc) return rc;
    if (in.gpu < 1) out->ttft_ms = 1e3 * drafted.ttft_s; // more rows of the last layer are wanted
    double with = paired.pair_ms + drafted.round_ms - drafted.pair_ms; // the MTP layer gets one row
    double round = share * with + (1 - share) * alone.tpot_ms;
    out->tpot_ms = round / (1 + share * in.acceptance) + drafted.mtp_prompt_ms / fmax(took->output - 1, 1);
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

static void print_case(const struct beside *b, bool json)
{
    const struct plan_bench_case *c = b->took;
    if (!json) {
        printf("%-20s %6.0f %6.0f", c->name, c->prompt, c->output);
        print_pair(c->ttft_ms, b->ttft_ms);
        print_pair(c->tpot_ms, b->tpot_ms);
        putchar('\n');
        return;
    }
    fputs("{\"name\": ", stdout);
    output_json_string(stdout, c->name, strlen(c->name));
    printf(", \"prompt_tokens\": %.0f, \"output_tokens\": %.0f", c->prompt, c->output);
    json_pair("ttft_ms", c->ttft_ms, b->ttft_ms);
    json_pair("tpot_ms", c->tpot_ms, b->tpot_ms);
    fputs("}", stdout);
}

static void print_all(const struct plan_bench *b, const struct beside *beside, bool json)
{
    const char *clock = b->cpu_time ? "CPU time" : "wall time";
    if (json)
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
    for (size_t i = 0; i < b->cases; i++) {
        fputs(json && i ? ", " : "", stdout);
        print_case(&beside[i], json);
    }
    if (json) puts("]}");
}

int plan_bench_print(const struct plan_bench *b, const struct model_config *c,
                     const struct forecast_inputs *in, const struct options *o, struct error *err)
{
    struct beside *beside = calloc(b->cases + 1, sizeof *beside);
    if (!beside) return error_set(err, -ENOMEM, "no memory for %zu cases", b->cases);
    int rc = 0;
    for (size_t i = 0; !rc && i < b->cases; i++) {
        rc = project(&beside[i], &b->one[i], b, c, in, err);
        if (rc) error_prefix(err, "case %s", b->one[i].name);
    }
    if (!rc) print_all(b, beside, o->json);
    free(beside);
    return rc;
}
