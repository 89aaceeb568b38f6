/* access_log.c: see access_log.h. The query of a URL is left out: it may hold what nobody should log. */
#include "host/http/access_log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host/http/connection.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define MAX_PATH 200u

void access_log(const struct connection *c)
{
    const struct request *r = &c->request;
    struct buffer line = {0};
    struct timespec now;
    struct tm tm;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    buffer_printf(&line,
                  "{\"time\":\"%s.%03ldZ\",\"id\":\"%s\",\"client\":\"%s\",\"method\":\"%s\",\"path\":", when,
                  now.tv_nsec / 1000000, c->request_id, c->client,
                  r->head_complete ? llhttp_method_name(r->method) : "-");
    size_t length = r->url.length ? strcspn(r->url.data, "?") : 0;
    buffer_json_string(&line, length ? r->url.data : "", length < MAX_PATH ? length : MAX_PATH);
    buffer_printf(&line, ",\"status\":%d,\"ms\":%.1f,\"bytes\":%llu", c->status,
                  (double)(clock_ns() - r->begun_ns) * 1e-6, (unsigned long long)c->sent_bytes);
    if (c->prompt_tokens)
        buffer_printf(&line, ",\"prompt_tokens\":%u,\"completion_tokens\":%u", c->prompt_tokens,
                      c->completion_tokens);
    buffer_text(&line, "}");
    if (!buffer_failed(&line)) log_notice("%s", line.data);
    buffer_free(&line);
}
