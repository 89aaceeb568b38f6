/* lanes.c: polls every lane in turn; only when no lane moved does it wait, and then for the flock. */
#include "host/engine/lanes.h"

#include <errno.h>
#include <stdlib.h>

#include "host/util/clock.h"
#include "host/util/trace.h"

enum lane_state {
    LANE_IDLE,
    LANE_BACKEND,
    LANE_FLOCK,
    LANE_LATE, // given up while at the flock, which may still write y: busy until it answers
};

struct lane {
    enum lane_state state;
    uint32_t follows;
    uint32_t segments; // pieces of the backend's work done: one more than the layers left behind
    bool doomed;       // the followed lane failed
    uint64_t entered_ns, started_ns;
    const char *job; // its name in a trace
    uint32_t layer;  // of the step at the flock
    uint32_t position, tokens;
    struct lane_times times;
    struct lane_totals total; // but for idle_ns
};

struct lanes {
    struct backend *backend;
    struct flock_seam flock;
    uint32_t count, active;
    uint64_t timeout_ns;
    uint64_t (*clock)(void);
    struct lane *lane; // (count)
    uint64_t opened_ns;
    uint64_t idle_from_ns, idle_to_ns; // since when nothing has moved; 0: something has
    lanes_done_fn *done;
    void *ctx;
};

struct lanes *lanes_open(struct backend *backend, const struct flock_seam *flock, uint32_t lanes,
                         uint32_t timeout_ms)
{
    struct lanes *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->backend = backend;
    l->flock = *flock;
    l->clock = clock_ns;
    l->opened_ns = clock_ns();
    l->count = lanes;
    l->timeout_ns = (uint64_t)timeout_ms * 1000000u;
    l->lane = calloc(lanes, sizeof *l->lane);
    if (!l->lane) {
        free(l);
        return NULL;
    }
    for (uint32_t i = 0; i < lanes; i++) l->lane[i].follows = LANE_NONE;
    return l;
}

const struct flock_seam *lanes_flock(const struct lanes *l)
{
    return &l->flock;
}

void lanes_close(struct lanes *l)
{
    if (!l) return;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->lane[i].state != LANE_IDLE) l->backend->ops->cancel(l->backend, i);
    free(l->lane);
    free(l);
}

void lanes__set_clock(struct lanes *l, uint64_t (*clock)(void))
{
    l->clock = clock;
    l->opened_ns = clock();
}

bool lanes_idle(struct lanes *l, uint32_t lane)
{
    if (l->lane[lane].state == LANE_LATE && l->flock.poll(l->flock.flock, lane, false, NULL) != 0) {
        l->backend->ops->cancel(l->backend, lane);
        l->lane[lane].state = LANE_IDLE;
    }
    return l->lane[lane].state == LANE_IDLE;
}

static const char *job_name(const struct backend_job *job)
{
    if (job->kind == BACKEND_MTP) return "mtp";
    return job->logits_from > 0 ? "prefill chunk" : "decode"; // a chunk has logits for its last row at most
}

int lanes_start(struct lanes *l, uint32_t lane, const struct backend_job *job, uint32_t follows,
                struct error *err)
{
    struct lane *a = &l->lane[lane];
    if (!lanes_idle(l, lane)) return error_set(err, -EBUSY, "lane %u still has a job", lane);
    int rc = l->backend->ops->start(l->backend, lane, job, err);
    if (rc) return rc;
    uint64_t now = l->clock();
    *a = (struct lane){.state = LANE_BACKEND,
                       .follows = follows,
                       .entered_ns = now,
                       .started_ns = now,
                       .job = job_name(job),
                       .position = job->position,
                       .tokens = job->tokens,
                       .times = a->times,
                       .total = a->total};
    a->total.jobs++;
    a->total.tokens += job->tokens;
    l->active++;
    return 0;
}

struct lane_times lanes_take_times(struct lanes *l, uint32_t lane)
{
    struct lane_times t = l->lane[lane].times;
    l->lane[lane].times = (struct lane_times){0};
    return t;
}

void lanes_totals(const struct lanes *l, struct lane_totals *out, uint32_t count)
{
    uint64_t open = l->clock() - l->opened_ns;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = l->lane[i].total;
        uint64_t busy = out[i].backend_ns + out[i].flock_ns;
        out[i].idle_ns = open > busy ? open - busy : 0;
    }
}

/* The job is over. Lanes that follow are released, or fail with it. */
static void finish(struct lanes *l, uint32_t lane, enum lane_state state, int rc, const struct error *err)
{
    const struct lane *a = &l->lane[lane];
    trace_span(TRACE_LANE, lane, a->job, a->started_ns, l->clock(), TRACE_NO_LAYER, a->position, a->tokens);
    l->lane[lane].state = state;
    l->active--;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->lane[i].follows == lane) {
            l->lane[i].follows = LANE_NONE;
            l->lane[i].doomed = rc != 0;
        }
    l->done(l->ctx, lane, rc, err);
}

/* The lane's job cannot go on; the flock does not hold it any more. */
static void drop(struct lanes *l, uint32_t lane, int rc, const struct error *err)
{
    l->backend->ops->cancel(l->backend, lane);
    finish(l, lane, LANE_IDLE, rc, err);
}

static void drop_doomed(struct lanes *l, uint32_t lane)
{
    struct error err;
    int rc =
        error_set(&err, -ECANCELED, "lane %u: the position before %u failed", lane, l->lane[lane].position);
    drop(l, lane, rc, &err);
}

