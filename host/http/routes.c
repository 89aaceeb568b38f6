/* routes.c: see routes.h. */
#include "host/http/routes.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "host/http/exchange.h"
#include "host/http/handlers.h"

enum access { OPEN, WITH_KEY };

struct route {
    const char *path; // without /v1; one that ends in '/' takes whatever follows
    llhttp_method_t method;
    enum access access;
    void (*handle)(struct connection *c, const char *rest);
};

static const struct route routes[] = {
    {"", HTTP_GET, OPEN, handle_page},
    {"/", HTTP_GET, OPEN, handle_page},
    {"/health", HTTP_GET, OPEN, handle_health},
    {"/models", HTTP_GET, WITH_KEY, handle_models},
    {"/models/", HTTP_GET, WITH_KEY, handle_model},
    {"/tokenize", HTTP_POST, WITH_KEY, handle_tokenize},
    {"/chat/completions", HTTP_POST, WITH_KEY, handle_chat},
    {"/completions", HTTP_POST, WITH_KEY, handle_completions},
    {"/metrics", HTTP_GET, WITH_KEY, handle_metrics},
    {"/metrics.json", HTTP_GET, WITH_KEY, handle_metrics_json},
};

/* ---- errors ---- */

int(api_problem_set)(struct api_problem *p, int status, const char *code, const char *param,
                     const char *format, ...)
{
    va_list args;
    p->status = status;
    p->code = code;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(p->text.text, sizeof p->text.text, format, args);
    va_end(args);
    for (char *at = p->text.text; *at; at++) // it may quote what the client wrote
        if ((unsigned char)*at < ' ') *at = ' ';
    return -EINVAL;
}

static const char *problem_type(int status)
{
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void api_problem_json(struct buffer *out, const struct api_problem *p)
{
    buffer_text(out, "{\"error\":{\"message\":");
    buffer_json_string(out, p->text.text, strlen(p->text.text));
    buffer_printf(out, ",\"type\":\"%s\",\"param\":", problem_type(p->status));
    if (p->param[0])
        buffer_json_string(out, p->param, strlen(p->param));
    else
        buffer_text(out, "null");
    if (p->code)
        buffer_printf(out, ",\"code\":\"%s\"}}", p->code);
    else
        buffer_text(out, ",\"code\":null}}");
}

static void reply_problem(struct connection *c, const struct api_problem *p, const char *headers)
{
    struct buffer json = {0};
    api_problem_json(&json, p);
    connection_reply(c, p->status, "application/json", headers, json.data, json.length);
    buffer_free(&json);
}

void api_reply_problem(struct connection *c, const struct api_problem *p)
{
    const char *headers = p->status == 429 || p->status == 503 ? "Retry-After: 1\r\n"
                          : p->status == 401                   ? "WWW-Authenticate: Bearer\r\n"
                                                               : NULL;
    reply_problem(c, p, headers);
}

void api_reply_json(struct connection *c, int status, struct buffer *json)
{
    if (buffer_failed(json)) {
        struct api_problem p;
        api_problem_set(&p, 500, NULL, NULL, "out of memory");
        api_reply_problem(c, &p);
    } else {
        connection_reply(c, status, "application/json", NULL, json->data, json->length);
    }
    buffer_free(json);
}

void routes_refuse(struct connection *c, int status)
{
    struct api_problem p;
    const struct http_options *o = c->server->o;
    switch (status) {
    case 405:
        api_problem_set(&p, status, NULL, NULL, "CONNECT is not answered here");
        break;
    case 408:
        api_problem_set(&p, status, "timeout", NULL, "the request was not complete in time");
        break;
    case 413:
        api_problem_set(&p, status, "request_too_large", NULL, "the request body is larger than %zu MB",
                        o->max_body >> 20);
        break;
    case 414:
        api_problem_set(&p, status, NULL, NULL, "the URL is too long");
        break;
    case 417:
        api_problem_set(&p, status, NULL, NULL, "Expect can only be 100-continue");
        break;
    case 431:
        api_problem_set(&p, status, NULL, NULL, "the request's headers are too large");
        break;
    case 503:
        api_problem_set(&p, status, "overloaded", NULL, "too many connections (at most %u)", o->connections);
        break;
    default:
        api_problem_set(&p, status, NULL, NULL, "this is no HTTP/1.1 request: %s",
                        llhttp_get_error_reason(&c->parser) ? llhttp_get_error_reason(&c->parser) : "");
    }
    api_reply_problem(c, &p);
}

/* ---- origins ---- */

/* Without the port; IPv6 in brackets. */
static size_t host_length(const char *host)
{
    const char *end = host[0] == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end + 1 - host) : strcspn(host, ":");
}

