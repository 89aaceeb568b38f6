/* errand.h: reading a large request body on another thread, so that nobody waits for it.
 *
 * libuv's pool runs `read` on the body, which moves here from the connection; then the HTTP thread gets what
 * came of it, unless the client has left. `read` may use what never changes while the server runs (options,
 * tokenizer), nothing else. cJSON notes where a parse failed in a variable of its own for all threads; nobody
 * reads it. */
#ifndef DUCKD_HOST_HTTP_ERRAND_H
#define DUCKD_HOST_HTTP_ERRAND_H

#include "host/http/connection.h"
#include "host/http/request_body.h"

#define ERRAND_BODY (32u << 10) // a smaller body is read at once: it takes a few milliseconds

struct errand {
    uv_work_t work;
    struct server *server;
    struct connection *connection; // NULL: the client has left
    struct request request;        // its body alone
    int (*read)(struct errand *e); // on another thread; 0 or the problem
    void (*done)(struct errand *e, int rc);
    int rc;

    // what was read
    struct completion_request completion;
    struct ids ids;
    struct api_problem problem;
};

/* Reads c->request's body, at once or later, and calls done() on this thread, unless the client leaves
 * before. */
void errand_run(struct connection *c, bool chat, int (*read)(struct errand *e),
                void (*done)(struct errand *e, int rc));
void errand_gone(struct errand *e); // the client left

#endif
