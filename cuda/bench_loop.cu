/* bench_loop.cu: decode through backend.h with a host in the loop. */
#include "cuda/bench.cuh"

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "host/engine/synthetic_flock.h"
#include "host/flock/spec.h"
#include "host/model/synthetic.h"
}

/* Who answers steps, and how long the last token's answers and all of them took. */
struct answers {
    uint32_t delay_us;
    struct flock_seam seam; // of ducks, if there are any
    uint64_t ns, all_ns;
};

static void answer(struct answers *a, const struct mlp_step *step)
{
    const uint64_t start = clock_ns();
    struct error err;
    if (a->seam.flock) {
        must(a->seam.submit(a->seam.flock, 0, step, &err), &err);
        int done = 0;
        while (done == 0) done = a->seam.poll(a->seam.flock, 0, true, &err);
        if (done < 0) must(done, &err);
    } else {
        while (clock_ns() - start < a->delay_us * 1000ull) {
        }
    }
    a->ns += clock_ns() - start;
}

static float median(float *v)
{
    qsort(v, REPEATS, sizeof *v, by_value);
    return v[REPEATS / 2];
}

/* Steps of `rows` rows at one position; times are medians. */
static void run_loop(struct backend *b, uint32_t position, uint32_t rows, struct answers *a)
{
    struct error err;
    backend_seq seq;
    must(backend_cuda.seq_open(b, &seq, position + 64, &err), &err);
    const int32_t ids[GRAPH_ROWS] = {1, 2, 3, 4};
    float step_us[REPEATS], boundary_us[REPEATS], answer_us[REPEATS];
    uint64_t resumed = 0;
    uint32_t steps = 0;
    for (int i = -2; i < REPEATS; i++) {
        struct backend_job job = {};
        job.kind = BACKEND_MAIN, job.seq = seq, job.position = position, job.tokens = rows, job.ids = ids;
        job.best_only = true;
        const uint64_t start = clock_ns();
        a->ns = 0;
        must(backend_cuda.start(b, 0, &job, &err), &err);
        for (steps = 0;;) {
            struct mlp_step step;
            const enum backend_event e = backend_cuda.poll(b, 0, &step, &err);
            if (e == BACKEND_FAILED) must(-1, &err);
            if (e == BACKEND_DONE) break;
            if (e != BACKEND_MLP) continue;
            if (steps == 0 && resumed && i >= 0) boundary_us[i] = (float)(clock_ns() - resumed) / 1e3f;
            answer(a, &step);
            resumed = clock_ns();
            backend_cuda.resume(b, 0);
            steps++;
        }
        a->all_ns += a->ns;
        if (i < 0) continue;
        step_us[i] = (float)(clock_ns() - start) / 1e3f;
        answer_us[i] = (float)a->ns / 1e3f;
    }
    const float all = median(step_us), flock = median(answer_us);
    printf("loop through backend.h%s, context %u, %u row%s: %.0f us a step, %.0f of them waiting for %u "
           "answers, %.1f us a "
           "layer besides; last answer -> next publication %.0f us\n",
           b->shared ? ", shared experts here" : "", position + rows, rows, rows > 1 ? "s" : "", all, flock,
           steps, (all - flock) / steps, median(boundary_us));
    backend_cuda.seq_close(b, seq);
}

static struct backend *open_backend(const struct model *model, enum shared_experts shared)
{
    struct error err;
    struct backend *b;
    struct backend_options o = {};
    o.model = model, o.lanes = 1, o.max_tokens = GRAPH_ROWS, o.mtp = true, o.shared = shared;
    must(backend_cuda.open(&b, &o, &err), &err);
    return b;
}

void loop_delayed(const struct model *model, uint32_t position, uint32_t rows, uint32_t delay_us)
{
    for (int shared = SHARED_BACKEND; shared <= SHARED_FLOCK; shared++) {
        struct answers a = {delay_us, {}, 0, 0};
        struct backend *b = open_backend(model, (enum shared_experts)shared);
        run_loop(b, position, rows, &a);
        backend_cuda.close(b);
    }
}

void loop_ducks(const struct model *model, const char *config, uint32_t position, uint32_t layers,
                uint32_t experts)
{
    struct error err;
    struct model_config c;
    struct synthetic_format format;
    struct model held;
    struct pool *pool;
    struct flock *flock;
    struct duck_stats before, after;
    struct backend *b = open_backend(model, SHARED_AUTO);
    must(synthetic_config_read(&c, &format, config, &err), &err);
    struct model_config h = synthetic_flock_config(&c, layers, experts);
    if (b->shared) h.shared_experts = 0;
    must(synthetic_open(&held, &h, format, config, &err), &err);
    must(pool_open(&pool, 0, &err), &err);
    struct flock_spec spec;
    must(flock_spec_read(&spec, "local", &err), &err);
    struct flock_options o = {};
    o.model = &held, o.pool = pool, o.spec = &spec, o.lanes = 1, o.max_tokens = GRAPH_ROWS;
    o.activation = WIRE_BF16, o.result = WIRE_F32;
    must(flock_open(&flock, &o, &err), &err);
    struct synthetic_flock *s = synthetic_flock_open(flock, model, &held.config, 1, GRAPH_ROWS);
    struct answers a = {0, synthetic_flock_seam(s, true), 0, 0};
    flock_duck_stats(flock, 0, &before);
    printf("local ducks, %u threads, %u layers of %u experts shared by all: %.2f GB of weights\n",
           pool_threads(pool), layers, experts, (double)before.weight_bytes / 1e9);
    for (uint32_t rows = 1; rows <= 2; rows++) {
        run_loop(b, position, rows, &a);
        flock_duck_stats(flock, 0, &after);
        printf("  the ducks read %.2f GB meanwhile: %.1f GB/s\n",
               (double)(after.expert_bytes - before.expert_bytes) / 1e9,
               (double)(after.expert_bytes - before.expert_bytes) / (double)a.all_ns);
        a.all_ns = 0;
        before = after;
    }
    synthetic_flock_close(s);
    flock_close(flock);
    pool_close(pool);
    model_close(&held);
    backend_cuda.close(b);
}
