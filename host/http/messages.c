/* messages.c: the messages of a chat request -> token ids. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/http/request_body.h"

const char *body_content(const cJSON *content, struct buffer *joined, bool *bad)
{
    const cJSON *part;
    *bad = false;
    if (!content || cJSON_IsNull(content)) return NULL;
    if (cJSON_IsString(content)) return content->valuestring;
    *bad = true;
    if (!cJSON_IsArray(content)) return NULL;
    cJSON_ArrayForEach(part, content)
    {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        if (cJSON_IsString(part)) text = part;
        if (cJSON_IsString(type) && strcmp(type->valuestring, "text") != 0) return NULL;
        if (!cJSON_IsString(text)) return NULL;
        buffer_text(joined, text->valuestring);
    }
    *bad = buffer_failed(joined);
    return joined->data ? joined->data : "";
}

static int find_role(const cJSON *message, enum chat_role *out)
{
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT}};
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(role->valuestring, roles[i].name) != 0) continue;
        *out = roles[i].role;
        return 0;
    }
    return -EINVAL;
}

static int read_message(const cJSON *message, size_t index, struct chat_message *out, struct buffer *joined,
                        struct api_problem *p)
{
    char param[48];
    bool bad;
    snprintf(param, sizeof param, "messages[%zu]", index);
    if (!cJSON_IsObject(message))
        return api_problem_set(p, 400, "invalid_value", param, "%s must be an object", param);
    if (find_role(message, &out->role))
        return api_problem_set(p, 400, "invalid_value", param,
                               "%s needs a role: system, developer, user or assistant", param);
    const char *text = body_content(cJSON_GetObjectItemCaseSensitive(message, "content"), joined, &bad);
    if (bad)
        return api_problem_set(p, 400, "invalid_value", param,
                               "the content of %s must be a string or an array of text parts", param);
    if (!text && out->role != CHAT_ASSISTANT)
        return api_problem_set(p, 400, "invalid_value", param, "%s has no content", param);
    out->content = text ? text : "";
    out->length = strlen(out->content);
    return 0;
}

int messages_encode(const struct http_options *o, const cJSON *body, bool thinking, struct ids *out,
                    struct api_problem *p)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(body, "messages"), *item;
    int size = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (size == 0)
        return api_problem_set(p, 400, "invalid_value", "messages",
                               "messages must be an array with at least one message");
    struct chat_message *messages = calloc((size_t)size, sizeof *messages);
    struct buffer *joined = calloc((size_t)size, sizeof *joined);
    int rc = messages && joined ? 0 : api_problem_set(p, 500, NULL, NULL, "out of memory");
    size_t n = 0;
    if (!rc) {
        cJSON_ArrayForEach(item, list)
        {
            rc = read_message(item, n, &messages[n], &joined[n], p);
            n++;
            if (rc) break;
        }
    }
    struct error err;
    if (!rc && chat_encode(o->chat, o->tokenizer, messages, n, thinking, out, &err))
        rc = api_problem_set(p, 400, "invalid_value", "messages", "%s", err.text);
    for (size_t i = 0; joined && i < n; i++) buffer_free(&joined[i]);
    free(joined);
    free(messages);
    return rc;
}
