/* request_body.h: JSON bodies, read leniently: what clients send in many ways becomes one struct.
 *
 * Unknown keys and explicit nulls are ignored. A key that is understood but holds what cannot be applied is
 * refused with its name: nothing is accepted and then not done. */
#ifndef DUCKD_HOST_HTTP_REQUEST_BODY_H
#define DUCKD_HOST_HTTP_REQUEST_BODY_H

#include <cjson/cJSON.h>

#include "host/http/job.h"
#include "host/http/routes.h"

/* Parses the body as a JSON object, in which halves of characters become U+FFFD; refuses what a C string
 * would silently cut (NUL). */
int body_parse(const struct request *r, cJSON **out, struct api_problem *p);

struct completion_request {
    bool chat, stream, include_usage;
    struct job *job; // prompt, sampling, stop strings and all; NULL until read
};
/* On success the caller owns q->job. */
int completion_read(const struct http_options *o, const cJSON *body, struct completion_request *q,
                    struct api_problem *p);

/* messages -> token ids (messages.c); fills chat->messages for the time being. */
int messages_encode(const struct http_options *o, const cJSON *body, struct chat_request *chat,
                    struct ids *out, struct api_problem *p);
/* tools and tool_choice -> *chat, which points into the body afterwards (request_tools.c). */
int tools_read(const cJSON *body, struct chat_request *chat, struct api_problem *p);
/* The parser of the calls that the answer may hold, as j->tools. */
int tools_begin(const struct http_options *o, const cJSON *body, const struct chat_request *chat, bool stream,
                struct job *j, struct api_problem *p);

#endif
