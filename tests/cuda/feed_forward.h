/* feed_forward.h: a plain fp32 feed-forward that stands in for a flock: small models, whole experts in
 * memory. */
#ifndef DUCKD_TESTS_CUDA_FEED_FORWARD_H
#define DUCKD_TESTS_CUDA_FEED_FORWARD_H

#include "host/flock/mlp_step.h"
#include "host/model/model.h"
#include "host/util/pool.h"

struct feed_forward;

/* shared: it has the shared experts, too. */
int feed_forward_open(struct feed_forward **out, const struct model *model, struct pool *pool, bool shared,
                      struct error *err);
void feed_forward_close(struct feed_forward *f);
/* Fills step->y. */
void feed_forward_answer(struct feed_forward *f, const struct mlp_step *step);

#endif
