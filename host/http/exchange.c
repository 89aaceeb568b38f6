/* exchange.c: see exchange.h. */
#include "host/http/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/http/errand.h"
#include "host/http/handlers.h"
#include "host/http/routes.h"
#include "host/util/clock.h"

#define SILENCE_NS 3000000000ull // after which a stream says that it is alive

/* ---- admission ---- */

static int check_state(struct server *s, struct api_problem *p)
{
    struct error why;
    enum worker_state state = worker_state(s->worker, &why);
    if (s->draining) return api_problem_set(p, 503, "shutting_down", NULL, "the server is shutting down");
    if (state == WORKER_LOADING)
        return api_problem_set(p, 503, "loading", NULL, "the model is still loading");
    if (state == WORKER_STRANDED) return api_problem_set(p, 503, "no_ducks", NULL, "%s", why.text);
    if (s->outstanding < s->o->lanes + s->o->queue) return 0;
    s->count.rejected++;
    return api_problem_set(p, 429, "too_many_requests", NULL,
                           "%u requests are running or waiting, more are not taken; try again later",
                           s->outstanding);
}

static struct exchange *admit(struct connection *c, const struct completion_request *q)
{
    struct server *s = c->server;
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = s;
    x->connection = c;
    x->job = q->job;
    x->job->owner = x;
    x->chat = q->chat;
    x->stream = q->stream;
    x->include_usage = q->include_usage;
    x->created = server_time();
    snprintf(x->id, sizeof x->id, "%s-%s", q->chat ? "chatcmpl" : "cmpl", c->request_id);
    x->next = s->exchanges;
    if (x->next) x->next->previous = x;
    s->exchanges = x;
    s->outstanding++;
    c->exchange = x;
    return x;
}

