/* job.c: from tokens to text, thoughts and log-probabilities. */
#include "host/http/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void job_output_free(struct job_output *o)
{
    for (struct job_output *next; o->next; o->next = next) {
        next = o->next->next;
        o->next->next = NULL;
        job_output_free(o->next);
        free(o->next);
    }
    buffer_free(&o->reasoning);
    buffer_free(&o->content);
    free(o->logprob);
    for (size_t i = 0; i < o->call_count; i++) {
        free(o->call[i].name);
        buffer_free(&o->call[i].arguments);
    }
    free(o->call);
    *o = (struct job_output){0};
}

void job_free(struct job *j)
{
    if (!j) return;
    ids_free(&j->prompt);
    free(j->bias);
    stop_strings_close(j->stop);
    tool_parser_close(j->tools);
    job_output_free(&j->out);
    free(j);
}

static void fail(struct job_output *out)
{
    out->content.failed = true; // noticed by whoever sends it
}

static struct token_logprob *new_logprob(struct job_output *out)
{
    if (out->logprob_count == out->logprob_capacity) {
        size_t capacity = 2 * out->logprob_capacity + 4;
        struct token_logprob *grown = realloc(out->logprob, capacity * sizeof *grown);
        if (!grown) {
            fail(out);
            return NULL;
        }
        out->logprob = grown;
        out->logprob_capacity = capacity;
    }
    return &out->logprob[out->logprob_count++];
}

/* Keeps the `want` largest, in falling order; ties go to the lower id. */
static void collect_top(struct token_logprob *l, uint32_t want, int32_t id, float value)
{
    const bool full = l->top_count == want;
    if (want == 0 ||
        (full && !(value > l->top[want - 1] || (value == l->top[want - 1] && id < l->top_id[want - 1]))))
        return;
    uint32_t at = full ? want - 1 : l->top_count++;
    for (; at > 0 && (value > l->top[at - 1] || (value == l->top[at - 1] && id < l->top_id[at - 1])); at--) {
        l->top[at] = l->top[at - 1];
        l->top_id[at] = l->top_id[at - 1];
    }
    l->top[at] = value;
    l->top_id[at] = id;
}

/* Logarithm of what probabilities are divided by. */
static double log_mass(const struct generated *g, uint32_t vocab)
{
    if (g->candidates) return (double)g->candidates->logit[0] + log(g->candidates->mass);
    float top = g->logits[0];
    for (uint32_t i = 1; i < vocab; i++) top = g->logits[i] > top ? g->logits[i] : top;
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)g->logits[i] - (double)top);
    return (double)top + log(sum);
}

/* Of the model's own distribution, before temperature and the like. */
static void add_logprob(const struct job *j, const struct job_text *t, const struct generated *g,
                        struct job_output *out)
{
    struct token_logprob *l = new_logprob(out);
    if (!l) return;
    const double shift = log_mass(g, t->vocab);
    const uint32_t want = j->top_logprobs < t->vocab ? j->top_logprobs : t->vocab;
    const uint32_t count = g->candidates ? g->candidates->count : t->vocab;
    *l = (struct token_logprob){.id = g->id};
    for (uint32_t i = 0; i < count; i++) {
        const int32_t id = g->candidates ? g->candidates->id[i] : (int32_t)i;
        const float value = (float)((double)(g->candidates ? g->candidates->logit[i] : g->logits[i]) - shift);
        if (id == g->id) l->logprob = value;
        collect_top(l, want, id, value);
    }
}

/* ---- calls ---- */

static struct call_piece *new_piece(struct job_output *out)
{
    if (out->call_count == out->call_capacity) {
        size_t capacity = 2 * out->call_capacity + 4;
        struct call_piece *grown = realloc(out->call, capacity * sizeof *grown);
        if (!grown) {
            fail(out);
            return NULL;
        }
        out->call = grown;
        out->call_capacity = capacity;
    }
    struct call_piece *piece = &out->call[out->call_count++];
    *piece = (struct call_piece){0};
    return piece;
}

static void tell_content(void *ctx, const char *text, size_t length)
{
    const struct job *j = ctx;
    buffer_append(&j->telling->content, text, length);
}

static void tell_call(void *ctx, uint32_t index, const char *name, size_t length)
{
    const struct job *j = ctx;
    struct call_piece *piece = new_piece(j->telling);
    if (!piece) return;
    piece->index = index;
    piece->name = strndup(name, length);
    if (!piece->name) fail(j->telling);
}

/* Arguments go where the call's last piece is, if nobody has taken it yet. */
static struct call_piece *piece_of(struct job_output *out, uint32_t index)
{
    if (out->call_count && out->call[out->call_count - 1].index == index)
        return &out->call[out->call_count - 1];
    struct call_piece *piece = new_piece(out);
    if (piece) piece->index = index;
    return piece;
}

