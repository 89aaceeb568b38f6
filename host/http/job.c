/* job.c: from tokens to text, thoughts and log-probabilities. */
#include "host/http/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void job_output_free(struct job_output *o)
{
    buffer_free(&o->reasoning);
    buffer_free(&o->content);
    free(o->logprob);
    *o = (struct job_output){0};
}

void job_free(struct job *j)
{
    if (!j) return;
    ids_free(&j->prompt);
    free(j->bias);
    stop_strings_close(j->stop);
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
static void collect_top(struct token_logprob *l, uint32_t want, const float *logits, uint32_t vocab,
                        double shift)
{
    for (uint32_t i = 0; i < vocab; i++) {
        float value = (float)((double)logits[i] - shift);
        if (l->top_count == want && !(value > l->top[want - 1])) continue;
        uint32_t at = l->top_count < want ? l->top_count++ : want - 1;
        for (; at > 0 && value > l->top[at - 1]; at--) {
            l->top[at] = l->top[at - 1];
            l->top_id[at] = l->top_id[at - 1];
        }
        l->top[at] = value;
        l->top_id[at] = (int32_t)i;
    }
}

/* Of the model's own distribution, before temperature and the like. */
static void add_logprob(const struct job *j, const struct job_text *t, const struct generated *g,
                        struct job_output *out)
{
    struct token_logprob *l = new_logprob(out);
    if (!l) return;
    float top = g->logits[0];
    for (uint32_t i = 1; i < t->vocab; i++) top = g->logits[i] > top ? g->logits[i] : top;
    double sum = 0;
    for (uint32_t i = 0; i < t->vocab; i++) sum += exp((double)g->logits[i] - (double)top);
    double shift = (double)top + log(sum);
    *l = (struct token_logprob){.id = g->id, .logprob = (float)((double)g->logits[g->id] - shift)};
    uint32_t want = j->top_logprobs < t->vocab ? j->top_logprobs : t->vocab;
    if (want) collect_top(l, want, g->logits, t->vocab, shift);
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
    buffer_append(&out->content, text.text, text.length);
    return hit == 1;
}

bool job_token(struct job *j, const struct job_text *t, const struct generated *g, struct job_output *out)
{
    if (j->in_reasoning) j->reasoning_tokens++;
    if (g->stop) return false;
    bool mark = g->id >= 0 && (g->id == t->think || g->id == t->end_think);
    if (mark) { // ends a character that was cut, and begins or ends the thoughts
        size_t length = detokenizer_finish(&j->detokenizer, t->piece), mark_length = 0;
        bool added;
        const char *text = j->plain ? tokenizer_token(t->tokenizer, g->id, &mark_length, &added) : NULL;
        if (text) memcpy(t->piece + length, text, mark_length);
        bool hit = feed(j, t->piece, length + mark_length, out);
        j->in_reasoning = !j->plain && g->id == t->think;
        return hit;
    }
    if (j->logprobs && !j->in_reasoning) add_logprob(j, t, g, out);
    return feed(j, t->piece, detokenizer_push(&j->detokenizer, t->tokenizer, g->id, t->piece), out);
}

void job_flush(struct job *j, const struct job_text *t, struct job_output *out)
{
    bool hit = feed(j, t->piece, detokenizer_finish(&j->detokenizer, t->piece), out);
    if (hit) return;
    struct stop_text rest = stop_strings_finish(j->stop);
    buffer_append(&out->content, rest.text, rest.length);
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

void job_output_add(struct job_output *to, struct job_output *from)
{
    move_buffer(&to->reasoning, &from->reasoning);
    move_buffer(&to->content, &from->content);
    for (size_t i = 0; i < from->logprob_count; i++) {
        struct token_logprob *l = new_logprob(to);
        if (l) *l = from->logprob[i];
    }
    free(from->logprob);
    if (from->prefill_total) {
        to->prefill_done = from->prefill_done;
        to->prefill_total = from->prefill_total;
    }
    if (from->finished) {
        to->finished = true;
        to->result = from->result;
        to->reasoning_tokens = from->reasoning_tokens;
    }
    *from = (struct job_output){0};
}
