/* messages.c: the messages of a chat request -> token ids. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/http/request_body.h"
#include "host/model/json.h"
#include "host/util/json_depth.h"

/* What the messages of a request point into. */
struct reading {
    struct chat_message *message; // (count)
    struct reading_message {
        struct buffer joined; // text of an array of parts
        struct chat_call *call;
        const cJSON *calls; // of an answer
        size_t order;       // of a tool's result: the call it answers
    } * more;               // (count)
    size_t count;
};

/* Text of a message: a string, or an array of text parts joined in *joined. NULL: there is none. */
static const char *content_of(const cJSON *content, struct buffer *joined, bool *bad)
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
                 {"assistant", CHAT_ASSISTANT},
                 {"tool", CHAT_TOOL}};
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(role->valuestring, roles[i].name) != 0) continue;
        *out = roles[i].role;
        return 0;
    }
    return -EINVAL;
}

/* ---- answers with calls, and what tools said ---- */

static const cJSON *call_function(const cJSON *call, const char *member)
{
    const cJSON *f = cJSON_GetObjectItemCaseSensitive(call, "function");
    return cJSON_GetObjectItemCaseSensitive(f, member);
}

/* One call of an answer; `nth` and `param` are for messages. */
static int read_call(const cJSON *call, size_t nth, const char *param, struct chat_call *out,
                     struct api_problem *p)
{
    const char *name = cJSON_GetStringValue(call_function(call, "name"));
    const char *arguments = cJSON_GetStringValue(call_function(call, "arguments")), *end = NULL;
    cJSON *parsed = arguments ? cJSON_ParseWithOpts(arguments, &end, 0) : NULL;
    bool object = cJSON_IsObject(parsed) || (arguments && !*arguments), unread = arguments && !parsed;
    cJSON_Delete(parsed);
    if (unread && json_stopped_too_deep(arguments, end, CJSON_NESTING_LIMIT))
        return api_problem_set(p, 400, "invalid_value", param,
                               "function.arguments of call %zu of %s are nested deeper than %d", nth, param,
                               CJSON_NESTING_LIMIT);
    if (!name || !*name || !object)
        return api_problem_set(p, 400, "invalid_value", param,
                               "call %zu of %s needs function.name and function.arguments, the text of "
                               "a JSON object",
                               nth, param);
    *out = (struct chat_call){name, arguments};
    return 0;
}

static int read_calls(const cJSON *message, const char *param, struct chat_message *out,
                      struct reading_message *more, struct api_problem *p)
{
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls"), *call;
    if (!calls || cJSON_IsNull(calls)) return 0;
    int size = cJSON_IsArray(calls) ? cJSON_GetArraySize(calls) : -1;
    if (size < 0)
        return api_problem_set(p, 400, "invalid_value", param, "tool_calls of %s must be an array", param);
    if (size == 0) return 0;
    more->calls = calls;
    more->call = calloc((size_t)size, sizeof *more->call);
    if (!more->call) return api_problem_set(p, 500, NULL, NULL, "out of memory");
    cJSON_ArrayForEach(call, calls)
    {
        int rc = read_call(call, out->call_count, param, &more->call[out->call_count], p);
        if (rc) return rc;
        out->call_count++;
    }
    out->call = more->call;
    return 0;
}

/* Which of the answer's calls has this id: -1, none, although all have one; -2: that cannot be told. */
static int find_call(const cJSON *calls, const cJSON *id)
{
    const cJSON *call;
    int place = 0;
    bool all_known = true;
    if (!cJSON_IsString(id) || !id->valuestring[0]) return -2;
    cJSON_ArrayForEach(call, calls)
    {
        const cJSON *known = cJSON_GetObjectItemCaseSensitive(call, "id");
        if (cJSON_IsString(known) && !strcmp(id->valuestring, known->valuestring)) return place;
        all_known &= cJSON_IsString(known) && known->valuestring[0];
        place++;
    }
    return all_known ? -1 : -2;
}

static bool has_result(const struct reading *r, size_t first, size_t call)
{
    for (size_t i = first; i < r->count; i++)
        if (r->more[i].order == call) return true;
    return false;
}

/* A result goes where the call is that it names, else to the first without one: the encodings know calls by
 * their order alone. */
