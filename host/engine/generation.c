/* generation.c: one generation from its prompt to its last token, round by round.
 *
 * A round is a main job (a prefill chunk; or the last token, with a draft behind it if there is one), then,
 * with MTP, the job that brings the MTP layer's KV up to the same position and makes the next draft. Both run
 * on the generation's lane while other generations use theirs; all of this is called from lanes_run(). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/engine_internal.h"
#include "host/util/clock.h"
#include "host/util/trace.h"

/* Positions that the MTP layer may be behind: few enough that a later request which goes on with this text
 * finds nearly all of it. */
#define CATCH_UP_ROWS 64u

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

void generation__end(struct generation *g, enum finish_reason reason)
{
    g->stage = STAGE_DONE;
    g->result.reason = reason;
}

void generation__fail(struct generation *g, int rc)
{
    g->result.code = rc;
    generation__end(g, FINISH_ERROR);
}

void generation__release(struct generation *g)
{
    if (g->result.rounds > 0) drafts_end(&g->engine->drafts, &g->drafts);
    for (int i = 0; i < 2; i++)
        if (g->lane[i] != LANE_NONE) g->engine->owner[g->lane[i]] = NULL;
    struct prefix_cache *prefixes = g->engine->prefixes;
    if (prefixes && g->sequence.backend && g->result.reason != FINISH_ERROR)
        prefix_cache_keep(prefixes, &g->sequence, g->result.cached_tokens > 0);
    else
        sequence_close(&g->sequence);
    sampler_close(g->sampler);
    g->sampler = NULL;
    free(g->prompt);
    g->prompt = NULL;
    g->engine = NULL;
}

/* Of a prompt the MTP layer is only given the end, and nothing while drafts do not pay: hidden states cost
 * the last layer's feed-forward, which the main model alone needs for one row. */
static void choose_hidden(struct generation *g)
{
    struct sequence *s = &g->sequence;
    uint32_t window = g->engine->set.mtp_window, from = s->count > window ? s->count - window : 0;
    if (g->engine->set.adapt && g->drafts.dropped) from = s->count;
    if (from > s->hidden_from) s->hidden_from = from;
}

/* With what is known of the prompt. */
static int open_sequence(struct generation *g)
{
    struct engine *e = g->engine;
    const uint32_t most = e->model->config.max_positions;
    const struct sequence_start start = {.ids = g->prompt,
                                         .count = g->request.prompt_count,
                                         .room = g->limit,
                                         .positions = g->limit < most ? g->limit : most};
    if (!e->prefixes) return sequence_open(&g->sequence, e->backend, &start, &g->result.error);
    if (e->store) engine__restore(e, start.ids, start.count);
    return prefix_cache_begin(e->prefixes, &g->sequence, e->backend, &start, engine__reuse(e),
                              &g->result.cached_tokens, &g->result.error);
}

int generation__admit(struct generation *g)
{
    struct engine *e = g->engine;
    int rc = open_sequence(g);
    if (rc) {
        generation__fail(g, rc);
        return rc;
    }
    g->sequence.best_only = g->request.ids_only && sampler_takes_largest(g->sampler);
    g->sequence.candidates =
        !g->sequence.best_only && e->backend->ops->candidates && sampler_takes_candidates(g->sampler);
    g->sequence.temperature = sampler_temperature(g->sampler);
    drafts_begin(&e->drafts, &g->drafts);
    if (e->set.mtp_window) choose_hidden(g);
    g->stage = STAGE_PREFILL;
    g->prefill_ns = clock_ns();
    return 0;
}

/* ---- starting jobs ---- */

/* After a start: a round whose jobs did not all start fails when those that did are through. */
static void note_start(struct generation *g, int rc, enum round_part part)
{
    g->part = part;
    g->failure = rc;
    if (rc && g->jobs == 0) generation__fail(g, rc);
}

static void start_one(struct generation *g, const struct backend_job *job, enum round_part part)
{
    int rc = lanes_start(g->engine->lanes, g->lane[0], job, LANE_NONE, &g->result.error);
    g->jobs = rc ? 0 : 1;
    g->last = (struct mtp_place){g->lane[0], job->tokens - 1};
    note_start(g, rc, part);
}

/* The lane on which a second chunk of the prompt follows the first, so that one is on the backend while the
 * other is at the flock. LANE_NONE: one chunk a round, where overlap brings nothing or others need the time.
 */
static uint32_t second_lane(struct generation *g)
{
    struct engine *e = g->engine;
    if (e->set.verify != MTP_TWO_LANES || e->decoding > 0) return LANE_NONE;
    if (g->lane[1] != LANE_NONE) return g->lane[1];
    if (g->borrowed == LANE_NONE) g->borrowed = engine__borrow_lane(e, g);
    return g->borrowed;
}

