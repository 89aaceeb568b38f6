/* http.h: `duckd serve`: an OpenAI-compatible HTTP server around one engine.
 *
 * Two threads. The main thread runs libuv: sockets, HTTP, JSON, timers, signals; it never computes for the
 * model, and has large bodies read by libuv's pool (errand.h). The engine thread (worker.h) opens the engine,
 * owns it and advances generations. They share jobs (job.h) under one mutex and wake each other; nothing a
 * client sends, and no way a client leaves, can end the process or hold up another client. */
#ifndef DUCKD_HOST_HTTP_HTTP_H
#define DUCKD_HOST_HTTP_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "host/engine/engine.h"
#include "host/text/chat_encoding.h"
#include "host/text/tokenizer.h"

#define HTTP_LISTEN "127.0.0.1:8080" // where nothing else is said

struct http_options {
    const char *listen; // "ADDRESS:PORT"; port 0: any, said in the log
    const char *model_name;
    const char *api_keys;       // file with a key per line; NULL: every token is accepted
    const char *const *origins; // (origin_count) of other hosts whose pages may call; "*": all
    size_t origin_count;
    uint32_t lanes, queue; // requests computed at once; waiting behind them
    uint32_t connections;
    size_t max_body; // bytes
    uint32_t request_timeout_s, idle_timeout_s, drain_timeout_s;

    // What requests are read and answered with; all of it outlives http_serve().
    const struct model_config *config;
    const struct tokenizer *tokenizer;
    const struct chat_encoding *chat;
    struct sampling sampling; // where a request says nothing; its seed is not used

    /* Opens the engine, on the engine thread. */
    int (*load)(void *ctx, struct engine **out, struct error *err);
    void *ctx;
};

/* Whether `listen` and `origins` could be served, before anything is opened. */
int http_check(const char *listen, const char *const *origins, size_t count, struct error *err);

/* Serves until SIGTERM or SIGINT; 0: ended as asked. */
int http_serve(const struct http_options *o, struct error *err);

#endif
