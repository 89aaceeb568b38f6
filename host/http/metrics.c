/* metrics.c: counters for Prometheus, and the same figures as JSON for the page. */
#include <stdlib.h>
#include <string.h>

#include "host/http/exchange.h"
#include "host/http/handlers.h"
#include "host/http/metrics_flock.h"
#include "host/http/routes.h"
#include "host/util/clock.h"

static void put_head(struct buffer *b, const char *name, const char *type, const char *help)
{
    buffer_printf(b, "# HELP duckd_%s %s\n# TYPE duckd_%s %s\n", name, help, name, type);
}

static void put(struct buffer *b, const char *name, const char *type, const char *help, double value)
{
    put_head(b, name, type, help);
    buffer_printf(b, "duckd_%s %.15g\n", name, value);
}

static const double histogram_bounds_s[HISTOGRAM_BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                             0.5,   1,    2.5,   10,   30,  120};

void histogram_add(struct histogram *h, double seconds)
{
    uint32_t i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > histogram_bounds_s[i]) i++;
    h->count[i]++;
    h->sum_s += seconds;
}

static void put_histogram(struct buffer *b, const char *name, const char *help, const struct histogram *h)
{
    uint64_t up_to = 0;
    put_head(b, name, "histogram", help);
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        buffer_printf(b, "duckd_%s_bucket{le=\"%g\"} %llu\n", name, histogram_bounds_s[i],
                      (unsigned long long)(up_to += h->count[i]));
    up_to += h->count[HISTOGRAM_BUCKETS];
    buffer_printf(b, "duckd_%s_bucket{le=\"+Inf\"} %llu\nduckd_%s_sum %.6f\nduckd_%s_count %llu\n", name,
                  (unsigned long long)up_to, name, h->sum_s, name, (unsigned long long)up_to);
}

static uint32_t running(const struct server *s)
{
    uint32_t n = 0;
    for (const struct exchange *x = s->exchanges; x; x = x->next) n += x->prefill_total > 0;
    return n;
}

static void put_lanes(struct buffer *b, const struct worker_figures *f)
{
    put_head(b, "lane_seconds_total", "counter",
             "Where the lane was: at the backend, at the flock, or without a job.");
    for (uint32_t i = 0; i < f->lanes; i++)
        buffer_printf(b,
                      "duckd_lane_seconds_total{lane=\"%u\",state=\"backend\"} %.6f\n"
                      "duckd_lane_seconds_total{lane=\"%u\",state=\"flock\"} %.6f\n"
                      "duckd_lane_seconds_total{lane=\"%u\",state=\"idle\"} %.6f\n",
                      i, (double)f->lane[i].backend_ns * 1e-9, i, (double)f->lane[i].flock_ns * 1e-9, i,
                      (double)f->lane[i].idle_ns * 1e-9);
    put_head(b, "lane_jobs_total", "counter", "Decode steps, chunks of prompts and MTP steps of the lane.");
    for (uint32_t i = 0; i < f->lanes; i++)
        buffer_printf(b, "duckd_lane_jobs_total{lane=\"%u\"} %llu\n", i, (unsigned long long)f->lane[i].jobs);
    put_head(b, "lane_positions_total", "counter", "Positions in them.");
    for (uint32_t i = 0; i < f->lanes; i++)
        buffer_printf(b, "duckd_lane_positions_total{lane=\"%u\"} %llu\n", i,
                      (unsigned long long)f->lane[i].tokens);
}

static void put_all(struct buffer *b, struct server *s, const struct worker_figures *f)
{
    const struct counters *n = &s->count;
    put(b, "uptime_seconds", "gauge", "Time since the start.", (double)(clock_ns() - s->started_ns) * 1e-9);
    put(b, "ready", "gauge", "1 while requests are taken: the model is loaded and there are ducks.",
        worker_state(s->worker, NULL) == WORKER_READY);
    put(b, "connections", "gauge", "Open connections.", s->connection_count);
    put(b, "connections_total", "counter", "Accepted connections.", (double)n->connections_total);
    put(b, "requests_total", "counter", "HTTP requests.", (double)n->requests_total);
    put_head(b, "responses_total", "counter", "HTTP responses.");
    for (unsigned i = 2; i < 6; i++)
        buffer_printf(b, "duckd_responses_total{class=\"%uxx\"} %llu\n", i,
                      (unsigned long long)n->responses[i]);
    put(b, "completions_total", "counter", "Completions that ended.", (double)n->completions);
    put(b, "completions_cancelled_total", "counter", "Completions whose client left.", (double)n->cancelled);
    put(b, "completions_failed_total", "counter", "Completions that failed.", (double)n->failed);
    put(b, "completions_rejected_total", "counter", "Requests answered with 429.", (double)n->rejected);
    put(b, "completions_running", "gauge", "Completions on a lane.", running(s));
    put(b, "completions_waiting", "gauge", "Completions that wait for a lane.", s->outstanding - running(s));
    put(b, "prompt_tokens_total", "counter", "Prompt tokens.", (double)n->prompt_tokens);
    put(b, "cached_tokens_total", "counter", "Prompt tokens whose KV was reused.", (double)n->cached_tokens);
    put(b, "completion_tokens_total", "counter", "Generated tokens.", (double)n->completion_tokens);
    put(b, "drafts_proposed_total", "counter", "MTP drafts.", (double)n->drafts_proposed);
    put(b, "drafts_accepted_total", "counter", "MTP drafts that were right.", (double)n->drafts_accepted);
    put(b, "prefill_seconds_total", "counter", "Times of prefill, added up.", n->prefill_s);
    put(b, "decode_seconds_total", "counter", "Times from first token to last, added up.", n->decode_s);
    put_histogram(b, "time_to_first_token_seconds", "From the request to its first token.", &n->ttft);
    put_histogram(b, "time_per_output_token_seconds", "Of a completion's tokens after the first, on average.",
                  &n->per_token);
    put(b, "backend_memory_bytes", "gauge", "Backend: weights and KV.", (double)f->memory_bytes);
    put_lanes(b, f);
    metrics_flock(b, f);
}