/* A job of more rows than fit in one is two, the second close behind the first. */
static void start_chunks(struct generation *g, const struct backend_job *job, enum round_part part)
{
    uint32_t chunk = g->engine->set.prefill_chunk;
    if (job->tokens <= chunk) {
        start_one(g, job, part);
        return;
    }
    struct backend_job first = *job, second = sequence_job_behind(*job, chunk);
    uint32_t lane = g->lane[1] != LANE_NONE ? g->lane[1] : g->borrowed;
    first.tokens = first.logits_from = chunk;
    start_one(g, &first, part);
    if (g->failure) return;
    int rc = lanes_start(g->engine->lanes, lane, &second, g->lane[0], &g->result.error);
    if (!rc) g->jobs++;
    g->last = (struct mtp_place){lane, second.tokens - 1};
    note_start(g, rc, part);
}

void generation__begin_round(struct generation *g)
{
    struct engine *e = g->engine;
    struct sequence *s = &g->sequence;
    g->verifying = g->drafting = g->catching_up = false;
    if (g->stage == STAGE_PREFILL) {
        uint32_t left = s->count - s->main_done;
        if (g->rows == e->set.prefill_chunk && left > g->rows && second_lane(g) != LANE_NONE)
            g->rows = left < 2 * g->rows ? left : 2 * g->rows;
        struct backend_job job = sequence_main_job(s, g->rows, g->rows == left ? g->rows - 1 : g->rows);
        start_chunks(g, &job, ROUND_MAIN);
    } else if (g->have_draft) {
        g->verifying = true;
        g->have_draft = false;
        int rc = mtp_start_verify(e->lanes, e->set.verify, s, g->draft, g->lane, &g->jobs, &g->result.error);
        note_start(g, rc, ROUND_MAIN);
    } else {
        struct backend_job job = sequence_main_job(s, 1, 0);
        start_one(g, &job, ROUND_MAIN);
    }
}

/* A draft is of use if a round can still give two tokens. */
static bool wants_draft(struct generation *g)
{
    struct engine *e = g->engine;
    if (g->stage != STAGE_DECODE || g->sequence.count + 2 > g->limit) return false;
    return !e->set.adapt || drafts_wanted(&e->drafts, &g->drafts, e->decoding);
}

/* Brings the MTP layer up to the main model. Where it must know all positions it follows in batches while
 * drafts are dropped, so that its weights are read once for many. */
static void begin_mtp(struct generation *g)
{
    struct sequence *s = &g->sequence;
    uint32_t window = g->engine->set.mtp_window;
    g->drafting = wants_draft(g);
    if (window > 0) {
        if (g->stage == STAGE_DECODE && !g->drafting) return; // it follows when a draft is wanted
        sequence_mtp_skip(s, window);
        if (sequence_mtp_rows(s) == 0) {
            g->drafting = false;
            return;
        }
    } else if (g->stage == STAGE_DECODE && !g->drafting) {
        uint32_t batch = g->engine->set.prefill_chunk;
        if (batch > CATCH_UP_ROWS) batch = CATCH_UP_ROWS;
        // A prompt is caught up with at once: what the MTP layer has not seen, the next turn cannot reuse.
        bool prompt = s->mtp_done + 1 < g->request.prompt_count;
        if (s->count + 2 > g->limit || (sequence_mtp_rows(s) < batch && !prompt)) return;
        g->catching_up = true;
    }
    g->rows = sequence_mtp_rows(s);
    struct backend_job job = sequence_mtp_job(s, g->rows, g->drafting ? g->rows - 1 : g->rows);
    job.best_only = true;
    start_chunks(g, &job, ROUND_MTP);
}

/* ---- what comes of them ---- */

static bool is_eos(const struct model_config *c, int32_t id)
{
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_id[i] == id) return true;
    return false;
}

/* The next token from a row's logits, or from where they are; says what it came from. -1: it failed. */
static int32_t choose(struct generation *g, uint32_t lane, uint32_t row, struct generated *t)
{
    struct backend *b = g->engine->backend;
    uint64_t began = clock_ns();
    int32_t id;
    if (g->sequence.best_only) {
        id = b->ops->best(b, lane, row);
    } else {
        if (g->sequence.candidates) t->candidates = b->ops->candidates(b, lane, row);
        if (!t->candidates || !sampler_choose(g->sampler, t->candidates, g->sequence.count, &id)) {
            t->candidates = NULL;
            t->logits = b->ops->logits(b, lane, row);
            id = sampler_sample(g->sampler, t->logits, g->sequence.count);
        }
    }
    trace_span(TRACE_ENGINE, 0, "sample", began, clock_ns(), TRACE_NO_LAYER, g->sequence.count, 1);
    if (id >= 0) return id;
    int rc = error_set(&g->result.error, -EDOM,
                       "the logits of position %u hold no number to choose by (NaN or infinite)",
                       g->sequence.count - 1);
    generation__fail(g, rc);
    return -1;
}

