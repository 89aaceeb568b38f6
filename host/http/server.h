/* server.h: what the files of the HTTP thread share: the server, its connections, its counters.
 *
 * Everything here belongs to the HTTP thread. */
#ifndef DUCKD_HOST_HTTP_SERVER_H
#define DUCKD_HOST_HTTP_SERVER_H

#include <uv.h>

#include "host/http/http.h"
#include "host/http/worker.h"

/* Durations by their length, as Prometheus wants them. */
#define HISTOGRAM_BUCKETS 12u
struct histogram {
    uint64_t count[HISTOGRAM_BUCKETS + 1]; // the last one: longer than every bound
    double sum_s;
};
void histogram_add(struct histogram *h, double seconds); // metrics.c

struct counters {
    uint64_t connections_total, connections_refused;
    uint64_t requests_total, responses[6]; // by hundreds of the status
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t drafts_proposed, drafts_accepted;
    uint64_t completions, cancelled, failed, rejected; // rejected: 429
    struct histogram ttft, per_token; // per_token: the mean of a completion, after its first token
    double prefill_s, decode_s;
};

struct exchange;
struct connection;

struct server {
    const struct http_options *o;
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t wake;
    uv_timer_t tick;
    uv_signal_t term, interrupt;
    struct worker *worker;
    struct connection *connections; // a doubly linked list
    uint32_t connection_count;
    struct exchange *exchanges; // running or waiting
    uint32_t outstanding;       // of them, known to the worker
    uint32_t errands;           // bodies that other threads are reading
    struct counters count;
    char **key; // (key_count) accepted bearer tokens
    size_t key_count;
    bool loopback; // listening on a loopback address only
    bool draining;
    uint64_t started_ns, drain_until_ns;
    int64_t started_at;   // Unix time
    struct error failure; // why serving ended, empty: as asked
    int rc;
};

/* Seconds of the wall clock; milliseconds between two readings of clock_ns(). */
int64_t server_time(void);

#endif
