/* answer.c: runs one generation and keeps what came out of it. */
#include "host/cli/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/interrupt.h"
#include "host/engine/stop_strings.h"
#include "host/util/clock.h"
#include "host/util/log.h"

int text_append(struct text_buffer *b, const char *text, size_t length)
{
    if (b->length + length > b->capacity) {
        size_t capacity = 2 * (b->length + length) + 256;
        char *grown = realloc(b->text, capacity);
        if (!grown) return -ENOMEM;
        b->text = grown;
        b->capacity = capacity;
    }
    if (length) memcpy(b->text + b->length, text, length);
    b->length += length;
    return 0;
}

void text_free(struct text_buffer *b)
{
    free(b->text);
    *b = (struct text_buffer){0};
}

/* ---- from ids to text ---- */

struct run {
    struct session *session;
    const struct question *q;
    struct answer *answer;
    struct detokenizer detokenizer;
    struct stop_strings *stop;
    char *piece;      // tokenizer_max_text() + 32 bytes
    double offset_ms; // of a token's time: what came before the engine's, less the pauses
    struct progress progress;
    bool prefilling;
    double paused_ms[2]; // before the first token, and from it on
    int rc;              // why the generation was ended from here
    struct error *err;
};

/* Text that may be shown: passes it on and keeps it. */
static int show(struct run *r, struct stop_text text)
{
    if (text_append(&r->answer->text, text.text, text.length)) {
        return error_set(r->err, -ENOMEM, "out of memory");
    }
    if (!r->q->on_text || text.length == 0) return 0;
    return r->q->on_text(r->q->ctx, text.text, text.length, r->err);
}

/* Bytes that the token completed, into r->piece. The marks around thoughts are text to a reader; every other
 * special token is not. */
static size_t token_text(struct run *r, const struct generated *g)
{
    struct session *s = r->session;
    size_t n = 0, length;
    bool added;
    if (!s->tokenizer || g->stop) return 0;
    if (g->id < 0 || (g->id != s->think && g->id != s->end_think)) {
        return detokenizer_push(&r->detokenizer, s->tokenizer, g->id, r->piece);
    }
    n = detokenizer_finish(&r->detokenizer, r->piece);
    const char *mark = tokenizer_token(s->tokenizer, g->id, &length, &added);
    if (!mark) return n;
    memcpy(r->piece + n, mark, length);
    return n + length;
}

/* 1: a stop string was completed, 0: go on, negative: failed. */
static int feed(struct run *r, const char *piece, size_t length)
{
    struct stop_text text;
    if (text_append(&r->answer->pieces, piece, length)) {
        return error_set(r->err, -ENOMEM, "out of memory");
    }
    int hit = stop_strings_feed(r->stop, piece, length, &text);
    if (hit < 0) return error_set(r->err, hit, "out of memory");
    int rc = show(r, text);
    return rc ? rc : hit;
}

static int keep_token(struct run *r, const struct generated *g, size_t length)
{
    struct answer *a = r->answer;
    if (a->count == a->capacity) {
        size_t capacity = 2 * a->capacity + 64;
        struct answer_token *grown = realloc(a->token, capacity * sizeof *grown);
        if (!grown) return error_set(r->err, -ENOMEM, "out of memory");
        a->token = grown;
        a->capacity = capacity;
    }
    double t = r->offset_ms + g->t_ms;
    a->token[a->count] = (struct answer_token){
        .id = g->id,
        .lane = g->lane,
        .accepted = g->accepted,
        .t_ms = t,
        .tpot_ms = a->count ? t - a->token[a->count - 1].t_ms : t,
        .gpu_ms = g->gpu_ms,
        .flock_ms = g->flock_ms,
        .wait_ms = g->wait_ms,
        .text_at = a->pieces.length,
        .text_length = length,
    };
    a->count++;
    return 0;
}

static void end_prefill(struct run *r)
{
    if (r->prefilling) progress_end(&r->progress);
    r->prefilling = false;
}

