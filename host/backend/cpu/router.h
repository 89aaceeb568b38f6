/* router.h: from gate logits to chosen experts and their weights. Stateless. */
#ifndef DUCKD_HOST_BACKEND_CPU_ROUTER_H
#define DUCKD_HOST_BACKEND_CPU_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "host/model/config.h"

/* logits: (experts rounded up to 8), overwritten; bias: (experts); biased: (experts + groups) scratch. ids
 * ascending, weights beside them, routed_scale included. Ties go to the lower id. false: a logit is not
 * finite. */
bool router_choose(const struct model_config *c, float *logits, const float *bias, float *biased,
                   int32_t *ids, float *weights);

#endif
