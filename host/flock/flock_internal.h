/* flock_internal.h: shared by flock.c and recover.c; a test puts a flock together from its own parts. */
#ifndef DUCKD_HOST_FLOCK_FLOCK_INTERNAL_H
#define DUCKD_HOST_FLOCK_FLOCK_INTERNAL_H

#include "host/flock/nursery.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"

/* A step that has not been answered: when the session changes under it, it is computed again. */
struct flock_lane {
    struct mlp_step step;
    bool busy;
    uint64_t number;
};

struct flock {
    struct model_config config;
    uint32_t lanes, max_tokens;
    struct flock_spec spec;
    struct plan plan;    // of the ducks that are there
    char plan_path[600]; // of the file that keeps it; empty: none
    struct transport *transport;
    struct transport_options options; // it was opened with
    bool opened;
    const struct model *model; // outlives the flock
    struct pool *pool;
    struct flock_lane *lane; // (lanes)
    uint64_t submitted;
    // once a duck has been lost
    struct plan home;                      // of all ducks
    uint32_t losts, lost[FLOCK_MAX_DUCKS]; // in the order of their loss
    struct nursery *nursery;
    bool stranded;            // those that are there cannot hold the model: there is no session
    struct error stranded_by; // why
};

/* All weights to where the plan wants them. */
int flock__load(struct flock *f, struct error *err);

/* Ducks that are absent from the start are lost: the others' plan, which opens the session; once it is open
 * the absent ones are looked for. */
int flock__begin_without(struct flock *f, struct error *err);
int flock__look_for_absent(struct flock *f, struct error *err);

/* After the failure `rc`: 0 if a lost duck was the cause and the others have taken over. Another one may be
 * lost meanwhile. */
int flock__take_over(struct flock *f, int rc, struct error *err);
/* If a lost duck is whole again it takes part from now on. */
int flock__take_back(struct flock *f, struct error *err);

#endif
