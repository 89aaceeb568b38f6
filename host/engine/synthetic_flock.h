/* synthetic_flock.h: a flock that holds a few layers' experts and answers for all layers.
 *
 * Between lanes and flock: a step's layer becomes one that the flock holds, and its experts become as many
 * different ones of those that are there, so that a step reads as much memory as it would with all of them.
 * For synthetic models only: what comes back means nothing. Owns the shapes and the translated steps, not the
 * flock. */
#ifndef DUCKD_HOST_ENGINE_SYNTHETIC_FLOCK_H
#define DUCKD_HOST_ENGINE_SYNTHETIC_FLOCK_H

#include "host/engine/lanes.h"
#include "host/flock/flock.h"
#include "host/model/model.h"

/* What the flock is opened with: the same shape with so many MoE layers (and at most as many dense ones) and
 * experts. The MTP layer shares one of them. */
struct model_config synthetic_flock_config(const struct model_config *c, uint32_t layers, uint32_t experts);

struct synthetic_flock;
/* `held` is the flock's model and outlives it. NULL: no memory. */
struct synthetic_flock *synthetic_flock_open(struct flock *flock, const struct model *model,
                                             const struct model_config *held, uint32_t lanes,
                                             uint32_t max_tokens);
void synthetic_flock_close(struct synthetic_flock *f);
struct flock_seam synthetic_flock_seam(struct synthetic_flock *f, bool works_in_wait);

/* For tests: row by row, ids[tokens * top_k] of `experts` become `held` ones, ascending in a row, never twice
 * in a row; different ones stay different where `held` are enough. Weights move along. */
void synthetic_flock_choose(int32_t *ids, float *weights, uint32_t tokens, uint32_t top_k, uint32_t experts,
                            uint32_t held, uint32_t layer, int32_t *room);

#endif