static void tell_arguments(void *ctx, uint32_t index, const char *json, size_t length)
{
    const struct job *j = ctx;
    struct call_piece *piece = piece_of(j->telling, index);
    if (!piece) return;
    buffer_append(&piece->arguments, json, length);
    if (buffer_failed(&piece->arguments)) fail(j->telling);
}

struct tool_sink job_tool_sink(struct job *j)
{
    return (struct tool_sink){
        .content = tell_content, .call = tell_call, .arguments = tell_arguments, .ctx = j};
}

/* ---- text ---- */

/* Text of the answer, behind the stop strings. True: the last call wanted is complete. */
static bool answer(struct job *j, const char *text, size_t length, struct job_output *out)
{
    if (!j->tools) {
        buffer_append(&out->content, text, length);
        return false;
    }
    j->telling = out;
    int full = tool_parser_feed(j->tools, text, length);
    if (full < 0) fail(out);
    return full == 1;
}

/* Text that may be shown. Stop strings watch the answer, not the thoughts. */
static bool feed(struct job *j, const char *piece, size_t length, struct job_output *out)
{
    struct stop_text text;
    if (j->in_reasoning) {
        buffer_append(&out->reasoning, piece, length);
        return false;
    }
    int hit = stop_strings_feed(j->stop, piece, length, &text);
    if (hit < 0) {
        fail(out);
        return false;
    }
    bool full = answer(j, text.text, text.length, out);
    return hit == 1 || full;
}

bool job_token(struct job *j, const struct job_text *t, const struct generated *g, struct job_output *out)
{
    const struct chat_encoding *c = t->chat;
    if (j->in_reasoning) j->reasoning_tokens++;
    if (g->stop) return false;
    bool mark = g->id >= 0 && (g->id == c->think || g->id == c->end_think);
    if (mark) { // ends a character that was cut, and begins or ends the thoughts
        size_t length = detokenizer_finish(&j->detokenizer, t->piece), mark_length = 0;
        bool added;
        const char *text = j->plain ? tokenizer_token(t->tokenizer, g->id, &mark_length, &added) : NULL;
        if (text) memcpy(t->piece + length, text, mark_length);
        bool hit = feed(j, t->piece, length + mark_length, out);
        j->in_reasoning = !j->plain && g->id == c->think;
        return hit;
    }
    if (j->logprobs && !j->in_reasoning) add_logprob(j, t, g, out);
    j->detokenizer.keep_added = j->tools && chat_is_mark(c, g->id);
    return feed(j, t->piece, detokenizer_push(&j->detokenizer, t->tokenizer, g->id, t->piece), out);
}

void job_flush(struct job *j, const struct job_text *t, struct job_output *out)
{
    if (!feed(j, t->piece, detokenizer_finish(&j->detokenizer, t->piece), out)) {
        struct stop_text rest = stop_strings_finish(j->stop);
        answer(j, rest.text, rest.length, out);
    }
    if (!j->tools) return;
    j->telling = out;
    tool_parser_finish(j->tools);
}

static void move_buffer(struct buffer *to, struct buffer *from)
{
    if (to->length == 0 && !to->failed) { // the usual case: nothing waits
        buffer_free(to);
        *to = *from;
        *from = (struct buffer){0};
        return;
    }
    to->failed |= from->failed;
    buffer_append(to, from->data, from->length);
    buffer_free(from);
}

static void add_piece(struct job_output *to, struct call_piece *from)
{
    struct call_piece *piece = from->name ? new_piece(to) : piece_of(to, from->index);
    if (!piece) {
        free(from->name);
        buffer_free(&from->arguments);
        return;
    }
    piece->index = from->index;
    if (from->name) piece->name = from->name;
    move_buffer(&piece->arguments, &from->arguments);
}

void job_output_add(struct job_output *to, struct job_output *from)
{
    move_buffer(&to->reasoning, &from->reasoning);
    move_buffer(&to->content, &from->content);
    for (size_t i = 0; i < from->logprob_count; i++) {
        struct token_logprob *l = new_logprob(to);
        if (l) *l = from->logprob[i];
    }
    free(from->logprob);
    for (size_t i = 0; i < from->call_count; i++) add_piece(to, &from->call[i]);
    free(from->call);
    if (from->prefill_total) {
        to->prefill_done = from->prefill_done;
        to->prefill_total = from->prefill_total;
    }
    if (from->finished) {
        to->finished = true;
        to->result = from->result;
        to->reasoning_tokens = from->reasoning_tokens;
        to->calls = from->calls;
    }
    *from = (struct job_output){0};
}
