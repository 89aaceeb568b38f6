/* exchange.h: one completion request from admission to its last byte.
 *
 * Joins a connection (or what is left of one) and a job. Made by handle_chat() and handle_completions();
 * ends when the worker has finished the job, whether or not the client is still there. */
#ifndef DUCKD_HOST_HTTP_EXCHANGE_H
#define DUCKD_HOST_HTTP_EXCHANGE_H

#include "host/http/connection.h"
#include "host/http/job.h"

struct exchange {
    struct server *server;
    struct connection *connection; // NULL: the client has left
    struct exchange *next, *previous;
    struct job *job;
    bool chat, stream, include_usage;
    char id[48];
    int64_t created;
    uint64_t sent_ns; // when the stream last said something
    uint32_t prefill_done, prefill_total;
    struct job_output whole; // what came so far, where it is sent at once at the end
    size_t text_offset;      // of the next token, for the logprobs of /completions
};

/* New output of a job; the last one frees the exchange. */
void exchange_output(struct exchange *x, struct job_output *out);
/* The client left: the job is cancelled and its lane free at the next token. */
void exchange_gone(struct exchange *x);
/* A comment line where a stream was silent for long. */
void exchange_tick(struct exchange *x, uint64_t now_ns);
/* The server ends: the client gets an error instead of the rest. */
void exchange_abort(struct exchange *x);
void exchange_free(struct exchange *x);

/* completion_json.c: bodies and chunks. */
void completion_delta(struct buffer *b, struct exchange *x, const char *role, const struct job_output *out,
                      const char *finish_reason);
void completion_usage_chunk(struct buffer *b, const struct exchange *x, const struct job_output *last);
void completion_whole(struct buffer *b, struct exchange *x, const struct job_output *last,
                      const char *finish_reason);

#endif
