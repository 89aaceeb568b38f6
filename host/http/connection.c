/* connection.c: see connection.h. */
#include "host/http/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "host/http/access_log.h"
#include "host/http/errand.h"
#include "host/http/exchange.h"
#include "host/http/routes.h"
#include "host/util/clock.h"

#define MAX_URL (8u << 10)
#define MAX_PENDING (64u << 10)      // pipelined bytes kept while a request is answered
#define MAX_UNSENT (8u << 20)        // of a stream that nobody reads
#define PIPELINE_UNSENT (256u << 10) // no further request is begun above this
#define KEEP_BODY (64u << 10)        // memory an idle connection may hold on to
#define SECOND_NS 1000000000ull
#define LINGER_NS (2 * SECOND_NS) // a client still sending gets to read why it was refused
#define STALL_NS (60 * SECOND_NS) // output that does not move
#define BODY_TIMES 10u            // a body may take this many request timeouts

const char *request_header(const struct request *r, const char *name)
{
    const char *at = r->headers.data, *end = at ? at + r->headers.length : NULL;
    while (at < end) {
        const char *value = at + strlen(at) + 1;
        if (value > end) return NULL;
        if (strcmp(at, name) == 0) return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* ---- parsing ---- */

static int reject(struct connection *c, int status)
{
    c->reject = status;
    return HPE_USER;
}

static int on_begin(llhttp_t *p)
{
    struct connection *c = p->data;
    struct request *r = &c->request;
    buffer_clear(&r->url);
    buffer_clear(&r->headers);
    buffer_clear(&r->body);
    r->head_complete = false;
    r->begun_ns = clock_ns();
    c->deadline_ns = r->begun_ns + c->server->o->request_timeout_s * SECOND_NS;
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t length)
{
    struct connection *c = p->data;
    if (c->request.url.length + length > MAX_URL) return reject(c, 414);
    buffer_append(&c->request.url, at, length);
    return 0;
}

static int on_header(struct connection *c, const char *at, size_t length)
{
    struct request *r = &c->request;
    if (r->headers.length + length > CONNECTION_MAX_HEAD) return reject(c, 431);
    buffer_append(&r->headers, at, length);
    return 0;
}

static int on_field(llhttp_t *p, const char *at, size_t length)
{
    struct connection *c = p->data;
    size_t from = c->request.headers.length;
    int rc = on_header(c, at, length);
    for (char *s = c->request.headers.data; s && from < c->request.headers.length; from++)
        if (s[from] >= 'A' && s[from] <= 'Z') s[from] = (char)(s[from] + 32);
    return rc;
}

static int on_value(llhttp_t *p, const char *at, size_t length)
{
    return on_header(p->data, at, length);
}

static int on_header_part_end(llhttp_t *p)
{
    return on_header(p->data, "", 1);
}

static int on_head(llhttp_t *p)
{
    struct connection *c = p->data;
    const struct http_options *o = c->server->o;
    c->request.head_complete = true;
    c->request.method = (llhttp_method_t)p->method;
    if (p->method == HTTP_CONNECT) return reject(c, 405);
    p->upgrade = 0; // an offer of another protocol is not taken up
    if ((p->flags & F_CONTENT_LENGTH) && p->content_length > o->max_body) return reject(c, 413);
    const char *expect = request_header(&c->request, "expect");
    if (expect && strcasecmp(expect, "100-continue") != 0) return reject(c, 417);
    c->deadline_ns = c->request.begun_ns + BODY_TIMES * o->request_timeout_s * SECOND_NS;
    if (expect && p->http_minor >= 1) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)go_on, sizeof go_on - 1);
        // Nothing else is queued here, so it fits or the connection is broken, which reading will tell.
        uv_try_write((uv_stream_t *)&c->tcp, &buf, 1);
    }
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t length)
{
    struct connection *c = p->data;
    if (c->request.body.length + length > c->server->o->max_body) return reject(c, 413);
    buffer_append(&c->request.body, at, length);
    return 0;
}

