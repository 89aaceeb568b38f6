/* probe.c: see probe.h. */
#include "host/engine/probe.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/engine_internal.h"
#include "host/util/clock.h"

#define LAYERS_SECONDS 0.25 // of a job of many rows

/* Sums over slices. */
struct spent {
    uint32_t times;        // steps; one row's jobs; layers of many rows
    double seconds, cpu_s; // cpu_s: of all threads of this process
};

struct duck_steps {
    struct spent spent;
    double bytes, flops;
    double duck_s; // as ducks on a network say, all of them together
};

struct probe_times {
    uint32_t rows;
    struct duck_steps dense, experts;
    struct spent backend;
};

struct engine_probe {
    struct engine *e;
    bool backend_too; // it computes on the cores
    struct probe_times times[PROBE_KINDS];
    uint64_t seed;
    float *x, *y, *weights; // (rows, hidden), likewise, (rows, top_k)
    int32_t *ids;           // (rows, top_k) experts; (rows) tokens
};

static double cpu_s(void)
{
    return (double)clock_cpu_ns() * 1e-9;
}

static double clock_s(void)
{
    return (double)clock_ns() * 1e-9;
}

static uint32_t below(uint64_t *seed, uint32_t n) // xorshift64
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)((*seed >> 32) * n >> 32);
}

int engine_probe_open(struct engine_probe **out, struct engine *e, uint32_t rows, struct error *err)
{
    const struct model_config *c = &e->model->config;
    *out = NULL;
    if (c->experts == 0 || c->layers == c->first_dense_layers) return 0;
    struct engine_probe *p = calloc(1, sizeof *p);
    if (!p) return error_set(err, -ENOMEM, "no memory for timing the ducks");
    *p = (struct engine_probe){
        .e = e, .backend_too = e->backend->ops == &backend_cpu, .seed = 88172645463325252u};
    if (rows > e->set.prefill_chunk) rows = e->set.prefill_chunk;
    p->times[PROBE_ONE].rows = 1;
    p->times[PROBE_PAIR].rows = e->set.mtp && e->set.verify == MTP_ONE_JOB ? 2 : 0;
    p->times[PROBE_MANY].rows = rows;
    const size_t values = (size_t)rows * c->hidden_size, choices = (size_t)rows * c->top_k;
    p->x = malloc(values * sizeof *p->x);
    p->y = malloc(values * sizeof *p->y);
    p->weights = malloc(choices * sizeof *p->weights);
    p->ids = malloc(choices * sizeof *p->ids);
    if (!p->x || !p->y || !p->weights || !p->ids) {
        engine_probe_close(p);
        return error_set(err, -ENOMEM, "no memory for steps of %u rows", rows);
    }
    for (size_t i = 0; i < values; i++) p->x[i] = (float)below(&p->seed, 2001) * 1e-3f - 1;
    for (size_t i = 0; i < choices; i++) p->weights[i] = 1.0f / (float)c->top_k;
    *out = p;
    return 0;
}

void engine_probe_close(struct engine_probe *p)
{
    if (!p) return;
    free(p->x);
    free(p->y);
    free(p->weights);
    free(p->ids);
    free(p);
}

/* ---- ducks ---- */

/* Uniform and independent for each row, ascending in it. */
static void choose(struct engine_probe *p, uint32_t rows)
{
    const struct model_config *c = &p->e->model->config;
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < c->experts && chosen < c->top_k; e++)
            if (below(&p->seed, c->experts - e) < c->top_k - chosen)
                p->ids[r * c->top_k + chosen++] = (int32_t)e;
    }
}

/* Dense layers are the ducks' where the backend is the CPU's. Of many rows the last layer gets one. */
static uint32_t dense_layers(const struct engine_probe *p)
{
    return p->backend_too ? p->e->model->config.first_dense_layers : 0;
}

