/* server.c: http_serve(): the loop, the listener, and how serving ends. */
#include "host/http/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host/http/connection.h"
#include "host/http/exchange.h"
#include "host/http/routes.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define TICK_MS 500u
#define BACKLOG 512

int64_t server_time(void)
{
    return (int64_t)time(NULL);
}

static int uv_error(struct error *err, int rc, const char *what)
{
    return error_set(err, rc, "%s: %s", what, uv_strerror(rc));
}

/* ---- ends ---- */

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (handle->loop && !uv_is_closing(handle)) uv_close(handle, NULL); // without a loop it never opened
}

/* Nobody is left: connections and handles are closed, which ends the loop. */
static void close_all(struct server *s)
{
    struct connection *next;
    for (struct connection *c = s->connections; c; c = next) {
        next = c->next;
        connection_close(c);
    }
    close_handle((uv_handle_t *)&s->listener, NULL);
    close_handle((uv_handle_t *)&s->tick, NULL);
    close_handle((uv_handle_t *)&s->term, NULL);
    close_handle((uv_handle_t *)&s->interrupt, NULL);
    close_handle((uv_handle_t *)&s->wake, NULL);
}

static bool all_said(const struct server *s)
{
    if (s->outstanding || s->errands) return false;
    for (const struct connection *c = s->connections; c; c = c->next)
        if (uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp) > 0) return false;
    return true;
}

static void abort_exchanges(struct server *s)
{
    for (struct exchange *x = s->exchanges; x; x = x->next) exchange_abort(x);
}

/* Begins to drain; a second call stops at once. */
static void stop(struct server *s)
{
    if (worker_state(s->worker, NULL) == WORKER_LOADING) {
        log_notice("stopped while loading");
        _exit(0); // nothing has begun that would have to be ended
    }
    if (s->draining) {
        abort_exchanges(s);
        s->drain_until_ns = clock_ns();
        return;
    }
    s->draining = true;
    s->drain_until_ns = clock_ns() + s->o->drain_timeout_s * 1000000000ull;
    if (s->outstanding)
        log_notice("stopping: %u request%s may finish within %u s", s->outstanding,
                   s->outstanding == 1 ? "" : "s", s->o->drain_timeout_s);
    else
        log_notice("stopping");
    close_handle((uv_handle_t *)&s->listener, NULL);
    if (all_said(s)) close_all(s);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    stop(handle->data);
}

/* ---- events ---- */

static void on_wake(uv_async_t *handle)
{
    struct server *s = handle->data;
    struct job_output out;
    for (struct job *j; (j = worker_take(s->worker, &out));) exchange_output(j->owner, &out);
    enum worker_state state = worker_state(s->worker, &s->failure);
    if (state == WORKER_FAILED && !s->rc) {
        s->rc = -EIO;
        close_all(s);
    }
    if (s->draining && all_said(s)) close_all(s);
}

static void notify(void *ctx)
{
    uv_async_send(ctx);
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;
    uint64_t now = clock_ns();
    struct connection *next;
    for (struct connection *c = s->connections; c; c = next) {
        next = c->next;
        connection_tick(c, now);
    }
    struct exchange *following;
    for (struct exchange *x = s->exchanges; x; x = following) {
        following = x->next;
        exchange_tick(x, now);
    }
    if (!s->draining) return;
    if (now >= s->drain_until_ns) abort_exchanges(s);
    // Cancelling takes one step of the engine; whoever does not get through by then is left behind.
    if (all_said(s) || now >= s->drain_until_ns + s->o->drain_timeout_s * 1000000000ull) close_all(s);
}

static void on_connection(uv_stream_t *listener, int status)
{
    if (status == 0) connection_accept(listener->data);
}

/* ---- beginning ---- */

static int parse_address(const char *listen, struct sockaddr_storage *out, bool *loopback, struct error *err)
{
    char host[128];
    const char *colon = strrchr(listen, ':');
    char *end;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || *end || end == colon + 1 || port < 0 || port > 65535 ||
        (size_t)(colon - listen) >= sizeof host)
        return error_set(err, -EINVAL, "--listen is '%s', it has to be ADDRESS:PORT", listen);
    const char *from = listen;
    size_t length = (size_t)(colon - listen);
    if (length >= 2 && from[0] == '[' && from[length - 1] == ']') {
        from++;
        length -= 2;
    }
    snprintf(host, sizeof host, "%.*s", (int)length, from);
    if (!strcmp(host, "localhost")) strcpy(host, "127.0.0.1");
    *loopback = !strncmp(host, "127.", 4) || !strcmp(host, "::1");
    if (uv_ip4_addr(host, (int)port, (struct sockaddr_in *)out) == 0) return 0;
    if (uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)out) == 0) return 0;
    return error_set(err, -EINVAL, "--listen is '%s': '%s' is no IP address", listen, host);
}

