/* transport.h: the seam between the flock and whatever carries steps to ducks.
 *
 * The flock makes the plan, checks steps and reads the checkpoint; a transport holds the ducks' weights, has
 * steps computed and adds the partial sums along the tree. Calls come from the engine thread, except load(),
 * which worker threads call at the same time for different experts, and loading(), any thread's. */
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
    uint32_t element_bytes; // largest of the experts' weights in the checkpoint: 1, 2, 4
    enum wire_dtype activation, result;
};

/* One expert's matrix. Columns [column, column + bank's width) of the tensor's intermediate dimension. */
struct transport_matrix {
    uint32_t bank, expert;
    enum duck_matrix which;
    uint32_t column, tensor_width;
    const struct weight *weight;
    uint64_t source; // identifies the tensor's bytes: its file's path, size and time, and the place in it
};

/* What a duck gets of the weights that it lacked when they were expected. */
struct duck_loading {
    uint64_t total, held, under_way; // bytes; under_way: on their way to it now
    uint64_t ns;                     // in which some were
};

struct transport_ops {
    const char *name;
    bool network; // ducks are elsewhere: the flock's file describes ports, spec->net is set
    /* Network transports: finds the ducks and lowers the memory the spec gives them to what they have. Called
     * before the plan is made; open() goes on with the transport found, and with a plan that gives ducks that
     * are `absent` nothing. */
    int (*find)(struct transport **out, struct flock_spec *spec, struct error *err);
    int (*open)(struct transport **out, const struct transport_options *o, struct error *err);
    void (*close)(struct transport *t);
    /* Optional, both or none. expect(): load() will be given this matrix; all are expected before the first
     * is loaded. loading(): how far a duck is since. */
    void (*expect)(struct transport *t, const struct transport_matrix *m);
    void (*loading)(struct transport *t, uint32_t duck, struct duck_loading *out);
    int (*load)(struct transport *t, const struct transport_matrix *m, struct error *err);
    /* Optional: all matrices have been handed to load(); returns when all ducks hold all weights. */
    int (*loaded)(struct transport *t, struct error *err);
    /* The step is valid and the lane is free; *step is copied, what it points to is not. */
    int (*submit)(struct transport *t, uint32_t lane, const struct mlp_step *step, struct error *err);
    /* Optional. lost(): the duck whose silence is the cause of a failure, of submit(), poll() or between
     * steps, and what there is to say about it; -1: no failure, or another cause. drop() ends the session and
     * forgets that duck; resume() begins a new one with a plan that gives it nothing. Weights are loaded and
     * steps submitted again. */
    int (*lost)(struct transport *t, struct error *why); // why may be NULL
    int (*drop)(struct transport *t, uint32_t lost, struct error *err);
    /* Optional: a transport of its own whose only duck (number 0) is the dropped one `duck`, for another
     * thread to load weights while this one answers steps: open(), load(), loaded(), close(); the weights
     * stay with the duck. Likewise for one that was absent from the start. -ENODEV: the duck does not answer.
     * Closed before `host` is. take_back(): as drop(), with the duck one of the flock again. */
    int (*guest)(struct transport **out, struct transport *host, uint32_t duck, struct error *err);
    int (*take_back)(struct transport *t, uint32_t duck, struct error *err);
    int (*resume)(struct transport *t, const struct plan *plan, struct error *err);
    /* As flock_poll(). */
    int (*poll)(struct transport *t, uint32_t lane, bool wait, struct error *err);
    /* Optional: waits a moment for what ducks still have to say of finished steps, so that counters are
     * whole. */
    void (*settle)(const struct transport *t);
    void (*stats)(const struct transport *t, uint32_t duck, struct duck_stats *out); // all but the name
    void (*times)(const struct transport *t, struct flock_times *out);               // optional
};

/* Every transport's first member. */
struct transport {
    const struct transport_ops *ops;
};

extern const struct transport_ops transport_local;
extern const struct transport_ops transport_udp;
extern const struct transport_ops transport_dpdk;

static inline uint32_t transport_element_bytes(enum dtype t)
{
    return t == DTYPE_F8_E4M3 ? 1 : t == DTYPE_BF16 ? 2 : 4;
}

/* The checkpoint's tensor that a matrix is a part of. */
static inline struct duck_tensor transport_tensor(const struct transport_matrix *m, uint32_t hidden)
{
    return (struct duck_tensor){.data = m->weight->data,
                                .scales = m->weight->scales,
                                .element_bytes = transport_element_bytes(m->weight->dtype),
                                .hidden = hidden,
                                .width = m->tensor_width,
                                .which = m->which};
}

/* The message for a matrix that a duck cannot compute with: `why` and `where` from duck_core_load(). */
int transport_bad_weight(const struct transport_matrix *m, enum fp9_format format, int why, uint64_t where,
                         struct error *err);

#endif