static bool on_token(void *ctx, const struct generated *g)
{
    struct run *r = ctx;
    end_prefill(r);
    size_t length = token_text(r, g);
    r->rc = keep_token(r, g, length);
    int hit = r->rc ? 0 : feed(r, r->piece, length);
    if (hit < 0) r->rc = hit;
    if (!r->rc && r->q->on_token) r->rc = r->q->on_token(r->q->ctx, r->answer, r->answer->count - 1, r->err);
    return !r->rc && !hit;
}

static void on_prefill(void *ctx, uint32_t done, uint32_t total)
{
    struct run *r = ctx;
    if (!r->prefilling) progress_begin(&r->progress, "reading the prompt", "tokens", total, 1);
    r->prefilling = true;
    progress_update(&r->progress, done);
}

/* Its time is no token's, and no part of the result's times. */
static int take_pause(struct run *r)
{
    struct answer *a = r->answer;
    uint64_t began = clock_ns();
    int rc = r->q->on_pause(r->q->ctx, a, r->err);
    double spent_ms = (double)(clock_ns() - began) * 1e-6;
    r->offset_ms -= spent_ms;
    r->paused_ms[a->count > 0] += spent_ms;
    return rc;
}

static void leave_out_pauses(struct generation_result *to, const double paused_ms[2])
{
    to->ttft_ms -= paused_ms[0];
    to->prefill_ms -= paused_ms[0];
    to->decode_ms -= paused_ms[1];
}

/* What detokenizer and stop strings still hold, once the generation has ended by itself. */
static int flush_text(struct run *r)
{
    if (!r->session->tokenizer) return 0;
    struct answer *a = r->answer;
    size_t length = detokenizer_finish(&r->detokenizer, r->piece);
    if (a->count && length) a->token[a->count - 1].text_length += length;
    int hit = feed(r, r->piece, length);
    return hit < 0 ? hit : show(r, stop_strings_finish(r->stop));
}

static int run_engine(struct run *r)
{
    const struct question *q = r->q;
    struct generation *g;
    struct generation_request request = {
        .prompt = q->prompt->id,
        .prompt_count = (uint32_t)q->prompt->count,
        .max_tokens = q->max_tokens,
        .ignore_eos = q->ignore_eos,
        .ids_only = true,
        .sampling = q->sampling,
        .on_token = on_token,
        .on_prefill = on_prefill,
        .ctx = r,
    };
    int rc = engine_start(r->session->engine, &g, &request, r->err);
    if (rc) return rc;
    while (!generation_done(g) && engine_step(r->session->engine)) {
        if (interrupt_seen() && !r->answer->interrupted) {
            r->answer->interrupted = true;
            generation_cancel(g);
        } else if (q->on_pause && !r->rc) {
            r->rc = take_pause(r);
            if (r->rc) generation_cancel(g);
        }
    }
    end_prefill(r);
    r->answer->result = *generation_result(g);
    leave_out_pauses(&r->answer->result, r->paused_ms);
    generation_free(g);
    if (r->rc) return r->rc;
    if (r->answer->result.reason == FINISH_ERROR) {
        return error_set(r->err, -EIO, "%s", r->answer->result.error.text);
    }
    return flush_text(r);
}

struct question question_of(const struct session *s, const struct ids *prompt, double spent_ms)
{
    const struct options *o = s->options;
    return (struct question){.prompt = prompt,
                             .max_tokens = (uint32_t)o->n,
                             .ignore_eos = o->ignore_eos,
                             .sampling = s->sampling,
                             .stop = o->stop,
                             .spent_ms = spent_ms};
}

int answer_make(struct session *s, const struct question *q, struct answer *a, struct error *err)
{
    *a = (struct answer){.synthetic = s->synthetic};
    struct run r = {.session = s, .q = q, .answer = a, .offset_ms = q->spent_ms, .err = err};
    r.piece = malloc((s->tokenizer ? tokenizer_max_text(s->tokenizer) : 0) + 32);
    int rc = r.piece ? stop_strings_open(&r.stop, q->stop.item, q->stop.count, err)
                     : error_set(err, -ENOMEM, "out of memory");
    if (!rc) rc = run_engine(&r);
    stop_strings_close(r.stop);
    free(r.piece);
    return rc;
}

void answer_free(struct answer *a)
{
    free(a->token);
    text_free(&a->text);
    text_free(&a->pieces);
    *a = (struct answer){0};
}