/* Keeps a token and tells the caller; ends the generation where it has to end. */
static void keep(struct generation *g, int32_t id, struct generated t)
{
    uint64_t now = clock_ns();
    t.index = g->result.generated_tokens;
    t.id = id;
    t.stop = !g->request.ignore_eos && is_eos(&g->engine->model->config, id);
    t.t_ms = ms(now - g->started_ns);
    t.gpu_ms = ms(g->times.backend_ns);
    t.flock_ms = ms(g->times.flock_ns);
    t.wait_ms = ms(g->times.idle_ns);
    sequence_push(&g->sequence, id);
    sampler_accept(g->sampler, id);
    if (g->result.generated_tokens++ == 0) {
        g->first_token_ns = now;
        g->result.ttft_ms = t.t_ms;
        g->result.prefill_ms = ms(now - g->prefill_ns);
    }
    g->result.decode_ms = ms(now - g->first_token_ns);
    bool more = !g->request.on_token || g->request.on_token(g->request.ctx, &t);
    if (!more || t.stop)
        generation__end(g, FINISH_STOP);
    else if (g->sequence.count >= g->limit)
        generation__end(g, FINISH_LENGTH);
}

/* Row i of the round: samples and keeps it. Returns the token, -1 if there is none. */
static int32_t take_row(struct generation *g, uint32_t lane, uint32_t row, bool accepted)
{
    struct generated t = {.lane = lane, .accepted = accepted};
    int32_t id = choose(g, lane, row, &t);
    if (id < 0) return -1;
    if (g->verifying && !accepted) {
        g->result.drafts_proposed++;
        g->result.drafts_accepted += id == g->draft;
        drafts_judged(&g->drafts, id == g->draft);
    }
    keep(g, id, t);
    return id;
}

static void after_prefill(struct generation *g)
{
    struct sequence *s = &g->sequence;
    s->main_done += g->rows;
    if (g->request.on_prefill) g->request.on_prefill(g->request.ctx, s->main_done, g->request.prompt_count);
    if (g->cancelled || s->main_done < s->count) return;
    g->stage = STAGE_DECODE;
    take_row(g, g->last.lane, g->last.row, false);
}

static void after_decode(struct generation *g)
{
    g->result.rounds++;
    if (!g->verifying) {
        g->sequence.main_done++;
        take_row(g, g->lane[0], 0, false);
        return;
    }
    enum mtp_verify how = g->engine->set.verify;
    struct mtp_place first = mtp_row(how, g->lane, 0), second = mtp_row(how, g->lane, 1);
    g->sequence.main_done++;
    int32_t id = take_row(g, first.lane, first.row, false);
    if (id != g->draft) return; // the draft's position is computed again, with the right token
    g->sequence.main_done++;
    if (g->stage == STAGE_DECODE && !g->cancelled) take_row(g, second.lane, second.row, true);
}

static void after_main(struct generation *g)
{
    bool decoding = g->stage == STAGE_DECODE;
    if (decoding)
        after_decode(g);
    else
        after_prefill(g);
    if (g->stage == STAGE_DECODE) g->times = (struct lane_times){0};
    if (g->stage == STAGE_DONE || g->cancelled) return;
    if (g->engine->set.mtp) begin_mtp(g);
}

static void after_mtp(struct generation *g)
{
    struct backend *b = g->engine->backend;
    g->sequence.mtp_done += g->rows;
    if (!g->drafting) return;
    g->draft = b->ops->best(b, g->last.lane, g->last.row);
    g->have_draft = g->draft >= 0;
    if (g->have_draft) return;
    int rc = error_set(&g->result.error, -EDOM,
                       "the MTP logits of position %u hold no number to choose by (NaN or infinite)",
                       g->sequence.mtp_done - 1);
    generation__fail(g, rc);
}

void generation__lane_done(struct generation *g, uint32_t lane, int rc, const struct error *err)
{
    struct lane_times t = lanes_take_times(g->engine->lanes, lane);
    g->times.backend_ns += t.backend_ns;
    g->times.flock_ns += t.flock_ns;
    g->times.idle_ns += t.idle_ns;
    if (rc && !g->failure) {
        g->failure = rc;
        g->result.error = *err;
    }
    if (--g->jobs > 0) return;
    enum round_part part = g->part;
    g->part = ROUND_NONE;
    if (g->failure)
        generation__fail(g, g->failure);
    else if (g->cancelled)
        return;
    else if (part == ROUND_MAIN)
        after_main(g);
    else
        after_mtp(g);
}