/* The lane has been at the backend or at the flock since it entered. `layer`: what it did there. */
static void leave(struct lanes *l, uint32_t lane, uint32_t layer)
{
    struct lane *a = &l->lane[lane];
    uint64_t now = l->clock();
    bool flock = a->state == LANE_FLOCK;
    *(flock ? &a->times.flock_ns : &a->times.backend_ns) += now - a->entered_ns;
    *(flock ? &a->total.flock_ns : &a->total.backend_ns) += now - a->entered_ns;
    const char *name = flock ? "flock" : "backend";
    trace_span(TRACE_LANE, lane, name, a->entered_ns, now, layer, a->position, a->tokens);
    trace_span(flock ? TRACE_FLOCK : TRACE_BACKEND, lane, name, a->entered_ns, now, layer, a->position,
               a->tokens);
    a->entered_ns = now;
}

static bool overdue(const struct lanes *l, const struct lane *a)
{
    return l->clock() - a->entered_ns > l->timeout_ns;
}

/* Must not enter its next layer yet. */
static bool held_back(const struct lanes *l, const struct lane *a)
{
    return a->follows != LANE_NONE && l->lane[a->follows].segments <= a->segments;
}

static bool advance_backend(struct lanes *l, uint32_t lane)
{
    struct lane *a = &l->lane[lane];
    if (a->doomed) {
        drop_doomed(l, lane);
        return true;
    }
    if (held_back(l, a)) return false;
    struct mlp_step step = {0};
    struct error err = {""};
    switch (l->backend->ops->poll(l->backend, lane, &step, &err)) {
    case BACKEND_BUSY:
        if (!overdue(l, a)) return false;
        error_set(&err, -ETIMEDOUT, "lane %u: positions %u to %u did not leave the %s backend within %.3g s",
                  lane, a->position, a->position + a->tokens - 1, l->backend->ops->name,
                  (double)l->timeout_ns * 1e-9);
        drop(l, lane, -ETIMEDOUT, &err);
        return true;
    case BACKEND_MLP: {
        leave(l, lane, step.layer);
        a->segments++;
        a->layer = step.layer;
        a->state = LANE_FLOCK;
        int rc = l->flock.submit(l->flock.flock, lane, &step, &err);
        if (rc) drop(l, lane, rc, &err);
        return true;
    }
    case BACKEND_DONE:
        leave(l, lane, TRACE_NO_LAYER);
        finish(l, lane, LANE_IDLE, 0, &err);
        return true;
    case BACKEND_FAILED:
        break;
    }
    leave(l, lane, TRACE_NO_LAYER);
    drop(l, lane, -EIO, &err);
    return true;
}

static bool advance_flock(struct lanes *l, uint32_t lane, bool wait)
{
    struct lane *a = &l->lane[lane];
    struct error err = {""};
    int answer = l->flock.poll(l->flock.flock, lane, wait, &err);
    if (answer == 0 && !overdue(l, a)) return false;
    leave(l, lane, a->layer);
    if (answer > 0 && a->doomed) {
        drop_doomed(l, lane);
    } else if (answer > 0) {
        a->state = LANE_BACKEND;
        l->backend->ops->resume(l->backend, lane);
    } else if (answer < 0) {
        drop(l, lane, answer, &err);
    } else {
        int rc = error_set(&err, -ETIMEDOUT,
                           "layer %u of positions %u to %u: no answer from the flock within %.3g s", a->layer,
                           a->position, a->position + a->tokens - 1, (double)l->timeout_ns * 1e-9);
        finish(l, lane, LANE_LATE, rc, &err);
    }
    return true;
}

/* Polling in vain comes in many short waits: they are one span of the trace while nothing moves. */
static void note_idle(struct lanes *l, uint64_t from, uint64_t to)
{
    if (l->idle_from_ns == 0) l->idle_from_ns = from;
    l->idle_to_ns = to;
}

static void end_idle(struct lanes *l)
{
    if (l->idle_from_ns > 0)
        trace_span(TRACE_ENGINE, 0, "idle", l->idle_from_ns, l->idle_to_ns, TRACE_NO_LAYER, 0, 0);
    l->idle_from_ns = 0;
}

/* No lane moved. While the backend has work its flags are polled on, unless ducks need this thread; else the
 * oldest step is waited for. */
static void wait_for_one(struct lanes *l)
{
    uint32_t oldest = LANE_NONE;
    bool backend_busy = false;
    for (uint32_t i = 0; i < l->count; i++) {
        const struct lane *a = &l->lane[i];
        if (a->state == LANE_BACKEND && !held_back(l, a)) backend_busy = true;
        if (a->state == LANE_FLOCK && (oldest == LANE_NONE || a->entered_ns < l->lane[oldest].entered_ns))
            oldest = i;
    }
    uint64_t began = l->clock();
    bool idle = true;
    if (oldest == LANE_NONE || (backend_busy && !l->flock.works_in_wait)) {
        __builtin_ia32_pause();
    } else {
        advance_flock(l, oldest, true);
        idle = !l->flock.works_in_wait;
    }
    uint64_t now = l->clock(), spent = idle ? now - began : 0;
    if (idle) note_idle(l, began, now);
    for (uint32_t i = 0; i < l->count; i++)
        if (l->lane[i].state == LANE_BACKEND || l->lane[i].state == LANE_FLOCK)
            l->lane[i].times.idle_ns += spent;
}

void lanes_run(struct lanes *l, lanes_done_fn *done, void *ctx)
{
    l->done = done;
    l->ctx = ctx;
    while (l->active > 0) {
        bool moved = false;
        for (uint32_t i = 0; i < l->count; i++) {
            if (l->lane[i].state == LANE_BACKEND)
                moved |= advance_backend(l, i);
            else if (l->lane[i].state == LANE_FLOCK)
                moved |= advance_flock(l, i, false);
        }
        if (!moved)
            wait_for_one(l);
        else
            end_idle(l);
    }
    end_idle(l);
}
