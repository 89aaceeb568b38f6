/* bed.h: a model with its backend and feed-forward, and jobs run to their end on it. */
#ifndef DUCKD_TESTS_CUDA_BED_H
#define DUCKD_TESTS_CUDA_BED_H

#include "host/backend/backend.h"
#include "tests/cuda/feed_forward.h"

struct bed {
    struct model model;
    struct pool *pool;
    struct feed_forward *mlp;
    struct backend *b;
};

struct bed_case {
    const char *dir;
    enum kv_dtype kv;
    enum shared_experts shared; // SHARED_BACKEND or SHARED_FLOCK
};
#define BED_CASES 6u
extern const struct bed_case bed_cases[BED_CASES]; // small models of every kind, KV of every type

/* The CUDA backend. NULL: there is none, as has been said; the program returns BED_SKIPPED. */
#define BED_SKIPPED 77
const struct backend_ops *bed_backend(void);

/* Fails the running test with the message of whatever fails. */
void bed_open(struct bed *bed, const struct backend_ops *ops, const struct bed_case *c, uint32_t lanes,
              uint32_t max_tokens);
void bed_close(struct bed *bed);

backend_seq bed_seq(struct bed *bed, uint32_t capacity);
backend_seq bed_fork(struct bed *bed, backend_seq from, uint32_t positions, uint32_t capacity);
/* Runs one job on one lane. */
void bed_run(struct bed *bed, uint32_t lane, const struct backend_job *job);
/* Runs jobs on lanes 0 .. n - 1 together. */
void bed_run_together(struct bed *bed, const struct backend_job *jobs, uint32_t n);
/* ids[0, count) from position 0 in jobs of up to `chunk`; logits of the last row only. Returns the row of the
 * last job that holds them. */
uint32_t bed_prefill(struct bed *bed, backend_seq seq, const int32_t *ids, uint32_t count, uint32_t chunk);

int32_t argmax(const float *x, size_t n);
double relative_l2(const float *x, const float *reference, size_t n);

#endif