void handle_metrics(struct connection *c, const char *rest)
{
    (void)rest;
    struct buffer b = {0};
    struct worker_figures *f = calloc(1, sizeof *f);
    if (f) {
        worker_figures(c->server->worker, f);
        put_all(&b, c->server, f);
    }
    b.failed |= !f;
    free(f);
    if (buffer_failed(&b)) {
        api_reply_json(c, 500, &b); // says so
        return;
    }
    connection_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, b.data, b.length);
    buffer_free(&b);
}

static void put_ducks_json(struct buffer *b, const struct worker_figures *f)
{
    buffer_text(b, ",\"ducks\":[");
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct duck_stats *d = &f->duck[i];
        buffer_text(b, i ? ",{\"name\":" : "{\"name\":");
        buffer_json_string(b, d->name, strlen(d->name));
        buffer_printf(b,
                      ",\"slices\":%llu,\"weight_bytes\":%llu,\"steps\":%llu,\"expert_reads\":%llu,"
                      "\"expert_bytes\":%llu,\"compute_s\":%.6f}",
                      (unsigned long long)d->slices, (unsigned long long)d->weight_bytes,
                      (unsigned long long)d->steps, (unsigned long long)d->expert_reads,
                      (unsigned long long)d->expert_bytes, (double)d->compute_ns * 1e-9);
    }
    buffer_text(b, "]");
}

static void put_lanes_json(struct buffer *b, const struct worker_figures *f)
{
    buffer_text(b, ",\"lanes\":[");
    for (uint32_t i = 0; i < f->lanes; i++) {
        const struct lane_totals *t = &f->lane[i];
        buffer_printf(b,
                      "%s{\"backend_s\":%.6f,\"flock_s\":%.6f,\"idle_s\":%.6f,\"jobs\":%llu,"
                      "\"positions\":%llu}",
                      i ? "," : "", (double)t->backend_ns * 1e-9, (double)t->flock_ns * 1e-9,
                      (double)t->idle_ns * 1e-9, (unsigned long long)t->jobs, (unsigned long long)t->tokens);
    }
    buffer_text(b, "]");
}

void handle_metrics_json(struct connection *c, const char *rest)
{
    (void)rest;
    struct server *s = c->server;
    const struct counters *n = &s->count;
    struct buffer b = {0};
    struct worker_figures *f = calloc(1, sizeof *f);
    if (!f) {
        b.failed = true;
        api_reply_json(c, 500, &b); // says so
        return;
    }
    worker_figures(s->worker, f);
    buffer_text(&b, "{\"model\":");
    buffer_json_string(&b, s->o->model_name, strlen(s->o->model_name));
    buffer_printf(&b,
                  ",\"uptime_s\":%.3f,\"ready\":%s,\"connections\":%u,\"requests\":%llu,\"running\":%u,"
                  "\"waiting\":%u,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"completion_tokens\":%llu,"
                  "\"drafts_proposed\":%llu,\"drafts_accepted\":%llu,\"backend_memory_bytes\":%llu",
                  (double)(clock_ns() - s->started_ns) * 1e-9,
                  worker_state(s->worker, NULL) == WORKER_READY ? "true" : "false", s->connection_count,
                  (unsigned long long)n->requests_total, running(s), s->outstanding - running(s),
                  (unsigned long long)n->prompt_tokens, (unsigned long long)n->cached_tokens,
                  (unsigned long long)n->completion_tokens, (unsigned long long)n->drafts_proposed,
                  (unsigned long long)n->drafts_accepted, (unsigned long long)f->memory_bytes);
    put_lanes_json(&b, f);
    put_ducks_json(&b, f);
    buffer_text(&b, "}");
    free(f);
    api_reply_json(c, 200, &b);
}