static bool is_loopback(const char *host)
{
    size_t n = host_length(host);
    return (n == 9 && !strncasecmp(host, "localhost", 9)) ||
           (!strncmp(host, "127.", 4) && strspn(host, "0123456789.") == n) ||
           (n == 5 && !strncmp(host, "[::1]", 5));
}

/* A page may call if it comes from this host, from whichever port, or from a configured origin. Bound to
 * loopback, this host has a loopback name: a foreign name that somebody made point here is a foreign page. */
static bool origin_accepted(const struct connection *c, const char *origin)
{
    const struct http_options *o = c->server->o;
    for (size_t i = 0; i < o->origin_count; i++)
        if (!strcmp(o->origins[i], "*") || !strcasecmp(o->origins[i], origin)) return true;
    const char *host = request_header(&c->request, "host"), *from = strstr(origin, "://");
    if (!host || !from) return false;
    from += strlen("://");
    if (c->server->loopback) return is_loopback(host) && is_loopback(from);
    size_t length = host_length(host);
    return length == host_length(from) && !strncasecmp(from, host, length);
}

void routes_cors_headers(const struct connection *c, struct buffer *head)
{
    const char *origin = request_header(&c->request, "origin");
    if (!origin) return;
    buffer_text(head, "Vary: Origin\r\n");
    if (!origin_accepted(c, origin)) return;
    buffer_printf(head, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: X-Request-Id\r\n",
                  origin);
}

/* ---- dispatch ---- */

static void answer_preflight(struct connection *c)
{
    connection_reply(c, 204, NULL,
                     "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                     "Access-Control-Allow-Headers: *, Authorization, Content-Type\r\n"
                     "Access-Control-Max-Age: 600\r\n",
                     NULL, 0);
}

/* The path without query and /v1, in place. */
static const char *plain_path(struct request *r)
{
    if (!r->url.length) return "";
    char *path = r->url.data;
    char *absolute = path[0] == '/' ? NULL : strstr(path, "://"); // as a proxy would write it
    if (absolute) {
        absolute = strchr(absolute + 3, '/');
        path = absolute ? absolute : path + strlen(path);
    }
    if (!strncmp(path, "/v1", 3) && (path[3] == '/' || path[3] == '\0' || path[3] == '?')) path += 3;
    return path;
}

static const char *match(const struct route *r, const char *path, size_t length)
{
    size_t n = strlen(r->path);
    bool open_ended = n > 1 && r->path[n - 1] == '/';
    if (open_ended ? length > n : length == n)
        if (strncmp(path, r->path, n) == 0) return path + n;
    return NULL;
}

static bool method_fits(const struct route *r, llhttp_method_t method)
{
    return r->method == method || (r->method == HTTP_GET && method == HTTP_HEAD);
}

static void run_route(struct connection *c, const struct route *r, const char *rest)
{
    struct api_problem p;
    if (r->access == WITH_KEY && !keys_accept(c->server, request_header(&c->request, "authorization"))) {
        api_problem_set(&p, 401, "invalid_api_key", NULL, "no valid API key in the Authorization header");
        api_reply_problem(c, &p);
        return;
    }
    r->handle(c, rest);
}

void routes_dispatch(struct connection *c)
{
    struct api_problem p;
    const char *path = plain_path(&c->request), *origin = request_header(&c->request, "origin");
    size_t length = strcspn(path, "?#");
    if (length > 1 && path[length - 1] == '/') length--; // some clients put one behind every path
    llhttp_method_t method = c->request.method;
    if (origin && method != HTTP_GET && method != HTTP_HEAD && !origin_accepted(c, origin)) {
        api_problem_set(&p, 403, "origin_not_allowed", NULL, "pages from %.100s may not call this server",
                        origin);
        api_reply_problem(c, &p);
        return;
    }
    if (method == HTTP_OPTIONS) {
        answer_preflight(c);
        return;
    }
    const struct route *other = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const char *rest = match(&routes[i], path, length);
        if (!rest) continue;
        if (method_fits(&routes[i], method)) {
            run_route(c, &routes[i], rest);
            return;
        }
        other = &routes[i];
    }
    if (other) {
        api_problem_set(&p, 405, NULL, NULL, "%s takes %s, not %s", other->path,
                        llhttp_method_name(other->method), llhttp_method_name(method));
        const char *allow =
            other->method == HTTP_GET ? "Allow: GET, HEAD, OPTIONS\r\n" : "Allow: POST, OPTIONS\r\n";
        reply_problem(c, &p, allow);
        return;
    }
    const char *asked = c->request.url.length ? c->request.url.data : ""; // with what plain_path() leaves out
    size_t shown = (size_t)(path - asked) + length;
    api_problem_set(&p, 404, "not_found", NULL, "there is nothing at %.*s", (int)(shown < 200 ? shown : 200),
                    asked);
    api_reply_problem(c, &p);
}
