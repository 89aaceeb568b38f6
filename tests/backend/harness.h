/* harness.h: drives a backend without a flock: a plain reference of the feed-forward answers its steps.
 *
 * The reference dequantises whole matrices to fp32 through weight_row() and adds in ascending order; it
 * shares no code with the fp9 kernels. A row's answer depends on that row alone. */
#ifndef DUCKD_TESTS_BACKEND_HARNESS_H
#define DUCKD_TESTS_BACKEND_HARNESS_H

#include "host/backend/backend.h"

struct feed_forward;
struct feed_forward *feed_forward_new(const struct model *m);
void feed_forward_free(struct feed_forward *f);
void feed_forward_run(struct feed_forward *f, const struct mlp_step *step);

/* A model with a backend on it; every failure fails the running test with its message. */
struct house {
    struct model model;
    struct pool *pool;
    struct backend *backend;
    struct feed_forward *ff;
};
void house_open(struct house *h, const char *dir, unsigned threads, uint32_t max_tokens, enum kv_dtype kv,
                bool mtp);
void house_close(struct house *h);
/* Starts the job on the lane and answers its steps until it is done. */
void house_run(struct house *h, uint32_t lane, const struct backend_job *job);
backend_seq house_seq(struct house *h, uint32_t capacity);

/* sqrt(sum (a - b)^2 / sum b^2) */
double relative_l2(const float *a, const float *b, size_t n);

#endif
