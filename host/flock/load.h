/* load.h: every expert's weights, from the mapped checkpoint to the ducks. */
#ifndef DUCKD_HOST_FLOCK_LOAD_H
#define DUCKD_HOST_FLOCK_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "host/flock/transport.h"
#include "host/model/model.h"

/* Bytes of the largest element of any expert's weights: 1, 2, 4. */
uint32_t flock_element_bytes(const struct model *model);

/* -EINVAL: an expert's weights, shared ones and dense layers' included, are no e4m3 with scales of 128 x 128
 * blocks, so ducks cannot keep them as that. */
int flock_check_e4m3(const struct model *model, struct error *err);

/* First checks that all tensors are there with the shapes the config demands, then loads them in the order
 * of the files, in parallel, and returns when all ducks hold them. duck: (plan->ducks) their names, to show
 * how far they are. */
int flock_load(struct transport *t, const struct plan *plan, const struct model *model,
               const struct spec_duck *duck, struct pool *pool, struct error *err);
/* The same by the caller alone, showing nothing, until *stop. */
int flock_load_quietly(struct transport *t, const struct plan *plan, const struct model *model,
                       const _Atomic bool *stop, struct error *err);

#endif