static int place_result(struct reading *r, const cJSON *message, const char *param, struct api_problem *p)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(message, "tool_call_id");
    size_t at = r->count, first = at, order = 0;
    while (first > 0 && r->message[first - 1].role == CHAT_TOOL) first--;
    const struct chat_message *answer = first > 0 ? &r->message[first - 1] : NULL;
    if (!answer || at - first >= answer->call_count)
        return api_problem_set(p, 400, "invalid_value", param,
                               "%s is a tool's result number %zu, but the answer before it calls %zu", param,
                               at - first + 1, answer ? answer->call_count : 0);
    int place = find_call(r->more[first - 1].calls, id);
    if (place == -1 || (place >= 0 && has_result(r, first, (size_t)place)))
        return api_problem_set(p, 400, "invalid_value", param, "tool_call_id of %s is %s: %s", param,
                               json_show(id).s,
                               place < 0 ? "none of the calls before it has it" : "that call has a result");
    while (place < 0 && has_result(r, first, order)) order++;
    r->more[at].order = place < 0 ? order : (size_t)place;
    for (; at > first && r->more[at - 1].order > r->more[at].order; at--) {
        struct chat_message m = r->message[at];
        struct reading_message more = r->more[at];
        r->message[at] = r->message[at - 1];
        r->more[at] = r->more[at - 1];
        r->message[at - 1] = m;
        r->more[at - 1] = more;
    }
    return 0;
}

static const char *read_reasoning(const cJSON *message)
{
    static const char *const names[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < 2; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, names[i]);
        if (cJSON_IsString(item)) return item->valuestring;
    }
    return NULL;
}

static int read_message(struct reading *r, const cJSON *message, struct api_problem *p)
{
    struct chat_message *out = &r->message[r->count];
    struct reading_message *more = &r->more[r->count];
    char param[48];
    bool bad;
    snprintf(param, sizeof param, "messages[%zu]", r->count);
    if (!cJSON_IsObject(message))
        return api_problem_set(p, 400, "invalid_value", param, "%s must be an object", param);
    if (find_role(message, &out->role))
        return api_problem_set(p, 400, "invalid_value", param,
                               "%s needs a role: system, developer, user, assistant or tool", param);
    const char *text = content_of(cJSON_GetObjectItemCaseSensitive(message, "content"), &more->joined, &bad);
    if (bad)
        return api_problem_set(p, 400, "invalid_value", param,
                               "the content of %s must be a string or an array of text parts", param);
    if (!text && out->role != CHAT_ASSISTANT)
        return api_problem_set(p, 400, "invalid_value", param, "%s has no content", param);
    out->content = text ? text : "";
    out->length = strlen(out->content);
    if (out->role == CHAT_TOOL) return place_result(r, message, param, p);
    if (out->role != CHAT_ASSISTANT) return 0;
    out->reasoning = read_reasoning(message);
    return read_calls(message, param, out, more, p);
}

int messages_encode(const struct http_options *o, const cJSON *body, struct chat_request *chat,
                    struct ids *out, struct api_problem *p)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(body, "messages"), *item;
    int size = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (size == 0)
        return api_problem_set(p, 400, "invalid_value", "messages",
                               "messages must be an array with at least one message");
    struct reading r = {.message = calloc((size_t)size, sizeof *r.message),
                        .more = calloc((size_t)size, sizeof *r.more)};
    if (!r.message || !r.more) {
        free(r.more);
        free(r.message);
        return api_problem_set(p, 500, NULL, NULL, "out of memory");
    }
    int rc = 0;
    cJSON_ArrayForEach(item, list)
    {
        rc = read_message(&r, item, p);
        if (rc) break;
        r.count++;
    }
    struct error err;
    chat->messages = r.message;
    chat->count = r.count;
    if (!rc && chat_encode(o->chat, o->tokenizer, chat, out, &err))
        rc = api_problem_set(p, 400, "invalid_value", "messages", "%s", err.text);
    chat->messages = NULL;
    for (int i = 0; i < size; i++) {
        buffer_free(&r.more[i].joined);
        free(r.more[i].call);
    }
    free(r.more);
    free(r.message);
    return rc;
}
