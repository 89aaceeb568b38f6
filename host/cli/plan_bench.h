/* plan_bench.h: `duckd plan --bench DIR`: the cases of a run, projected beside what they took.
 *
 * What the run measured of its ducks by themselves (bench's "hardware") takes the place of the hardware
 * file's figures of ducks, and what it measured of its backend by itself those of the host where that does
 * the backend's work; nothing that a case took is an input. */
#ifndef DUCKD_HOST_CLI_PLAN_BENCH_H
#define DUCKD_HOST_CLI_PLAN_BENCH_H

#include <cjson/cJSON.h>

#include "host/cli/options.h"
#include "host/plan/forecast.h"

struct plan_bench_case {
    const char *name;
    double prompt, output;   // tokens; of the prompt those that were not known already
    double share, accept;    // rounds with a draft; accepted drafts; NAN: none
    double ttft_ms, tpot_ms; // NAN: there was none
};

struct plan_bench {
    cJSON *root;
    const char *model;          // that was run: a folder or a config.json
    bool mtp, on_cpu, cpu_time; // the backend; times are of this process's CPU time
    bool local, e4m3;           // ducks: in the process; their format
    bool shared_on_gpu;
    double ducks, gb_s, gflops, kv_bytes, held_experts;
    double row_ms, rows, layer_ms; // of a backend on the cores: one row all through; a layer of so many
    double pair_gb_s, pair_ms;     // of two rows in one step and job, where drafts are verified so; NAN
    size_t cases;
    struct plan_bench_case *one; // (cases)
};

/* DIR/summary.json (plan_bench_read.c). A number that no run writes is refused, with its place and what it
 * can be. Freed with plan_bench_free(), also after an error. */
int plan_bench_read(struct plan_bench *out, const char *dir, struct error *err);
void plan_bench_free(struct plan_bench *b);
/* The run's hardware and scheme; --set comes after it. */
int plan_bench_apply(const struct plan_bench *b, const struct model_config *c, struct forecast_inputs *in,
                     struct error *err);
int plan_bench_print(const struct plan_bench *b, const struct model_config *c,
                     const struct forecast_inputs *in, const struct options *o, struct error *err);

#endif