/* As browsers write it: no path, not even a '/' at the end, with which no page's origin would ever match. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    if (!strcmp(text, "*") || !strcmp(text, "null")) return true;
    if (!host || host == text || !host[strlen("://")]) return false;
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~' || (c >= host + strlen("://") && strchr("/?#@", *c))) return false;
    return true;
}

int http_check(const char *listen, const char *const *origins, size_t count, struct error *err)
{
    struct sockaddr_storage address;
    bool loopback;
    for (size_t i = 0; i < count; i++)
        if (!is_origin(origins[i]))
            return error_set(err, -EINVAL, "--cors is '%s', it can be * or an origin, https://chat.example",
                             origins[i]);
    return parse_address(listen, &address, &loopback, err);
}

static int listen_on(struct server *s, struct error *err)
{
    struct sockaddr_storage address;
    int rc = parse_address(s->o->listen, &address, &s->loopback, err);
    if (rc) return rc;
    rc = uv_tcp_bind(&s->listener, (struct sockaddr *)&address, 0);
    if (!rc) rc = uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection);
    if (rc) return error_set(err, rc, "%s cannot be listened on: %s", s->o->listen, uv_strerror(rc));
    char name[64] = "?";
    int length = sizeof address;
    if (!uv_tcp_getsockname(&s->listener, (struct sockaddr *)&address, &length))
        uv_ip_name((struct sockaddr *)&address, name, sizeof name);
    // Ports lie at the same place in both kinds of address.
    unsigned port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    bool v6 = address.ss_family == AF_INET6;
    log_notice("listening on http://%s%s%s:%u/", v6 ? "[" : "", name, v6 ? "]" : "", port);
    if (!s->loopback && !s->key_count)
        log_notice("anyone who reaches this address can use the model: --api-keys FILE asks for a key");
    return 0;
}

/* *looping: the loop is there and has to be closed, whatever else failed. */
static int open_loop(struct server *s, bool *looping, struct error *err)
{
    int rc = uv_loop_init(&s->loop);
    *looping = !rc;
    if (rc) return uv_error(err, rc, "libuv");
    rc = uv_tcp_init(&s->loop, &s->listener);
    if (!rc) rc = uv_timer_init(&s->loop, &s->tick);
    if (!rc) rc = uv_signal_init(&s->loop, &s->term);
    if (!rc) rc = uv_signal_init(&s->loop, &s->interrupt);
    if (!rc) rc = uv_async_init(&s->loop, &s->wake, on_wake);
    s->listener.data = s->tick.data = s->term.data = s->interrupt.data = s->wake.data = s;
    if (!rc) rc = uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    if (!rc) rc = uv_signal_start(&s->term, on_signal, SIGTERM);
    if (!rc) rc = uv_signal_start(&s->interrupt, on_signal, SIGINT);
    return rc ? uv_error(err, rc, "libuv") : listen_on(s, err);
}

static void close_loop(struct server *s)
{
    close_all(s);
    uv_run(&s->loop, UV_RUN_DEFAULT); // runs what closing has left to call
    uv_loop_close(&s->loop);
}

int http_serve(const struct http_options *o, struct error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, -ENOMEM, "out of memory");
    s->o = o;
    s->started_ns = clock_ns();
    s->started_at = server_time();
    (void)signal(SIGPIPE, SIG_IGN); // a client that is gone is an error of its connection
    const struct worker_options w = {.tokenizer = o->tokenizer,
                                     .chat = o->chat,
                                     .vocab = o->config->vocab_size,
                                     .load = o->load,
                                     .ctx = o->ctx,
                                     .notify = notify,
                                     .notify_ctx = &s->wake};
    int rc = o->api_keys ? keys_read(s, o->api_keys, err) : 0;
    bool looping = false;
    if (!rc) rc = open_loop(s, &looping, err);
    if (!rc) rc = worker_open(&s->worker, &w, err);
    if (!rc) {
        uv_run(&s->loop, UV_RUN_DEFAULT);
        rc = s->rc;
        if (rc) *err = s->failure;
    }
    if (s->worker) worker_close(s->worker); // wakes the loop's handle, so that comes before
    while (s->exchanges) exchange_free(s->exchanges);
    if (looping) close_loop(s);
    keys_free(s);
    free(s);
    return rc;
}
