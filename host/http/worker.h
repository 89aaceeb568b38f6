/* worker.h: the engine thread as the HTTP thread sees it.
 *
 * The thread opens the engine, then sleeps or runs rounds. Everything crosses under one mutex that is held
 * for moments only: jobs go in, outputs come out, `notify` (called on the engine thread) wakes the reader.
 * How many jobs may be outstanding is the caller's to bound. All functions are the HTTP thread's. */
#ifndef DUCKD_HOST_HTTP_WORKER_H
#define DUCKD_HOST_HTTP_WORKER_H

#include "host/http/job.h"

/* STRANDED: too few ducks are there to hold the model; READY again once there are more. */
enum worker_state { WORKER_LOADING, WORKER_READY, WORKER_STRANDED, WORKER_FAILED };

struct worker_options {
    const struct tokenizer *tokenizer;
    const struct chat_encoding *chat;
    uint32_t vocab;
    int (*load)(void *ctx, struct engine **out, struct error *err);
    void *ctx;
    void (*notify)(void *ctx); // there are outputs, or the state has changed
    void *notify_ctx;
};

/* What the engine last said about itself; refreshed a few times a second while it works. Idle time is exact
 * while it sleeps. */
#define WORKER_MAX_DUCKS 64u
#define WORKER_MAX_LANES 256u
struct worker_figures {
    uint64_t taken_ns;
    uint32_t ducks; // entries of `duck`
    struct duck_stats duck[WORKER_MAX_DUCKS];
    bool networked; // `times` is filled
    struct flock_times times;
    uint32_t lanes; // entries of `lane`
    struct lane_totals lane[WORKER_MAX_LANES];
    uint64_t memory_bytes; // backend: weights and KV
};

struct worker;
int worker_open(struct worker **out, const struct worker_options *o, struct error *err);
enum worker_state worker_state(struct worker *w, struct error *failure); // failure: of the last two
void worker_submit(struct worker *w, struct job *j);
void worker_cancel(struct worker *w, struct job *j);
/* The next job with output, NULL: none. Its output is moved to *out. */
struct job *worker_take(struct worker *w, struct job_output *out);
void worker_figures(struct worker *w, struct worker_figures *out);
/* Cancels what is left and ends the thread. Every job has to be freed by its owner. */
void worker_close(struct worker *w);

#endif
