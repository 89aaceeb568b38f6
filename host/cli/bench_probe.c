/* bench_probe.c: see bench_probe.h. */
#include "host/cli/bench_probe.h"

#include "host/util/clock.h"

#define SHARE (1.0 / 3)  // of the rounds' time
#define ENOUGH_S 20.0    // of pauses, one row or many: behind them
#define LATER (1.0 / 30) //   long runs are not made much longer
#define LEAST_S 0.06     // that is worth a pause: rounds of a small model find their caches as they left them
#define LEAST_ROWS 2u    // of many

int bench_probe_open(struct bench_probe *p, struct engine *e, uint32_t rows, struct error *err)
{
    *p = (struct bench_probe){0};
    return engine_probe_open(&p->engine, e, rows < LEAST_ROWS ? LEAST_ROWS : rows, err);
}

void bench_probe_close(struct bench_probe *p)
{
    engine_probe_close(p->engine);
    p->engine = NULL;
}

static int slice(struct bench_probe *p, bool many, struct error *err)
{
    const uint64_t began = clock_ns(), cpu_began = clock_cpu_ns();
    int rc = engine_probe_slice(p->engine, many, err);
    const double took_s = (double)(clock_ns() - began) * 1e-9;
    p->owed_s[many] -= took_s;
    p->paused_s[many] += took_s;
    p->cpu_ns += clock_cpu_ns() - cpu_began;
    return rc;
}

int bench_probe_begin(struct bench_probe *p, struct error *err)
{
    int rc = 0;
    for (int i = 0; !rc && p->engine && i < 2 * PROBE_KINDS; i++) // ducks and backend take turns
        rc = slice(p, i < 2, err);
    p->owed_s[0] = p->owed_s[1] = 0;
    p->round_ns = clock_ns();
    return rc;
}

int bench_probe_round(struct bench_probe *p, bool prefill, struct error *err)
{
    double *owed = &p->owed_s[prefill];
    int rc = 0;
    *owed += (p->paused_s[prefill] < ENOUGH_S ? SHARE : LATER) * (double)(clock_ns() - p->round_ns) * 1e-9;
    if (*owed >= LEAST_S)
        while (!rc && p->engine && *owed > 0) rc = slice(p, prefill, err);
    p->round_ns = clock_ns();
    return rc;
}
