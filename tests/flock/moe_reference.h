/* moe_reference.h: the feed-forward in plain double precision, straight from the checkpoint: no slices, no
 * fp9, no ducks. */
#ifndef DUCKD_TESTS_FLOCK_MOE_REFERENCE_H
#define DUCKD_TESTS_FLOCK_MOE_REFERENCE_H

#include "host/flock/mlp_step.h"
#include "host/model/model.h"

/* y[tokens x hidden] of the step in double precision; always-on experts included. */
void moe_reference(const struct model *m, const struct mlp_step *step, double *y);

/* Relative L2 error of got against want. */
double relative_l2(const float *got, const double *want, size_t n);

#endif
