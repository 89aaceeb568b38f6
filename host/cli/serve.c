/* serve.c: `duckd serve`: the model behind HTTP. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/session.h"
#include "host/http/http.h"
#include "host/model/json.h"

static int load(void *ctx, struct engine **out, struct error *err)
{
    struct session *s = ctx;
    int rc = session_load(s, err);
    if (rc) return rc;
    *out = s->engine;
    s->engine = NULL; // the server's from here on
    return 0;
}

static void take_number(const cJSON *root, const char *key, double low, double high, float *out)
{
    const cJSON *item = json_get(root, key);
    if (cJSON_IsNumber(item) && item->valuedouble >= low && item->valuedouble <= high)
        *out = (float)item->valuedouble;
}

/* What the model's makers suggest for requests that say nothing: generation_config.json; sampling as trained
 * where there is none. */
static int read_defaults(const struct session *s, struct sampling *out, struct error *err)
{
    char path[4200];
    cJSON *root = NULL;
    *out = SAMPLING_GREEDY;
    out->temperature = 1;
    snprintf(path, sizeof path, "%s/generation_config.json", s->dir);
    int rc = json_read(&root, path, 1u << 20, err);
    if (rc == -ENOENT) return 0;
    if (rc) return rc;
    if (cJSON_IsFalse(json_get(root, "do_sample"))) {
        out->temperature = 0;
    } else {
        take_number(root, "temperature", 0, 100, &out->temperature);
        take_number(root, "top_p", 0, 1, &out->top_p);
    }
    take_number(root, "repetition_penalty", 0.01, 100, &out->repetition_penalty);
    cJSON_Delete(root);
    return 0;
}

/* The last part of the directory's path. */
static void name_model(const struct session *s, char *out, size_t size)
{
    size_t end = strlen(s->dir);
    while (end > 1 && s->dir[end - 1] == '/') end--;
    size_t from = end;
    while (from > 0 && s->dir[from - 1] != '/') from--;
    snprintf(out, size, "%.*s", (int)(end - from), s->dir + from);
}

int command_serve(const struct options *o, struct error *err)
{
    struct session s;
    char name[256];
    int rc = session_prepare(&s, o, SESSION_CHAT, err);
    if (rc) return rc;
    name_model(&s, name, sizeof name);
    s.lanes = (uint32_t)o->lanes;
    s.kv_cache_bytes = (uint64_t)o->kv_cache_mb << 20;
    s.kv_dir = o->kv_dir;
    s.kv_dir_bytes = (uint64_t)o->kv_dir_mb << 20;
    struct http_options h = {
        .listen = o->listen ? o->listen : HTTP_LISTEN,
        .model_name = o->model_name ? o->model_name : name,
        .api_keys = o->api_keys,
        .origins = o->cors.item,
        .origin_count = o->cors.count,
        .lanes = (uint32_t)o->lanes,
        .queue = (uint32_t)o->queue,
        .connections = (uint32_t)o->connections,
        .max_body = (size_t)o->max_body_mb << 20,
        .request_timeout_s = (uint32_t)o->request_timeout_s,
        .idle_timeout_s = (uint32_t)o->idle_timeout_s,
        .drain_timeout_s = (uint32_t)o->drain_timeout_s,
        .config = &s.config,
        .tokenizer = s.tokenizer,
        .chat = &s.chat,
        .load = load,
        .ctx = &s,
    };
    rc = read_defaults(&s, &h.sampling, err);
    if (!rc) rc = http_serve(&h, err);
    session_close(&s);
    return rc;
}
