/* worker.c: the loop of the engine thread. */
#include "host/http/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"
#include "host/util/log.h"

#define FIGURES_NS 250000000u // between two looks at the engine's counters
#define LOOK_NS 500000000u    // at a network's ducks, while nothing is asked

struct worker {
    struct worker_options o;
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct job *inbox, **inbox_end;
    struct job *ready, **ready_end;
    struct worker_figures figures;
    enum worker_state state;
    struct error failure;
    bool stopping, poked; // poked: somebody was cancelled
    bool asleep;          // nothing has happened since `figures` were taken

    // the engine thread's alone
    struct engine *engine;
    struct job *active;
    struct job_text text;
};

/* ---- outputs ---- */

/* Behind what waits already; grows the last piece where no further one can be. */
static void enqueue(struct job *j, struct job_output *out)
{
    struct job_output *last = j->last ? j->last : &j->out, *piece = NULL;
    if (j->ready && j->waiting < JOB_MAX_WAITING) piece = malloc(sizeof *piece);
    if (!piece) {
        job_output_add(last, out);
        return;
    }
    *piece = *out;
    *out = (struct job_output){0};
    last->next = piece;
    j->last = piece;
    j->waiting++;
}

/* The first piece. */
static struct job_output dequeue(struct job *j)
{
    struct job_output first = j->out, *next = first.next;
    first.next = NULL;
    if (next) {
        j->out = *next;
        if (j->last == next) j->last = NULL;
        j->waiting--;
        free(next);
    } else {
        j->out = (struct job_output){0};
    }
    return first;
}

static void post(struct job *j, struct job_output *out)
{
    struct worker *w = j->worker;
    bool wake = false;
    pthread_mutex_lock(&w->mutex);
    enqueue(j, out);
    if (!j->ready) {
        j->ready = true;
        j->next_ready = NULL;
        wake = w->ready == NULL;
        *w->ready_end = j;
        w->ready_end = &j->next_ready;
    }
    pthread_mutex_unlock(&w->mutex);
    if (wake) w->o.notify(w->o.notify_ctx);
}

struct job *worker_take(struct worker *w, struct job_output *out)
{
    pthread_mutex_lock(&w->mutex);
    struct job *j = w->ready;
    if (j) {
        bool more = j->out.next;
        *out = dequeue(j);
        if (!more) {
            w->ready = j->next_ready;
            if (!w->ready) w->ready_end = &w->ready;
            j->ready = false;
        }
    }
    pthread_mutex_unlock(&w->mutex);
    return j;
}

/* ---- callbacks of the engine ---- */

static bool on_token(void *ctx, const struct generated *g)
{
    struct job *j = ctx;
    if (atomic_load_explicit(&j->cancelled, memory_order_relaxed)) return false;
    struct job_output out = {0};
    bool hit = job_token(j, &j->worker->text, g, &out);
    if (out.content.length || out.reasoning.length || out.logprob_count || out.call_count ||
        out.content.failed || g->index == 0)
        post(j, &out);
    else
        job_output_free(&out); // it may own memory without a byte in it
    return !hit;
}

static void on_prefill(void *ctx, uint32_t done, uint32_t total)
{
    struct job_output out = {.prefill_done = done, .prefill_total = total};
    post(ctx, &out);
}

/* ---- the loop ---- */

/* The job's last output; it belongs to the HTTP thread afterwards. */
static void finish(struct job *j, const struct generation_result *result)
{
    struct job_output out = {.finished = true, .result = *result, .reasoning_tokens = j->reasoning_tokens};
    // Ended by on_token() for that reason, which the engine cannot tell from a stop string.
    if (result->reason == FINISH_STOP && atomic_load(&j->cancelled)) out.result.reason = FINISH_CANCELLED;
    if (out.result.reason == FINISH_STOP || out.result.reason == FINISH_LENGTH)
        job_flush(j, &j->worker->text, &out);
    if (j->tools) out.calls = tool_parser_calls(j->tools);
    post(j, &out);
}

static void begin(struct worker *w, struct job *j)
{
    struct generation_result failed = {.reason = FINISH_ERROR};
    j->worker = w;
    j->in_reasoning = j->thinking;
    if (atomic_load(&j->cancelled)) {
        failed.reason = FINISH_CANCELLED;
        finish(j, &failed);
        return;
    }
    const struct generation_request r = {.prompt = j->prompt.id,
                                         .prompt_count = (uint32_t)j->prompt.count,
                                         .max_tokens = j->max_tokens,
                                         .ids_only = !j->logprobs,
                                         .sampling = j->sampling,
                                         .on_token = on_token,
                                         .on_prefill = on_prefill,
                                         .ctx = j};
    failed.code = engine_start(w->engine, &j->generation, &r, &failed.error);
    if (failed.code) {
        finish(j, &failed);
        return;
    }
    j->next = w->active;
    w->active = j;
}