static int on_complete(llhttp_t *p)
{
    struct connection *c = p->data;
    c->request.complete_ns = clock_ns();
    c->keep_alive = llhttp_should_keep_alive(p) && !c->server->draining;
    c->chunked = p->http_major == 1 && p->http_minor >= 1;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_field_complete = on_header_part_end,
    .on_header_value = on_value,
    .on_header_value_complete = on_header_part_end,
    .on_headers_complete = on_head,
    .on_body = on_body,
    .on_message_complete = on_complete,
};

static void begin_response(struct connection *c)
{
    c->busy = true;
    c->head_sent = false;
    c->status = 0;
    c->sent_bytes = 0;
    c->prompt_tokens = c->completion_tokens = 0;
    c->deadline_ns = UINT64_MAX;
    snprintf(c->request_id, sizeof c->request_id, "%llx-%llx", (unsigned long long)c->server->started_at,
             (unsigned long long)++c->server->count.requests_total);
}

static void refuse(struct connection *c, int status)
{
    struct request *r = &c->request;
    if (!r->begun_ns) r->begun_ns = clock_ns();
    r->complete_ns = clock_ns();
    c->keep_alive = false;
    begin_response(c);
    routes_refuse(c, status);
}

/* Parses what is there up to the end of one request. */
static void parse(struct connection *c, const char *data, size_t length)
{
    llhttp_errno_t e = llhttp_execute(&c->parser, data, length);
    if (e == HPE_OK) return;
    if (e == HPE_PAUSED) {
        size_t used = (size_t)(llhttp_get_error_pos(&c->parser) - data);
        llhttp_resume(&c->parser);
        buffer_append(&c->pending, data + used, length - used);
        begin_response(c);
        if (buffer_failed(&c->request.body) || buffer_failed(&c->request.headers) ||
            buffer_failed(&c->pending)) {
            c->keep_alive = false;
            routes_refuse(c, 503);
            return;
        }
        routes_dispatch(c);
        return;
    }
    refuse(c, c->reject ? c->reject : 400);
}

/* Goes on with pipelined requests, one answer after the other. */
static void process(struct connection *c)
{
    if (c->processing) return;
    c->processing = true;
    while (!c->busy && !c->closing && !c->discarding && c->pending.length &&
           uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) < PIPELINE_UNSENT) {
        struct buffer data = c->pending;
        c->pending = (struct buffer){0};
        parse(c, data.data, data.length);
        buffer_free(&data);
    }
    c->processing = false;
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    static char shared[64 << 10]; // one thread, and used up before the next read
    (void)suggested;
    *buf = uv_buf_init(shared, sizeof shared);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void read_on(struct connection *c, bool on)
{
    if (c->closing || c->reading == on) return;
    c->reading = on;
    if (on)
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    else
        uv_read_stop((uv_stream_t *)&c->tcp);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct connection *c = stream->data;
    if (n == 0) return;
    if (n < 0) {
        bool answered = !c->exchange && !c->errand && uv_stream_get_write_queue_size(stream) > 0;
        if (n == UV_EOF && answered && !c->discarding) {
            c->close_after_write = true; // it only said that it has nothing more to ask
            read_on(c, false);
        } else {
            connection_close(c);
        }
        return;
    }
    if (c->discarding) return;
    buffer_append(&c->pending, buf->base, (size_t)n);
    if (buffer_failed(&c->pending)) {
        connection_close(c);
        return;
    }
    process(c);
    if (c->pending.length > MAX_PENDING) read_on(c, false);
}

/* ---- writing ---- */

struct output {
    uv_write_t request;
    struct connection *connection;
    char data[];
};

static void linger(struct connection *c)
{
    c->discarding = true;
    c->deadline_ns = clock_ns() + LINGER_NS;
    uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, NULL);
    read_on(c, true);
}

