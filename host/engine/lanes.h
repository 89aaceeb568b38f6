/* lanes.h: the one scheduler: carries started backend jobs through all their layers, interleaved.
 *
 * Whichever lane publishes a step is handed to the flock, whichever is answered is resumed, so that one lane
 * can be on the backend while another is on the flock. Owns the lanes' states and times, not the backend and
 * not the flock. Engine thread only. A failed lane fails alone; no wait is longer than the timeout. */
#ifndef DUCKD_HOST_ENGINE_LANES_H
#define DUCKD_HOST_ENGINE_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "host/backend/backend.h"
#include "host/flock/mlp_step.h"

/* flock_submit() and flock_poll(), or a test's stand-in. */
struct flock_seam {
    int (*submit)(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err);
    int (*poll)(void *flock, uint32_t lane, bool wait, struct error *err);
    void *flock;
    bool works_in_wait; // waiting in poll computes this process's own ducks: that is not idling
};

struct lane_times {
    uint64_t backend_ns, flock_ns; // at the backend, at the flock
    uint64_t idle_ns;              // of these, with nothing for the engine thread to do
};

/* Of a lane since lanes_open(): where it was, and what it carried. */
struct lane_totals {
    uint64_t backend_ns, flock_ns, idle_ns; // together: the time since then; idle: without a job
    uint64_t jobs, tokens;                  // that were started
};

#define LANE_NONE UINT32_MAX

struct lanes;
/* NULL: no memory. */
struct lanes *lanes_open(struct backend *backend, const struct flock_seam *flock, uint32_t lanes,
                         uint32_t timeout_ms);
void lanes_close(struct lanes *l); // drops what was started

/* Where its steps go, for who wants to make some while no job is started. */
const struct flock_seam *lanes_flock(const struct lanes *l);

/* For tests: where its times come from; clock_ns() unless this is called. */
void lanes__set_clock(struct lanes *l, uint64_t (*clock)(void));

/* Without a job, and not waiting for a late answer to one that was given up. */
bool lanes_idle(struct lanes *l, uint32_t lane);

/* Starts a job; it advances in lanes_run(). With `follows`, the job continues the one started on that lane:
 * a layer begins only when the followed lane has left it, so positions may depend on each other layer by
 * layer. If the followed lane fails, so does this one. */
int lanes_start(struct lanes *l, uint32_t lane, const struct backend_job *job, uint32_t follows,
                struct error *err);

/* Advances all started jobs until none is left. done() comes once per job, rc 0 or negative with *err; the
 * lane is idle by then and logits are there; done() may start further jobs. */
typedef void lanes_done_fn(void *ctx, uint32_t lane, int rc, const struct error *err);
void lanes_run(struct lanes *l, lanes_done_fn *done, void *ctx);

/* Times of a lane since they were taken last. */
struct lane_times lanes_take_times(struct lanes *l, uint32_t lane);
/* Of the first `count` lanes, all at the same moment; each up to its last change of place. */
void lanes_totals(const struct lanes *l, struct lane_totals *out, uint32_t count);

#endif