static uint32_t expert_layers(const struct engine_probe *p, enum probe_rows kind)
{
    const struct model_config *c = &p->e->model->config;
    const uint32_t layers = c->layers - c->first_dense_layers;
    return p->backend_too && kind == PROBE_MANY && layers > 1 ? layers - 1 : layers;
}

static void count(const struct flock *f, struct duck_steps *to, double sign)
{
    flock_settle(f);
    for (uint32_t i = 0; i < flock_ducks(f); i++) {
        struct duck_stats d;
        flock_duck_stats(f, i, &d);
        to->bytes += sign * (double)d.expert_bytes;
        if (d.networked) to->duck_s += sign * 1e-9 * (double)d.compute_ns;
    }
}

static int time_step(struct engine_probe *p, const struct mlp_step *step, struct duck_steps *to,
                     struct error *err)
{
    const struct flock_seam *flock = lanes_flock(p->e->lanes);
    count(p->e->parts.flock, to, -1);
    const double began = clock_s(), cpu_began = cpu_s();
    int rc = flock->submit(flock->flock, 0, step, err);
    while (!rc) rc = flock->poll(flock->flock, 0, true, err);
    to->spent.seconds += clock_s() - began;
    to->spent.cpu_s += cpu_s() - cpu_began;
    to->spent.times++;
    count(p->e->parts.flock, to, 1);
    return rc < 0 ? rc : 0;
}

/* Both kinds of layers as often as the model has them, each in turn. */
static int time_ducks(struct engine_probe *p, enum probe_rows kind, struct error *err)
{
    const struct model_config *c = &p->e->model->config;
    struct probe_times *t = &p->times[kind];
    const uint32_t all[2] = {expert_layers(p, kind), dense_layers(p)};
    const bool dense = t->dense.spent.times * all[0] < t->experts.spent.times * all[1];
    struct duck_steps *to = dense ? &t->dense : &t->experts;
    const struct mlp_step step = {.layer = to->spent.times % all[dense] + (dense ? 0 : c->first_dense_layers),
                                  .tokens = t->rows,
                                  .top_k = dense ? 0 : c->top_k,
                                  .x = p->x,
                                  .ids = p->ids,
                                  .weights = p->weights,
                                  .y = p->y};
    choose(p, t->rows);
    const double experts = c->top_k + (p->e->backend->shared ? 0 : c->shared_experts);
    to->flops += 6.0 * t->rows * c->hidden_size * (dense ? c->dense_width : experts * c->expert_width);
    return time_step(p, &step, to, err);
}

/* ---- backend ---- */

/* Few rows: through all layers and the head. Many: through layers until the time is over or there is none
 * left. The answers are zeros. */
static int walk(struct engine_probe *p, bool many, struct spent *to, struct error *err)
{
    const struct model_config *c = &p->e->model->config;
    struct backend *b = p->e->backend;
    const double began = clock_s();
    for (;;) {
        struct mlp_step step = {0};
        const enum backend_event event = b->ops->poll(b, 0, &step, err);
        assert(event != BACKEND_BUSY); // it computes in poll
        if (event == BACKEND_FAILED) return -EIO;
        to->times += many || event == BACKEND_DONE;
        if (event == BACKEND_DONE) return 0;
        if (many && (step.layer + 1 == c->layers || clock_s() - began >= LAYERS_SECONDS)) return 0;
        memset(step.y, 0, (size_t)step.tokens * c->hidden_size * sizeof *step.y);
        b->ops->resume(b, 0);
    }
}

static int run_job(struct engine_probe *p, const struct backend_job *job, bool many, struct spent *to,
                   struct error *err)
{
    struct backend *b = p->e->backend;
    const double began = clock_s(), cpu_began = cpu_s();
    int rc = b->ops->start(b, 0, job, err);
    if (rc) return rc;
    rc = walk(p, many, to, err);
    to->seconds += clock_s() - began;
    to->cpu_s += cpu_s() - cpu_began;
    b->ops->cancel(b, 0);
    return rc;
}