static void on_written(uv_write_t *request, int status)
{
    struct output *out = (struct output *)request;
    struct connection *c = out->connection;
    free(out);
    if (c->closing) return;
    if (status < 0) {
        connection_close(c);
        return;
    }
    c->written_ns = clock_ns();
    if (uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) > 0) return;
    if (c->close_after_write) {
        connection_close(c);
    } else if (!c->busy && !c->discarding) {
        process(c);
        if (c->pending.length <= MAX_PENDING) read_on(c, true);
    }
}

/* What the socket does not take at once is copied and follows later. Mostly it takes all: then nothing is
 * allocated, and libuv has no callback to make. */
static void send_bytes(struct connection *c, const struct buffer *head, const void *data, size_t length,
                       const char *tail)
{
    uv_stream_t *stream = (uv_stream_t *)&c->tcp;
    const uv_buf_t parts[] = {uv_buf_init(head->data, (unsigned)head->length),
                              uv_buf_init((char *)(uintptr_t)data, (unsigned)length),
                              uv_buf_init((char *)(uintptr_t)tail, tail ? (unsigned)strlen(tail) : 0)};
    size_t total = parts[0].len + parts[1].len + parts[2].len, done = 0, at = 0;
    if (c->closing || total == 0) return;
    if (uv_stream_get_write_queue_size(stream) == 0) {
        int rc = buffer_failed(head) ? UV_ENOMEM : uv_try_write(stream, parts, 3);
        if (rc < 0 && rc != UV_EAGAIN) {
            connection_close(c);
            return;
        }
        done = rc > 0 ? (size_t)rc : 0;
        c->written_ns = clock_ns();
    }
    c->sent_bytes += length;
    if (done == total) return;
    struct output *out = buffer_failed(head) ? NULL : malloc(sizeof *out + total - done);
    if (!out) {
        connection_close(c);
        return;
    }
    out->connection = c;
    for (size_t i = 0, skip = done; i < 3; i++) {
        size_t from = skip < parts[i].len ? skip : parts[i].len;
        skip -= from;
        if (parts[i].len > from) memcpy(out->data + at, parts[i].base + from, parts[i].len - from);
        at += parts[i].len - from;
    }
    uv_buf_t rest = uv_buf_init(out->data, (unsigned)at);
    if (uv_write(&out->request, stream, &rest, 1, on_written)) {
        free(out);
        connection_close(c);
    } else if (uv_stream_get_write_queue_size(stream) > MAX_UNSENT) {
        connection_close(c);
    }
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {417, "Expectation Failed"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {503, "Service Unavailable"}};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].status == status) return reasons[i].text;
    return "Unknown";
}

static void put_head(struct connection *c, struct buffer *head, int status, const char *type,
                     const char *headers)
{
    char date[40];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    c->status = status;
    c->head_sent = true;
    buffer_printf(head, "HTTP/1.1 %d %s\r\nDate: %s\r\nX-Request-Id: %s\r\nConnection: %s\r\n", status,
                  reason(status), date, c->request_id, c->keep_alive ? "keep-alive" : "close");
    // A request that meets the end of an idle connection is lost: who knows when it ends does not send one
    // then.
    if (c->keep_alive) buffer_printf(head, "Keep-Alive: timeout=%u\r\n", c->server->o->idle_timeout_s);
    if (type) buffer_printf(head, "Content-Type: %s\r\n", type);
    buffer_text(head, "X-Content-Type-Options: nosniff\r\n");
    routes_cors_headers(c, head);
    if (headers) buffer_text(head, headers);
}

/* The response is queued: on to the next request, or away. */
static void end_response(struct connection *c)
{
    if (c->closing) return;
    unsigned hundreds = (unsigned)c->status / 100;
    if (hundreds < 6) c->server->count.responses[hundreds]++;
    access_log(c);
    c->busy = false;
    c->exchange = NULL;
    if (!c->keep_alive) {
        linger(c);
        return;
    }
    c->deadline_ns = clock_ns() + c->server->o->idle_timeout_s * SECOND_NS;
    c->request.begun_ns = 0;
    if (c->request.body.capacity > KEEP_BODY) buffer_free(&c->request.body);
    process(c);
    if (!c->busy && c->pending.length <= MAX_PENDING) read_on(c, true);
}

