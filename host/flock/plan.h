/* plan.h: which duck holds which slices, and the one tree that adds them up.
 *
 * A plan maps the slices of every bank to ducks as runs, in proportion to the ducks' weights (measured
 * bandwidth), bounded by their memory; boundaries are put where aligned subtrees begin if that costs a duck
 * little. Pure arithmetic: no I/O, no ducks. The tree's shape depends only on the number of slices, so the
 * result's bits do not depend on the plan (fp9/fp9.h, "tree"). */
#ifndef DUCKD_HOST_FLOCK_PLAN_H
#define DUCKD_HOST_FLOCK_PLAN_H

#include <stdint.h>

#include "duck/duck_core.h"
#include "host/model/config.h"
#include "host/util/error.h"

struct plan_duck {
    double weight;         // share of the work, > 0
    uint64_t memory_bytes; // for weights; UINT64_MAX: no limit
};

struct plan_run {
    uint32_t duck, bank, first, count;
};

struct plan {
    uint32_t hidden, banks, ducks, runs;
    struct duck_bank_shape *bank; // (banks): bank i is layer i (the MTP layer last, if held)
    struct plan_run *run;         // (runs) ascending by (bank, first): every slice exactly once
    enum fp9_format format;       // of the weights in the ducks' memory
};

/* Banks of a model: dense layers one always-on expert, MoE layers routed + shared. */
int plan_make(struct plan *out, const struct model_config *c, enum fp9_format format, int with_mtp,
              const struct plan_duck *ducks, uint32_t duck_count, struct error *err);
/* The same banks with duck `lost` gone: only its slices move, as runs of their own. */
int plan_without(struct plan *out, const struct plan *old, uint32_t lost, const struct plan_duck *ducks,
                 struct error *err);
int plan_copy(struct plan *out, const struct plan *p, struct error *err);
/* A duck's part as a plan of its own, in which it is duck 0. */
int plan_part(struct plan *out, const struct plan *p, uint32_t duck, struct error *err);
void plan_free(struct plan *p);

/* A duck's part as its core takes it. run: room for the plan's runs; it and the plan's banks are the shape's.
 */
struct duck_shape plan_shape(const struct plan *p, uint32_t duck, struct duck_run *run);

/* Bytes of duck memory that a run of `count` slices of a bank needs. */
uint64_t plan_run_bytes(enum fp9_format format, uint32_t hidden, const struct duck_bank_shape *bank,
                        uint32_t count);

/* ---- the tree ---- */

/* Adds complete subtrees into the final vector. Nodes arrive in any order; whichever completes a pair adds
 * it, left + right. One reducer per (step, token block); memory is the caller's. */
struct tree_node {
    uint32_t first, level; // covers slices [first, first + 2^level)
    float *values;         // (n), owned by the caller; sums are made in place in the left child
};
/* nodes[count], ascending by `first`, covering all `slices`; returns the root's values (one of the nodes'
 * buffers). */
float *tree_reduce(struct tree_node *nodes, uint32_t count, uint32_t slices, uint64_t n);

#endif
