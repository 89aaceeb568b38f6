/* bed.c: see bed.h. */
#include "tests/cuda/bed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "host/backend/backend_cuda.h"
#include "host/util/clock.h"

#define DEADLINE_NS (60ull * 1000000000u)

const struct bed_case bed_cases[BED_CASES] = {
    {"tests/goldens/v32-tiny", KV_F32, SHARED_FLOCK},   {"tests/goldens/v32-tiny", KV_BF16, SHARED_BACKEND},
    {"tests/goldens/v3-tiny", KV_BF16, SHARED_BACKEND}, {"models/duckling", KV_BF16, SHARED_FLOCK},
    {"models/duckling", KV_BF16, SHARED_BACKEND},       {"models/duckling", KV_FP8, SHARED_FLOCK},
};

const struct backend_ops *bed_backend(void)
{
    struct error err = {""};
    const struct backend_ops *ops = backend_cuda_load(&err);
    if (!ops) printf("skipped: %s\n", err.text);
    return ops;
}

void bed_open(struct bed *bed, const struct backend_ops *ops, const struct bed_case *c, uint32_t lanes,
              uint32_t max_tokens)
{
    struct error err = {""};
    memset(bed, 0, sizeof *bed);
    if (model_open(&bed->model, c->dir, &err)) fail_msg("%s", err.text);
    if (pool_open(&bed->pool, 0, &err)) fail_msg("%s", err.text);
    const struct backend_options o = {.model = &bed->model,
                                      .pool = bed->pool,
                                      .lanes = lanes,
                                      .max_tokens = max_tokens,
                                      .kv_dtype = c->kv,
                                      .kv_dtype_set = true,
                                      .mtp = true,
                                      .shared = c->shared};
    if (ops->open(&bed->b, &o, &err)) fail_msg("%s", err.text);
    assert_int_equal(bed->b->shared, c->shared == SHARED_BACKEND);
    if (feed_forward_open(&bed->mlp, &bed->model, bed->pool, !bed->b->shared, &err)) fail_msg("%s", err.text);
}

void bed_close(struct bed *bed)
{
    bed->b->ops->close(bed->b);
    feed_forward_close(bed->mlp);
    pool_close(bed->pool);
    model_close(&bed->model);
}

backend_seq bed_seq(struct bed *bed, uint32_t capacity)
{
    struct error err = {""};
    backend_seq seq;
    if (bed->b->ops->seq_open(bed->b, &seq, capacity, &err)) fail_msg("%s", err.text);
    return seq;
}

backend_seq bed_fork(struct bed *bed, backend_seq from, uint32_t positions, uint32_t capacity)
{
    struct error err = {""};
    backend_seq seq;
    if (bed->b->ops->seq_fork(bed->b, &seq, from, positions, capacity, &err)) fail_msg("%s", err.text);
    return seq;
}

void bed_run_together(struct bed *bed, const struct backend_job *jobs, uint32_t n)
{
    const struct backend_ops *ops = bed->b->ops;
    struct error err = {""};
    bool done[8] = {false};
    uint32_t left = n;
    for (uint32_t i = 0; i < n; i++)
        if (ops->start(bed->b, i, &jobs[i], &err)) fail_msg("%s", err.text);
    const uint64_t start = clock_ns();
    while (left) {
        for (uint32_t i = 0; i < n; i++) {
            struct mlp_step step;
            if (done[i]) continue;
            const enum backend_event e = ops->poll(bed->b, i, &step, &err);
            if (e == BACKEND_FAILED) fail_msg("%s", err.text);
            if (e == BACKEND_DONE) done[i] = true, left--;
            if (e != BACKEND_MLP) continue;
            feed_forward_answer(bed->mlp, &step);
            ops->resume(bed->b, i);
        }
        if (clock_ns() - start > DEADLINE_NS) fail_msg("%u jobs are not done after 60 s", left);
    }
}

void bed_run(struct bed *bed, uint32_t lane, const struct backend_job *job)
{
    const struct backend_ops *ops = bed->b->ops;
    struct error err = {""};
    struct mlp_step step;
    if (ops->start(bed->b, lane, job, &err)) fail_msg("%s", err.text);
    const uint64_t start = clock_ns();
    for (;;) {
        const enum backend_event e = ops->poll(bed->b, lane, &step, &err);
        if (e == BACKEND_FAILED) fail_msg("%s", err.text);
        if (e == BACKEND_DONE) return;
        if (e == BACKEND_MLP) {
            feed_forward_answer(bed->mlp, &step);
            ops->resume(bed->b, lane);
        }
        if (clock_ns() - start > DEADLINE_NS) fail_msg("a job is not done after 60 s");
    }
}

uint32_t bed_prefill(struct bed *bed, backend_seq seq, const int32_t *ids, uint32_t count, uint32_t chunk)
{
    uint32_t last = 0;
    for (uint32_t p = 0; p < count; p += chunk) {
        const uint32_t n = count - p < chunk ? count - p : chunk;
        const struct backend_job job = {.kind = BACKEND_MAIN,
                                        .seq = seq,
                                        .position = p,
                                        .tokens = n,
                                        .ids = ids + p,
                                        .logits_from = p + n == count ? n - 1 : n};
        bed_run(bed, 0, &job);
        last = n - 1;
    }
    return last;
}

int32_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

double relative_l2(const float *x, const float *reference, size_t n)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = (double)x[i] - (double)reference[i];
        d += e * e;
        r += (double)reference[i] * (double)reference[i];
    }
    return sqrt(d / r);
}
