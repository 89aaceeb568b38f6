/* routes.h: which handler answers which request, who may ask, and errors in the shape of OpenAI's API. */
#ifndef DUCKD_HOST_HTTP_ROUTES_H
#define DUCKD_HOST_HTTP_ROUTES_H

#include "host/http/connection.h"

/* Answers (or begins to answer) the request that c->request holds. */
void routes_dispatch(struct connection *c);
/* Answers something that never became a request. */
void routes_refuse(struct connection *c, int status);
/* Appends what the request's Origin is entitled to. */
void routes_cors_headers(const struct connection *c, struct buffer *head);

/* What a request got wrong, or what went wrong with it. */
struct api_problem {
    int status;
    const char *code; // NULL: null
    char param[48];   // empty: null
    struct error text;
};
/* Fills *p and returns -EINVAL. */
int api_problem_set(struct api_problem *p, int status, const char *code, const char *param,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
#ifdef __clang_analyzer__ // as in error.h
#define api_problem_set(p, status, code, param, ...)                                                         \
    (api_problem_set((p), (status), (code), (param), __VA_ARGS__), -EINVAL)
#endif
/* {"error":{...}} */
void api_problem_json(struct buffer *out, const struct api_problem *p);
void api_reply_problem(struct connection *c, const struct api_problem *p);
void api_reply_json(struct connection *c, int status, struct buffer *json); // frees *json

/* Bearer tokens from a file: a key per line, empty lines and lines beginning with # are skipped. */
int keys_read(struct server *s, const char *path, struct error *err);
bool keys_accept(const struct server *s, const char *authorization);
void keys_free(struct server *s);

#endif