static void begin_stream(struct exchange *x)
{
    connection_stream(x->connection, 200, "text/event-stream",
                      "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    x->sent_ns = clock_ns();
    if (!x->chat || !x->connection) return;
    struct buffer b = {0};
    completion_delta(&b, x, "assistant", NULL, NULL);
    connection_write(x->connection, b.data, b.length);
    buffer_free(&b);
}

static int read_completion(struct errand *e)
{
    cJSON *body = NULL;
    int rc = body_parse(&e->request, &body, &e->problem);
    if (!rc) rc = completion_read(e->server->o, body, &e->completion, &e->problem);
    cJSON_Delete(body);
    return rc;
}

static void begin(struct errand *e, int rc)
{
    struct connection *c = e->connection;
    struct server *s = e->server;
    if (!rc) rc = check_state(s, &e->problem); // it may have changed meanwhile
    struct exchange *x = rc ? NULL : admit(c, &e->completion);
    if (!rc && !x) rc = api_problem_set(&e->problem, 500, NULL, NULL, "out of memory");
    if (rc) {
        api_reply_problem(c, &e->problem);
        return;
    }
    e->completion.job = NULL; // the exchange's
    if (x->stream) begin_stream(x);
    worker_submit(s->worker, x->job);
    if (!x->connection) worker_cancel(s->worker, x->job); // it left while the head was written
}

static void complete(struct connection *c, bool chat)
{
    struct api_problem p;
    if (check_state(c->server, &p))
        api_reply_problem(c, &p);
    else
        errand_run(c, chat, read_completion, begin);
}

void handle_chat(struct connection *c, const char *rest)
{
    (void)rest;
    complete(c, true);
}

void handle_completions(struct connection *c, const char *rest)
{
    (void)rest;
    complete(c, false);
}

/* ---- output ---- */

static void write_events(struct exchange *x, struct buffer *b)
{
    if (buffer_failed(b)) {
        connection_close(x->connection); // nothing sensible can be said any more
    } else {
        connection_write(x->connection, b->data, b->length);
        x->sent_ns = clock_ns();
    }
    buffer_free(b);
}

static void count_result(struct exchange *x, const struct job_output *last)
{
    struct counters *n = &x->server->count;
    const struct generation_result *r = &last->result;
    n->completions++;
    n->cancelled += r->reason == FINISH_CANCELLED || !x->connection;
    n->failed += r->reason == FINISH_ERROR;
    n->prompt_tokens += r->prompt_tokens;
    n->cached_tokens += r->cached_tokens;
    n->completion_tokens += r->generated_tokens;
    n->drafts_proposed += r->drafts_proposed;
    n->drafts_accepted += r->drafts_accepted;
    n->prefill_s += r->prefill_ms * 1e-3;
    n->decode_s += r->decode_ms * 1e-3;
    if (r->generated_tokens > 0) histogram_add(&n->ttft, r->ttft_ms * 1e-3);
    if (r->generated_tokens > 1)
        histogram_add(&n->per_token, r->decode_ms * 1e-3 / (r->generated_tokens - 1));
}

/* What a generation that did not end by itself is told as. */
static bool result_problem(const struct exchange *x, const struct generation_result *r, struct api_problem *p)
{
    if (r->reason == FINISH_STOP || r->reason == FINISH_LENGTH) return false;
    if (r->reason == FINISH_CANCELLED)
        api_problem_set(p, 503, x->server->draining ? "shutting_down" : "cancelled", NULL, "%s",
                        x->server->draining ? "the server is shutting down" : "the request was cancelled");
    else if (r->code == -EHOSTDOWN) // it goes on by itself once ducks are back
        api_problem_set(p, 503, "no_ducks", NULL, "%s", r->error.text);
    else
        api_problem_set(p, 500, "generation_failed", NULL, "%s", r->error.text);
    return true;
}

static void send_problem(struct exchange *x, const struct api_problem *p)
{
    struct connection *c = x->connection;
    if (!x->stream) {
        c->keep_alive = false;
        api_reply_problem(c, p);
        return;
    }
    struct buffer b = {0};
    buffer_text(&b, "data: ");
    api_problem_json(&b, p);
    buffer_text(&b, "\n\n");
    write_events(x, &b);
    if (x->connection) connection_end(x->connection, false);
}

static void send_pieces(struct exchange *x, const struct job_output *out)
{
    struct buffer b = {0};
    if (!out->content.length && !out->reasoning.length && !out->logprob_count && !out->call_count) return;
    completion_delta(&b, x, NULL, out, NULL);
    write_events(x, &b);
}

static void send_end(struct exchange *x, const struct job_output *last)
{
    struct connection *c = x->connection;
    const char *reason = last->result.reason == FINISH_LENGTH ? "length"
                         : last->calls                        ? "tool_calls"
                                                              : "stop";
    struct buffer b = {0};
    c->prompt_tokens = last->result.prompt_tokens;
    c->completion_tokens = last->result.generated_tokens;
    if (!x->stream) {
        completion_whole(&b, x, last, reason);
        x->connection = NULL;
        api_reply_json(c, 200, &b);
        return;
    }
    completion_delta(&b, x, NULL, NULL, reason);
    if (x->include_usage) completion_usage_chunk(&b, x, last);
    buffer_text(&b, "data: [DONE]\n\n");
    write_events(x, &b);
    if (x->connection) connection_end(x->connection, true);
}

static void finish(struct exchange *x, const struct job_output *last)
{
    struct api_problem p;
    count_result(x, last);
    if (x->connection && x->whole.content.failed) {
        api_problem_set(&p, 500, NULL, NULL, "out of memory");
        send_problem(x, &p);
    } else if (x->connection && result_problem(x, &last->result, &p)) {
        send_problem(x, &p);
    } else if (x->connection) {
        send_end(x, last);
    }
    x->connection = NULL;
    x->server->outstanding--;
    exchange_free(x);
}

void exchange_output(struct exchange *x, struct job_output *out)
{
    if (out->prefill_total) {
        x->prefill_done = out->prefill_done;
        x->prefill_total = out->prefill_total;
    }
    if (x->connection && x->stream) {
        if (out->content.failed || out->reasoning.failed) x->whole.content.failed = true;
        send_pieces(x, out);
    }
    struct job_output last = {.finished = out->finished,
                              .result = out->result,
                              .reasoning_tokens = out->reasoning_tokens,
                              .calls = out->calls};
    out->finished = false;
    if (x->connection && !x->stream)
        job_output_add(&x->whole, out);
    else
        job_output_free(out);
    if (last.finished) finish(x, &last);
}

void exchange_tick(struct exchange *x, uint64_t now)
{
    if (!x->connection || !x->stream || now < x->sent_ns + SILENCE_NS) return;
    struct buffer b = {0};
    if (x->prefill_done < x->prefill_total) // later it is the answer that is waited for
        buffer_printf(&b, ": %u of %u prompt tokens\n\n", x->prefill_done, x->prefill_total);
    else
        buffer_text(&b, ": waiting\n\n");
    write_events(x, &b);
}

/* ---- ends ---- */

void exchange_gone(struct exchange *x)
{
    x->connection = NULL;
    worker_cancel(x->server->worker, x->job);
}

void exchange_abort(struct exchange *x)
{
    worker_cancel(x->server->worker, x->job);
}

void exchange_free(struct exchange *x)
{
    struct server *s = x->server;
    if (x->previous)
        x->previous->next = x->next;
    else
        s->exchanges = x->next;
    if (x->next) x->next->previous = x->previous;
    job_free(x->job);
    job_output_free(&x->whole);
    free(x);
}
