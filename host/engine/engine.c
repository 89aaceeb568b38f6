/* engine.c: the generations of one engine: who has a lane, who waits, what runs in a round. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/engine_internal.h"
#include "host/util/clock.h"
#include "host/util/trace.h"

int engine__assemble(struct engine **out, const struct model *model, struct backend *backend,
                     const struct flock_seam *flock, const struct engine_settings *settings,
                     struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return error_set(err, -ENOMEM, "no memory for the engine");
    e->model = model;
    e->backend = backend;
    e->set = *settings;
    prefill_share_begin(&e->share, settings->cut_anywhere, settings->prefill_chunk);
    if (!e->set.clock) e->set.clock = clock_ns;
    e->owner = calloc(settings->lanes, sizeof(struct generation *));
    e->lanes = lanes_open(backend, flock, settings->lanes, settings->step_timeout_ms);
    if (settings->prefix_cache_bytes)
        e->prefixes = prefix_cache_open(settings->prefix_cache_bytes, settings->bytes_per_position);
    if (!e->owner || !e->lanes || (settings->prefix_cache_bytes && !e->prefixes)) {
        engine_close(e);
        return error_set(err, -ENOMEM, "no memory for %u lanes", settings->lanes);
    }
    *out = e;
    return 0;
}

/* Releases what has ended. */
static void reap(struct engine *e)
{
    struct generation **at = &e->first;
    while (*at) {
        struct generation *g = *at;
        if (g->cancelled && g->stage != STAGE_DONE) generation__end(g, FINISH_CANCELLED);
        if (g->stage != STAGE_DONE) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        g->next = NULL;
        generation__release(g);
        if (g->free_wanted) free(g);
    }
}

void engine_close(struct engine *e)
{
    if (!e) return;
    for (struct generation *g = e->first; g; g = g->next) generation__end(g, FINISH_CANCELLED);
    reap(e);
    lanes_close(e->lanes);
    prefix_cache_close(e->prefixes); // hands what it holds to the store
    kv_store_close(e->store);
    free(e->owner);
    if (e->close_parts) e->close_parts(&e->parts);
    free(e);
}

const struct model *engine_model(const struct engine *e)
{
    return e->model;
}

struct flock *engine_flock(struct engine *e)
{
    return e->parts.flock;
}

struct backend *engine_backend(struct engine *e)
{
    return e->backend;
}

uint32_t engine_lanes(const struct engine *e)
{
    return e->set.lanes;
}

void engine_lane_totals(const struct engine *e, struct lane_totals *out, uint32_t count)
{
    lanes_totals(e->lanes, out, count);
}

double engine_break_even(const struct engine *e)
{
    return drafts_break_even(&e->drafts, 1);
}

static int check_request(const struct engine *e, const struct generation_request *r, struct error *err)
{
    const struct model_config *c = &e->model->config;
    if (r->prompt_count == 0) return error_set(err, -EINVAL, "the prompt has no tokens");
    if (r->prompt_count > c->max_positions)
        return error_set(err, -E2BIG, "the prompt has %u tokens; the model has %u positions", r->prompt_count,
                         c->max_positions);
    for (uint32_t i = 0; i < r->prompt_count; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= c->vocab_size)
            return error_set(err, -EINVAL, "prompt token %u is %d; the vocabulary has %u", i, r->prompt[i],
                             c->vocab_size);
    return sampling_check(&r->sampling, c->vocab_size, err);
}

int engine_start(struct engine *e, struct generation **out, const struct generation_request *r,
                 struct error *err)
{
    int rc = check_request(e, r, err);
    if (rc) return rc;
    struct generation *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, -ENOMEM, "no memory for a generation");
    g->engine = e;
    g->request = *r;
    g->request.prompt = NULL;
    g->lane[0] = g->lane[1] = g->borrowed = LANE_NONE;
    g->prompt = malloc(r->prompt_count * sizeof *g->prompt);
    g->sampler = sampler_open(e->model->config.vocab_size, &r->sampling);
    if (!g->prompt || !g->sampler) {
        generation__release(g);
        free(g);
        return error_set(err, -ENOMEM, "no memory for a generation with %u prompt tokens", r->prompt_count);
    }
    memcpy(g->prompt, r->prompt, r->prompt_count * sizeof *g->prompt);
    // Tokens end where positions end; a prompt that fills them all still has the logits for one token.
    uint64_t limit = r->max_tokens ? (uint64_t)r->prompt_count + r->max_tokens : UINT64_MAX;
    if (limit > e->model->config.max_positions) limit = e->model->config.max_positions;
    g->limit = limit > r->prompt_count ? (uint32_t)limit : r->prompt_count + 1;
    g->result.prompt_tokens = r->prompt_count;
    g->started_ns = clock_ns();
    g->turn = e->turns++;

    struct generation **last = &e->first;
    while (*last) last = &(*last)->next;
    *last = g;
    *out = g;
    return 0;
}

/* Gives a waiting generation its lanes: two if drafts are verified on two. */
static bool take_lanes(struct engine *e, struct generation *g)
{
    uint32_t want = e->set.mtp && e->set.verify == MTP_TWO_LANES && e->set.lanes > 1 ? 2 : 1, have = 0;
    uint32_t found[2] = {LANE_NONE, LANE_NONE};
    for (uint32_t i = 0; i < e->set.lanes && have < want; i++)
        if (!e->owner[i] && lanes_idle(e->lanes, i)) found[have++] = i;
    if (have < want) return false;
    for (uint32_t i = 0; i < want; i++) {
        g->lane[i] = found[i];
        e->owner[found[i]] = g;
    }
    return true;
}

