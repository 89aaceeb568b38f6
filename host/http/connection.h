/* connection.h: one TCP connection speaking HTTP/1.1: bytes -> requests, responses -> bytes.
 *
 * One request at a time: the next pipelined one is parsed when the response before it is queued. A handler
 * answers at once (connection_reply) or later, whole or as a stream; until then `exchange` says who to tell
 * when the client leaves. Limits on head, body, time and unread output end a connection, never the process.
 */
#ifndef DUCKD_HOST_HTTP_CONNECTION_H
#define DUCKD_HOST_HTTP_CONNECTION_H

#include <llhttp.h>
#include <uv.h>

#include "host/http/server.h"
#include "host/text/buffer.h"

#define CONNECTION_MAX_HEAD (32u << 10) // of all headers together

struct request {
    llhttp_method_t method;
    struct buffer url;     // as sent
    struct buffer headers; // name NUL value NUL ..., names in lower case
    struct buffer body;
    bool head_complete;
    uint64_t begun_ns, complete_ns; // first byte, last byte
};
/* Value of the first header of that (lower-case) name, NULL: none. */
const char *request_header(const struct request *r, const char *name);

struct connection {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    struct server *server;
    struct connection *next, *previous;
    llhttp_t parser;
    struct request request;
    struct buffer pending; // read but not parsed: behind the request being answered
    char client[64];
    char request_id[40];

    struct errand *errand;     // its body is being read; told by errand_gone()
    struct exchange *exchange; // answers later; told by exchange_gone() when the client leaves
    bool busy;                 // a request is being answered
    bool keep_alive, chunked, head_sent;
    bool processing, reading, discarding, closing, close_after_write;
    int reject;                                   // status decided while parsing; 0: none
    int status;                                   // of the response, for the log
    uint64_t sent_bytes, deadline_ns, written_ns; // written_ns: output last moved
    uint32_t prompt_tokens, completion_tokens;    // of the response, for the log
};

void connection_accept(struct server *s);
void connection_tick(struct connection *c, uint64_t now_ns);
void connection_close(struct connection *c);

/* A whole response. `headers`: further lines, each with CRLF; may be NULL. */
void connection_reply(struct connection *c, int status, const char *type, const char *headers,
                      const void *body, size_t length);
/* A response whose length is not known: head, pieces, end. */
void connection_stream(struct connection *c, int status, const char *type, const char *headers);
void connection_write(struct connection *c, const void *data, size_t length);
void connection_end(struct connection *c, bool keep_alive);

#endif