/* All rows want logits, so that no layer leaves out any. */
static int time_backend(struct engine_probe *p, enum probe_rows kind, struct error *err)
{
    struct engine *e = p->e;
    struct probe_times *t = &p->times[kind];
    struct sequence s;
    for (uint32_t i = 0; i < t->rows; i++) p->ids[i] = (int32_t)below(&p->seed, e->model->config.vocab_size);
    int rc = sequence_open(&s, e->backend, &(struct sequence_start){p->ids, t->rows, t->rows, t->rows}, err);
    if (rc) return rc;
    const struct backend_job job = sequence_main_job(&s, t->rows, 0);
    rc = run_job(p, &job, kind == PROBE_MANY, &t->backend, err);
    sequence_close(&s);
    return rc;
}

static double ducks_seconds(const struct probe_times *t)
{
    return t->dense.spent.seconds + t->experts.spent.seconds;
}

static double all_seconds(const struct probe_times *t)
{
    return ducks_seconds(t) + t->backend.seconds;
}

/* One that was disturbed in its only step has had its time and says nothing yet. */
static bool untimed(const struct engine_probe *p, enum probe_rows kind)
{
    const struct probe_times *t = &p->times[kind];
    return t->experts.spent.times == 0 || (p->backend_too && t->backend.times == 0);
}

static enum probe_rows one_or_pair(const struct engine_probe *p)
{
    const struct probe_times *one = &p->times[PROBE_ONE], *pair = &p->times[PROBE_PAIR];
    const double share = p->e->set.adapt ? 1 : 4; // always drafting: one row is the MTP layer's alone
    if (untimed(p, PROBE_ONE) || pair->rows == 0) return PROBE_ONE;
    return untimed(p, PROBE_PAIR) || all_seconds(pair) < share * all_seconds(one) ? PROBE_PAIR : PROBE_ONE;
}

int engine_probe_slice(struct engine_probe *p, bool many, struct error *err)
{
    const enum probe_rows kind = many ? PROBE_MANY : one_or_pair(p);
    const struct probe_times *t = &p->times[kind];
    for (uint32_t lane = 0; lane < p->e->set.lanes; lane++) // who is late would be timed as well
        if (!lanes_idle(p->e->lanes, lane))
            return error_set(err, -EBUSY, "lane %u still waits for an answer from the flock", lane);
    return p->backend_too && t->backend.seconds < ducks_seconds(t) ? time_backend(p, kind, err)
                                                                   : time_ducks(p, kind, err);
}

/* ---- rates ---- */

static double seconds(const struct spent *s, bool cpu_time)
{
    return cpu_time ? s->cpu_s : s->seconds;
}

/* Dense and expert layers take different times for as many bytes and operations: mixed as the model has them,
 * however often each was timed. */
struct probe_rates engine_probe_rates(const struct engine_probe *p, enum probe_rows kind, bool cpu_time)
{
    const struct probe_times *t = &p->times[kind];
    const struct duck_steps *of[2] = {&t->experts, &t->dense};
    const uint32_t layers[2] = {expert_layers(p, kind), dense_layers(p)};
    double bytes = 0, flops = 0, duck_s = 0;
    for (int i = 0; i < 2; i++) {
        if (of[i]->spent.times == 0) continue;
        const double share = (double)layers[i] / of[i]->spent.times;
        bytes += share * of[i]->bytes;
        flops += share * of[i]->flops;
        duck_s +=
            share * (of[i]->duck_s > 0 ? of[i]->duck_s
                                       : flock_ducks(p->e->parts.flock) * seconds(&of[i]->spent, cpu_time));
    }
    return (struct probe_rates){.rows = t->rows,
                                .networked = t->experts.duck_s > 0,
                                .duck_gb_s = bytes / duck_s * 1e-9,
                                .duck_gflops = flops / duck_s * 1e-9,
                                .backend_ms = 1e3 * seconds(&t->backend, cpu_time) / t->backend.times};
}
