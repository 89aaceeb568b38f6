/* transport.h: the seam between the flock and whatever carries steps to ducks.
 *
 * The flock makes the plan, checks steps and reads the checkpoint; a transport holds the ducks' weights, has
 * steps computed and adds the partial sums along the tree. Calls come from the engine thread, except load(),
 * which worker threads call at the same time for different experts. */
#ifndef DUCKD_HOST_FLOCK_TRANSPORT_H
#define DUCKD_HOST_FLOCK_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "duck/duck_core.h"
#include "host/flock/flock.h"
#include "host/flock/plan.h"
#include "host/flock/spec.h"

struct transport;

struct transport_options {
    const struct plan *plan;      // outlives the transport
    const struct spec_duck *duck; // (plan->ducks), likewise
    struct pool *pool;
    uint32_t lanes, max_tokens, max_top_k;
    enum wire_dtype activation, result;
};

/* One expert's matrix. Columns [column, column + bank's width) of the tensor's intermediate dimension. */
struct transport_matrix {
    uint32_t bank, expert;
    enum duck_matrix which;
    uint32_t column, tensor_width;
    const struct weight *weight;
};

struct transport_ops {
    const char *name;
    int (*open)(struct transport **out, const struct transport_options *o, struct error *err);
    void (*close)(struct transport *t);
    int (*load)(struct transport *t, const struct transport_matrix *m, struct error *err);
    /* The step is valid and the lane is free; *step is copied, what it points to is not. */
    int (*submit)(struct transport *t, uint32_t lane, const struct mlp_step *step, struct error *err);
    /* As flock_poll(). */
    int (*poll)(struct transport *t, uint32_t lane, bool wait, struct error *err);
    void (*stats)(const struct transport *t, uint32_t duck, struct duck_stats *out); // all but the name
};

/* Every transport's first member. */
struct transport {
    const struct transport_ops *ops;
};

extern const struct transport_ops transport_local;

#endif
