/* load.h: every expert's weights, from the mapped checkpoint to the ducks. */
#ifndef DUCKD_HOST_FLOCK_LOAD_H
#define DUCKD_HOST_FLOCK_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "host/flock/transport.h"
#include "host/model/model.h"

/* Bytes of the largest element of any expert's weights: 1, 2, 4. */
uint32_t flock_element_bytes(const struct model *model);

/* First checks that all tensors are there with the shapes the config demands, then loads them in the order
 * of the files, in parallel. Without a pool: by the caller alone, silently, until *stop. */
int flock_load(struct transport *t, const struct plan *plan, const struct model *model, struct pool *pool,
               const _Atomic bool *stop, struct error *err);

#endif