/* Lanes go to those who wait in the order they came. */
static void admit(struct engine *e)
{
    bool active = false;
    for (struct generation *g = e->first; g; g = g->next) {
        if (g->stage == STAGE_WAITING && !take_lanes(e, g)) {
            if (active) return;
            int rc = error_set(&g->result.error, -EBUSY,
                               "no lane: all %u still wait for answers from the flock", e->set.lanes);
            generation__fail(g, rc);
            continue;
        }
        if (g->stage == STAGE_WAITING) generation__admit(g);
        active |= g->stage != STAGE_DONE;
    }
}

static void lane_done(void *ctx, uint32_t lane, int rc, const struct error *err)
{
    struct engine *e = ctx;
    generation__lane_done(e->owner[lane], lane, rc, err);
}

uint32_t engine__borrow_lane(struct engine *e, struct generation *g)
{
    for (uint32_t i = 0; i < e->set.lanes; i++) {
        if (e->owner[i] || !lanes_idle(e->lanes, i)) continue;
        e->owner[i] = g;
        return i;
    }
    return LANE_NONE;
}

static void return_lane(struct engine *e, struct generation *g)
{
    if (g->borrowed != LANE_NONE) e->owner[g->borrowed] = NULL;
    g->borrowed = LANE_NONE;
}

/* What the round under way was, for the trace and for what drafts cost. */
struct round {
    uint64_t began_ns;
    uint32_t prefilling, prefill_rows, with_drafts, without, rows;
};

/* Whose prompt has waited longest for a part of a round. */
static struct generation *next_prefill(struct engine *e, uint64_t before)
{
    struct generation *next = NULL;
    for (struct generation *g = e->first; g; g = g->next)
        if (g->stage == STAGE_PREFILL && g->turn < before && (!next || g->turn < next->turn)) next = g;
    return next;
}

/* Prompts take turns, as many in a round as there is room for. */
static void begin_prefill(struct engine *e, struct round *r)
{
    uint32_t room = prefill_share_rows(&e->share, e->decoding);
    const uint64_t round = e->turns + 1;
    for (struct generation *g; room > 0 && (g = next_prefill(e, round));) {
        g->rows = prefill_share_cut(&e->share, g->sequence.count - g->sequence.main_done, room);
        if (g->rows == 0) break;
        g->turn = ++e->turns;
        r->prefilling++;
        generation__begin_round(g); // may make it two chunks
        r->prefill_rows += g->rows;
        room -= g->rows < room ? g->rows : room;
    }
    r->rows += r->prefill_rows;
}

static struct round begin_round(struct engine *e)
{
    struct round r = {.began_ns = clock_ns()};
    e->decoding = 0;
    for (struct generation *g = e->first; g; g = g->next) {
        if (g->stage != STAGE_DECODE) continue;
        e->decoding++;
        generation__begin_round(g);
        r.rows += 1u + g->verifying;
    }
    begin_prefill(e, &r);
    return r;
}

/* A round counts if everybody did the same: verified a draft and made the next one, or neither. */
static void end_round(struct engine *e, struct round *r, uint64_t spent_ns)
{
    bool mixed = false;
    for (struct generation *g = e->first; g; g = g->next) {
        return_lane(e, g);
        if (g->stage != STAGE_DECODE && g->stage != STAGE_DONE) continue;
        bool with = g->verifying && g->drafting, without = !g->verifying && !g->drafting;
        r->with_drafts += with;
        r->without += without;
        mixed |= g->stage == STAGE_DONE || g->cancelled || g->catching_up || (!with && !without);
    }
    static const char *const names[] = {"round with drafts", "round without drafts", "round, mixed",
                                        "round of prefill"};
    mixed |= r->with_drafts > 0 && r->without > 0;
    unsigned kind = r->prefilling ? 3 : mixed ? 2 : r->with_drafts ? 0 : 1;
    prefill_share_measured(&e->share, e->decoding, r->prefill_rows, spent_ns);
    trace_span(TRACE_ENGINE, 0, names[kind], r->began_ns, clock_ns(), TRACE_NO_LAYER, 0, r->rows);
    if (kind < 2 && e->decoding > 0) drafts_measured(&e->drafts, e->decoding, kind == 0, spent_ns);
}

bool engine_step(struct engine *e)
{
    if (e->in_step) return true;
    e->in_step = true;
    admit(e);
    uint64_t began = e->set.clock();
    struct round r = begin_round(e);
    lanes_run(e->lanes, lane_done, e);
    end_round(e, &r, e->set.clock() - began);
    e->in_step = false;
    reap(e);
    return e->first != NULL;
}

bool generation_done(const struct generation *g)
{
    return g->stage == STAGE_DONE;
}

const struct generation_result *generation_result(const struct generation *g)
{
    return &g->result;
}

void generation_cancel(struct generation *g)
{
    if (g->stage == STAGE_DONE) return;
    g->cancelled = true;
    if (!g->engine->in_step) reap(g->engine);
}

void generation_free(struct generation *g)
{
    if (!g) return;
    if (!g->engine) { // released already
        free(g);
        return;
    }
    g->cancelled = true;
    g->free_wanted = true;
    if (!g->engine->in_step) reap(g->engine);
}