static void reap(struct worker *w)
{
    for (struct job **at = &w->active, *j; (j = *at);) {
        if (atomic_load(&j->cancelled)) generation_cancel(j->generation);
        if (!generation_done(j->generation)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        struct generation_result result = *generation_result(j->generation);
        generation_free(j->generation);
        finish(j, &result);
    }
}

/* Whether one has ended that reap() has not told of. */
static bool any_done(const struct worker *w)
{
    const struct job *j = w->active;
    while (j && !generation_done(j->generation)) j = j->next;
    return j;
}

static void take_figures(struct worker *w, bool now)
{
    uint64_t ns = clock_ns();
    if (!now && ns - w->figures.taken_ns < FIGURES_NS) return;
    struct worker_figures *f = malloc(sizeof *f);
    if (!f) return;
    f->taken_ns = ns;
    struct flock *flock = engine_flock(w->engine);
    struct backend *b = engine_backend(w->engine);
    f->ducks = flock ? flock_ducks(flock) : 0; // none in an engine that was assembled without
    if (f->ducks > WORKER_MAX_DUCKS) f->ducks = WORKER_MAX_DUCKS;
    for (uint32_t i = 0; i < f->ducks; i++) flock_duck_stats(flock, i, &f->duck[i]);
    f->networked = flock && flock_times(flock, &f->times);
    f->lanes = engine_lanes(w->engine);
    if (f->lanes > WORKER_MAX_LANES) f->lanes = WORKER_MAX_LANES;
    engine_lane_totals(w->engine, f->lane, f->lanes);
    f->memory_bytes = b->ops->memory_bytes(b);
    pthread_mutex_lock(&w->mutex);
    w->figures = *f;
    pthread_mutex_unlock(&w->mutex);
    free(f);
}

static void change_state(struct worker *w, enum worker_state state, const struct error *err)
{
    pthread_mutex_lock(&w->mutex);
    w->state = state;
    w->failure = *err;
    pthread_mutex_unlock(&w->mutex);
    w->o.notify(w->o.notify_ctx);
}

/* Ducks go and come back while nothing is asked, too. */
static void look_at_flock(struct worker *w)
{
    struct error why = {""};
    struct flock *flock = engine_flock(w->engine);
    enum worker_state state = flock && flock_look(flock, &why) ? WORKER_STRANDED : WORKER_READY;
    if (state == w->state) return; // written by this thread only
    if (state == WORKER_STRANDED)
        log_notice("no requests are taken: %s", why.text);
    else
        log_notice("requests are taken again");
    change_state(w, state, &why);
}

/* Sleeps until there is something to do, for `longest_ns` at most; the new jobs, in order. False: time to
 * end. */
static bool next_jobs(struct worker *w, uint64_t longest_ns, struct job **jobs)
{
    const uint64_t until = longest_ns < UINT64_MAX ? clock_ns() + longest_ns : UINT64_MAX;
    bool late = false;
    pthread_mutex_lock(&w->mutex);
    w->asleep = true;
    while (!w->active && !w->inbox && !w->stopping && !w->poked && !late)
        if (until < UINT64_MAX)
            late = !clock_wait(&w->wake, &w->mutex, until);
        else
            pthread_cond_wait(&w->wake, &w->mutex);
    w->asleep = false;
    *jobs = w->inbox;
    w->inbox = NULL;
    w->inbox_end = &w->inbox;
    w->poked = false;
    bool go_on = !w->stopping;
    pthread_mutex_unlock(&w->mutex);
    return go_on;
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct error err = {""};
    if (w->o.load(w->o.ctx, &w->engine, &err)) {
        change_state(w, WORKER_FAILED, &err);
        return NULL;
    }
    take_figures(w, true);
    change_state(w, WORKER_READY, &err);
    struct job *jobs;
    for (;;) {
        uint64_t longest_ns = engine_write_behind(w->engine);
        if (w->figures.networked && longest_ns > LOOK_NS) longest_ns = LOOK_NS;
        if (!next_jobs(w, longest_ns, &jobs)) break;
        while (jobs) {
            struct job *j = jobs;
            jobs = j->next;
            begin(w, j);
        }
        reap(w); // whoever left before this round
        if (w->active) engine_step(w->engine);
        take_figures(w, any_done(w)); // whoever hears of the end may ask for them at once
        look_at_flock(w);             // or why, if it was for want of ducks
        reap(w);
        take_figures(w, !w->active); // from here on nothing changes them while it sleeps
    }
    while (w->active) {
        struct job *j = w->active;
        w->active = j->next;
        generation_free(j->generation);
    }
    engine_close(w->engine);
    return NULL;
}

/* ---- the HTTP thread's side ---- */

int worker_open(struct worker **out, const struct worker_options *o, struct error *err)
{
    struct worker *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, -ENOMEM, "no memory for the engine thread");
    w->o = *o;
    w->inbox_end = &w->inbox;
    w->ready_end = &w->ready;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->text = (struct job_text){.tokenizer = o->tokenizer,
                                .chat = o->chat,
                                .vocab = o->vocab,
                                .piece = malloc(tokenizer_max_text(o->tokenizer) + 32)};
    int rc = w->text.piece ? pthread_create(&w->thread, NULL, run, w) : ENOMEM;
    w->started = rc == 0;
    if (rc) {
        worker_close(w);
        return error_set(err, -rc, "the engine thread cannot be started: %s", strerror(rc));
    }
    *out = w;
    return 0;
}

enum worker_state worker_state(struct worker *w, struct error *failure)
{
    pthread_mutex_lock(&w->mutex);
    enum worker_state state = w->state;
    if (failure) *failure = w->failure;
    pthread_mutex_unlock(&w->mutex);
    return state;
}

void worker_submit(struct worker *w, struct job *j)
{
    pthread_mutex_lock(&w->mutex);
    j->next = NULL;
    *w->inbox_end = j;
    w->inbox_end = &j->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

void worker_cancel(struct worker *w, struct job *j)
{
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&w->mutex);
    w->poked = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

void worker_figures(struct worker *w, struct worker_figures *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->figures;
    if (w->asleep)
        for (uint32_t i = 0; i < out->lanes; i++) out->lane[i].idle_ns += clock_ns() - out->taken_ns;
    pthread_mutex_unlock(&w->mutex);
}

void worker_close(struct worker *w)
{
    if (!w) return;
    if (w->started) {
        pthread_mutex_lock(&w->mutex);
        w->stopping = true;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->mutex);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    free(w->text.piece);
    free(w);
}
