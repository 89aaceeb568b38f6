/* probe.c: see probe.h. */
#include "host/engine/probe.h"

#include <errno.h>
#include <stdlib.h>

#include "host/engine/engine_internal.h"
#include "host/util/clock.h"

enum { MOST_STEPS = 4096 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t below(uint64_t *seed, uint32_t n) // xorshift64
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)((*seed >> 32) * n >> 32);
}

/* Uniform and independent for each row, ascending in it. */
static void choose(int32_t *ids, uint32_t rows, uint32_t top_k, uint32_t experts, uint64_t *seed)
{
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < experts && chosen < top_k; e++)
            if (below(seed, experts - e) < top_k - chosen) ids[r * top_k + chosen++] = (int32_t)e;
    }
}

static void count(const struct flock *f, struct engine_probe *p, double sign)
{
    for (uint32_t i = 0; i < flock_ducks(f); i++) {
        struct duck_stats d;
        flock_duck_stats(f, i, &d);
        p->bytes += sign * (double)d.expert_bytes;
        if (d.networked) p->duck_s += sign * 1e-9 * (double)d.compute_ns;
    }
}

static int run_steps(struct engine *e, struct mlp_step *step, int32_t *ids, double seconds,
                     struct engine_probe *p, struct error *err)
{
    const struct model_config *c = &e->model->config;
    const struct flock_seam *flock = lanes_flock(e->lanes);
    uint64_t seed = 88172645463325252u, began = clock_ns();
    double cpu_began = cpu_s();
    while (p->steps == 0 || (p->seconds < seconds && p->steps < MOST_STEPS)) {
        step->layer = c->first_dense_layers + p->steps % (c->layers - c->first_dense_layers);
        choose(ids, step->tokens, c->top_k, c->experts, &seed);
        int rc = flock->submit(flock->flock, 0, step, err);
        while (!rc) rc = flock->poll(flock->flock, 0, true, err);
        if (rc < 0) return rc;
        p->steps++;
        p->seconds = (double)(clock_ns() - began) * 1e-9;
    }
    p->cpu_s = cpu_s() - cpu_began;
    return 0;
}

int engine_probe(struct engine *e, uint32_t tokens, double seconds, struct engine_probe *out,
                 struct error *err)
{
    const struct model_config *c = &e->model->config;
    const size_t values = (size_t)tokens * c->hidden_size, choices = (size_t)tokens * c->top_k;
    float *x = malloc(2 * values * sizeof *x), *weights = malloc(choices * sizeof *weights);
    int32_t *ids = malloc(choices * sizeof *ids);
    uint64_t seed = 1;
    int rc = 0;
    *out = (struct engine_probe){.tokens = tokens};
    if (c->experts == 0 || c->layers == c->first_dense_layers) {
        // nothing to time
    } else if (!x || !weights || !ids) {
        rc = error_set(err, -ENOMEM, "no memory for steps of %u rows", tokens);
    } else {
        for (size_t i = 0; i < values; i++) x[i] = (float)below(&seed, 2001) * 1e-3f - 1;
        for (size_t i = 0; i < choices; i++) weights[i] = 1.0f / (float)c->top_k;
        struct mlp_step step = {
            .tokens = tokens, .top_k = c->top_k, .x = x, .ids = ids, .weights = weights, .y = x + values};
        count(e->parts.flock, out, -1);
        rc = run_steps(e, &step, ids, seconds, out, err);
        count(e->parts.flock, out, 1);
        out->flops = 2.0 * out->steps * tokens * (c->top_k + (e->backend->shared ? 0 : c->shared_experts)) *
                     3.0 * c->hidden_size * c->expert_width;
    }
    free(x);
    free(weights);
    free(ids);
    return rc;
}
