/* request_tools.c: tools, tool_choice and parallel_tool_calls of a chat request. */
#include <stdlib.h>
#include <string.h>

#include "host/http/request_body.h"

static const char *function_name(const cJSON *tool)
{
    const cJSON *f = cJSON_GetObjectItemCaseSensitive(tool, "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(f, "name");
    return cJSON_IsString(name) ? name->valuestring : NULL;
}

/* As OpenAI has them: letters, digits, _ and -, to which some add dots. */
static bool sound_name(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return length > 0 && length <= 64 && !name[length];
}

static int check_tools(const cJSON *tools, struct api_problem *p)
{
    const cJSON *tool;
    unsigned n = 0;
    if (!cJSON_IsArray(tools))
        return api_problem_set(p, 400, "invalid_value", "tools", "tools must be an array of functions");
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
        const char *name = function_name(tool);
        const cJSON *f = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(f, "parameters");
        char param[48];
        snprintf(param, sizeof param, "tools[%u]", n++);
        if (cJSON_IsString(type) && strcmp(type->valuestring, "function") != 0)
            return api_problem_set(p, 400, "unsupported_value", param, "%s is no tool of type function",
                                   param);
        if (!name || !sound_name(name))
            return api_problem_set(p, 400, "invalid_value", param,
                                   "%s needs function.name: 1 to 64 letters, digits, '_', '-' or '.'", param);
        if (parameters && !cJSON_IsNull(parameters) && !cJSON_IsObject(parameters))
            return api_problem_set(p, 400, "invalid_value", param,
                                   "function.parameters of %s must be an object", param);
    }
    return 0;
}

static int read_named(const cJSON *choice, const cJSON *tools, struct chat_request *chat,
                      struct api_problem *p)
{
    const cJSON *tool;
    const char *name = function_name(choice);
    if (!name)
        return api_problem_set(p, 400, "invalid_value", "tool_choice",
                               "tool_choice must be none, auto, required or {\"type\": \"function\", "
                               "\"function\": {\"name\": ...}}");
    cJSON_ArrayForEach(tool, tools)
    {
        if (strcmp(function_name(tool), name) != 0) continue;
        chat->choice = CHAT_CHOICE_NAMED;
        chat->function = name;
        return 0;
    }
    return api_problem_set(p, 400, "invalid_value", "tool_choice",
                           "tool_choice names '%.64s', which is no tool", name);
}

static int read_choice(const cJSON *body, const cJSON *tools, struct chat_request *chat,
                       struct api_problem *p)
{
    const cJSON *choice = cJSON_GetObjectItemCaseSensitive(body, "tool_choice");
    const char *word = cJSON_IsString(choice) ? choice->valuestring : NULL;
    chat->tools = tools;
    if (!choice || cJSON_IsNull(choice) || (word && !strcmp(word, "auto"))) return 0;
    if (word && !strcmp(word, "none")) { // what the model does not know it does not call
        chat->tools = NULL;
        return 0;
    }
    if (!tools) return api_problem_set(p, 400, "invalid_value", "tool_choice", "tool_choice needs tools");
    if (!word || strcmp(word, "required") != 0) return read_named(choice, tools, chat, p);
    chat->choice = CHAT_CHOICE_REQUIRED;
    return 0;
}

int tools_read(const cJSON *body, struct chat_request *chat, struct api_problem *p)
{
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(body, "tools");
    if (cJSON_IsNull(tools) || (cJSON_IsArray(tools) && !tools->child)) tools = NULL;
    int rc = tools ? check_tools(tools, p) : 0;
    return rc ? rc : read_choice(body, tools, chat, p);
}

int tools_begin(const struct http_options *o, const cJSON *body, const struct chat_request *chat, bool stream,
                struct job *j, struct api_problem *p)
{
    const cJSON *parallel = cJSON_GetObjectItemCaseSensitive(body, "parallel_tool_calls");
    if (!chat->tools) return 0;
    if (parallel && !cJSON_IsNull(parallel) && !cJSON_IsBool(parallel))
        return api_problem_set(p, 400, "invalid_value", "parallel_tool_calls",
                               "parallel_tool_calls must be true or false");
    char *begun = chat_forced_text(o->chat, chat->choice, chat->function);
    bool one = cJSON_IsFalse(parallel) || chat->choice == CHAT_CHOICE_NAMED;
    const struct tool_parser_options options = {
        .format = o->chat->tools, .begun = begun, .max_calls = one ? 1 : 0, .eager = stream};
    const struct tool_sink sink = job_tool_sink(j);
    j->telling = &j->out; // a forced name is told at once
    if (begun) j->tools = tool_parser_open(&options, &sink);
    j->telling = NULL;
    free(begun);
    return j->tools ? 0 : api_problem_set(p, 500, NULL, NULL, "out of memory");
}
