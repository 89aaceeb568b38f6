/* handlers.c: the short answers: health, models, tokenize, the chat page. */
#include "host/http/handlers.h"

#include <string.h>

#include "host/http/errand.h"
#include "host/http/page_html.h"
#include "host/http/routes.h"
#include "host/util/clock.h"
#include "host/util/log.h"

void handle_page(struct connection *c, const char *rest)
{
    (void)rest;
    connection_reply(c, 200, "text/html; charset=utf-8",
                     "Cache-Control: no-cache\r\n"
                     "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; "
                     "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                     "form-action 'none'; frame-ancestors 'none'\r\n"
                     "Referrer-Policy: no-referrer\r\n",
                     page_html, sizeof page_html);
}

static void append_eta(struct buffer *b, double left)
{
    buffer_text(b, ",\"eta_s\":");
    if (left >= 0)
        buffer_json_number(b, left, 1);
    else
        buffer_text(b, "null");
}

static void append_slowest(struct buffer *b, const struct progress_part *p)
{
    buffer_text(b, ",\"slowest\":");
    if (!*p->name) {
        buffer_text(b, "null");
        return;
    }
    buffer_text(b, "{\"duck\":");
    buffer_json_string(b, p->name, strlen(p->name));
    buffer_printf(b, ",\"bytes\":%.0f,\"bytes_total\":%.0f,\"bytes_per_second\":%.0f", p->amount.done,
                  p->amount.total, p->amount.rate);
    append_eta(b, progress_left_s(&p->amount));
    buffer_text(b, "}");
}

static void reply_loading(struct connection *c)
{
    struct buffer b = {0};
    struct progress_state p;
    progress_look(&p);
    buffer_text(&b, "{\"status\":\"loading\",\"percent\":");
    buffer_json_number(&b, p.all.total > 0 ? 100 * p.all.done / p.all.total : 0, 1);
    append_eta(&b, p.left_s);
    append_slowest(&b, &p.slowest);
    buffer_text(&b, ",\"error\":{\"message\":\"the model is still loading\",\"type\":\"server_error\","
                    "\"param\":null,\"code\":\"loading\"}}");
    connection_reply(c, 503, "application/json", "Retry-After: 1\r\n", b.data, b.length);
    buffer_free(&b);
}

void handle_health(struct connection *c, const char *rest)
{
    (void)rest;
    struct server *s = c->server;
    struct api_problem p;
    if (s->draining) {
        api_problem_set(&p, 503, "shutting_down", NULL, "the server is shutting down");
        api_reply_problem(c, &p);
        return;
    }
    struct error why;
    enum worker_state state = worker_state(s->worker, &why);
    if (state == WORKER_LOADING) {
        reply_loading(c);
        return;
    }
    if (state == WORKER_STRANDED) {
        api_problem_set(&p, 503, "no_ducks", NULL, "%s", why.text);
        api_reply_problem(c, &p);
        return;
    }
    struct buffer b = {0};
    buffer_text(&b, "{\"status\":\"ok\",\"model\":");
    buffer_json_string(&b, s->o->model_name, strlen(s->o->model_name));
    buffer_printf(&b, ",\"requests\":%u}", s->outstanding);
    api_reply_json(c, 200, &b);
}

static void put_model(struct buffer *b, const struct server *s)
{
    const char *name = s->o->model_name;
    buffer_text(b, "{\"id\":");
    buffer_json_string(b, name, strlen(name));
    buffer_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"duckd\",\"max_model_len\":%u}",
                  (long long)s->started_at, s->o->config->max_positions);
}

void handle_models(struct connection *c, const char *rest)
{
    (void)rest;
    struct buffer b = {0};
    buffer_text(&b, "{\"object\":\"list\",\"data\":[");
    put_model(&b, c->server);
    buffer_text(&b, "]}");
    api_reply_json(c, 200, &b);
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Part of a path is this text; clients escape what they like, the '/' in a name for instance. */
static bool path_says(const char *path, size_t length, const char *text)
{
    for (size_t i = 0; i < length; i++, text++) {
        char c = path[i];
        int high = c == '%' && i + 2 < length ? hex_digit(path[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(path[i + 2]) : -1;
        if (low >= 0) {
            c = (char)(16 * high + low);
            i += 2;
        }
        if (!*text || c != *text) return false;
    }
    return !*text;
}

void handle_model(struct connection *c, const char *rest)
{
    const char *name = c->server->o->model_name;
    size_t length = strcspn(rest, "?#");
    if (length > 0 && rest[length - 1] == '/') length--;
    if (!path_says(rest, length, name)) {
        struct api_problem p;
        api_problem_set(&p, 404, "model_not_found", "model", "there is no model '%.*s' here, only '%s'",
                        (int)(length < 100 ? length : 100), rest, name);
        api_reply_problem(c, &p);
        return;
    }
    struct buffer b = {0};
    put_model(&b, c->server);
    api_reply_json(c, 200, &b);
}

static int tokenize(const struct http_options *o, const cJSON *body, struct ids *ids, struct api_problem *p)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(body, "content");
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(body, "allow_special");
    struct error err;
    if (!cJSON_IsString(content))
        return api_problem_set(p, 400, "invalid_value", "content", "content must be a string");
    if (special && !cJSON_IsNull(special) && !cJSON_IsBool(special))
        return api_problem_set(p, 400, "invalid_value", "allow_special",
                               "allow_special must be true or false");
    if (tokenizer_encode(o->tokenizer, content->valuestring, strlen(content->valuestring),
                         cJSON_IsTrue(special), ids, &err))
        return api_problem_set(p, 500, NULL, NULL, "%s", err.text);
    return 0;
}

static int read_text(struct errand *e)
{
    cJSON *body = NULL;
    int rc = body_parse(&e->request, &body, &e->problem);
    if (!rc) rc = tokenize(e->server->o, body, &e->ids, &e->problem);
    cJSON_Delete(body);
    return rc;
}

static void reply_ids(struct errand *e, int rc)
{
    if (rc) {
        api_reply_problem(e->connection, &e->problem);
        return;
    }
    struct buffer b = {0};
    buffer_text(&b, "{\"tokens\":[");
    for (size_t i = 0; i < e->ids.count; i++) buffer_printf(&b, i ? ",%d" : "%d", e->ids.id[i]);
    buffer_printf(&b, "],\"count\":%zu}", e->ids.count);
    api_reply_json(e->connection, 200, &b);
}

void handle_tokenize(struct connection *c, const char *rest)
{
    (void)rest;
    errand_run(c, false, read_text, reply_ids);
}