void connection_reply(struct connection *c, int status, const char *type, const char *headers,
                      const void *body, size_t length)
{
    struct buffer head = {0};
    put_head(c, &head, status, type, headers);
    if (status != 204) buffer_printf(&head, "Content-Length: %zu\r\n", length);
    buffer_text(&head, "\r\n");
    send_bytes(c, &head, body, c->request.method == HTTP_HEAD ? 0 : length, NULL);
    buffer_free(&head);
    end_response(c);
}

void connection_stream(struct connection *c, int status, const char *type, const char *headers)
{
    struct buffer head = {0};
    if (!c->chunked) c->keep_alive = false; // the end of the connection is the end of the response
    put_head(c, &head, status, type, headers);
    buffer_text(&head, c->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    send_bytes(c, &head, NULL, 0, NULL);
    buffer_free(&head);
}

void connection_write(struct connection *c, const void *data, size_t length)
{
    struct buffer head = {0};
    if (length == 0) return;
    if (c->chunked) buffer_printf(&head, "%zx\r\n", length);
    send_bytes(c, &head, data, length, c->chunked ? "\r\n" : NULL);
    buffer_free(&head);
}

void connection_end(struct connection *c, bool keep_alive)
{
    struct buffer head = {0};
    if (!keep_alive) c->keep_alive = false;
    if (c->chunked) buffer_text(&head, "0\r\n\r\n");
    send_bytes(c, &head, NULL, 0, NULL);
    buffer_free(&head);
    end_response(c);
}

/* ---- life ---- */

static void on_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;
    struct server *s = c->server;
    if (c->previous)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    if (c->next) c->next->previous = c->previous;
    s->connection_count--;
    buffer_free(&c->request.url);
    buffer_free(&c->request.headers);
    buffer_free(&c->request.body);
    buffer_free(&c->pending);
    free(c);
}

void connection_close(struct connection *c)
{
    if (c->closing) return;
    c->closing = true;
    if (c->busy) {
        if (!c->status) c->status = 499; // the client left before there was an answer
        access_log(c);
    }
    if (c->exchange) exchange_gone(c->exchange);
    if (c->errand) errand_gone(c->errand);
    c->errand = NULL;
    c->exchange = NULL;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

void connection_tick(struct connection *c, uint64_t now)
{
    if (c->closing) return;
    bool unsent = uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) > 0;
    if (unsent && now > c->written_ns && now - c->written_ns > STALL_NS) {
        connection_close(c);
    } else if (!c->busy && now > c->deadline_ns) {
        // In the middle of a request the client is told; between requests it is not waiting for anything.
        if (!c->discarding && c->request.begun_ns)
            refuse(c, 408);
        else if (!unsent || c->discarding)
            connection_close(c);
    }
}

void connection_accept(struct server *s)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c) return;
    c->server = s;
    if (uv_tcp_init(&s->loop, &c->tcp)) {
        free(c);
        return;
    }
    c->tcp.data = c;
    c->next = s->connections;
    if (c->next) c->next->previous = c;
    s->connections = c;
    s->connection_count++;
    s->count.connections_total++;
    if (uv_accept((uv_stream_t *)&s->listener, (uv_stream_t *)&c->tcp)) {
        connection_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    struct sockaddr_storage peer;
    int length = sizeof peer;
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&peer, &length) == 0)
        uv_ip_name((struct sockaddr *)&peer, c->client, sizeof c->client);
    llhttp_init(&c->parser, HTTP_REQUEST, &settings);
    c->parser.data = c;
    c->deadline_ns = clock_ns() + s->o->idle_timeout_s * SECOND_NS;
    if (s->connection_count > s->o->connections) {
        s->count.connections_refused++;
        c->chunked = true;
        refuse(c, 503);
        return;
    }
    read_on(c, true);
}
