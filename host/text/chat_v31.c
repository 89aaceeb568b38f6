/* chat_v31.c: the format of DeepSeek-V3.1 and V3.2-Exp: system texts first, tools in control tokens. The
 * wording is part of the format: it is that of the chat template that comes with these models. */
#include <string.h>

#include "host/text/chat_prompt.h"

static const char tools_tail[] =
    "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
    "<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\n"
    "Where:\n\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n";

static void put_string(struct chat_prompt *p, const cJSON *item)
{
    if (cJSON_IsString(item)) prompt_plain(p, item->valuestring, strlen(item->valuestring));
}

static void put_tools(struct chat_prompt *p, const cJSON *tools)
{
    const cJSON *tool;
    if (!tools) return;
    prompt_marked(p, "\n\n## Tools\nYou have access to the following tools:\n");
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *f = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(f, "parameters");
        prompt_marked(p, "\n### ");
        put_string(p, cJSON_GetObjectItemCaseSensitive(f, "name"));
        prompt_marked(p, "\nDescription: ");
        put_string(p, cJSON_GetObjectItemCaseSensitive(f, "description"));
        prompt_marked(p, "\n\nParameters: ");
        if (parameters)
            prompt_json(p, parameters);
        else
            prompt_marked(p, "{}");
        prompt_marked(p, "\n");
    }
    prompt_marked(p, tools_tail);
}

static void put_calls(struct chat_prompt *p, const struct chat_message *m)
{
    if (!m->call_count) return;
    prompt_marked(p, chat_marks[MARK_CALLS_BEGIN]);
    for (size_t i = 0; i < m->call_count; i++) {
        const char *arguments = m->call[i].arguments;
        prompt_marked(p, chat_marks[MARK_CALL_BEGIN]);
        prompt_plain(p, m->call[i].name, strlen(m->call[i].name));
        prompt_marked(p, chat_marks[MARK_SEP]);
        prompt_plain(p, arguments, strlen(arguments));
        if (!arguments[0]) prompt_marked(p, "{}");
        prompt_marked(p, chat_marks[MARK_CALL_END]);
    }
    prompt_marked(p, chat_marks[MARK_CALLS_END]);
}

static void put_system(struct chat_prompt *p, const struct chat_request *chat)
{
    bool first = true;
    for (size_t i = 0; i < chat->count; i++) {
        const struct chat_message *m = &chat->messages[i];
        if (m->role != CHAT_SYSTEM) continue;
        if (!first) prompt_marked(p, "\n\n");
        prompt_plain(p, m->content, m->length);
        first = false;
    }
    put_tools(p, chat->tools);
}

void chat_v31_messages(struct chat_prompt *p, const struct chat_request *chat)
{
    enum chat_role before = CHAT_SYSTEM; // system texts apart
    put_system(p, chat);
    for (size_t i = 0; i < chat->count; i++) {
        const struct chat_message *m = &chat->messages[i];
        if (m->role == CHAT_SYSTEM) continue;
        if (m->role == CHAT_USER) {
            prompt_token(p, p->c->user);
            prompt_plain(p, m->content, m->length);
        } else if (m->role == CHAT_ASSISTANT) {
            if (before == CHAT_USER) prompt_open_answer(p, false);
            prompt_answer(p, m);
            put_calls(p, m);
            prompt_token(p, p->c->eos);
        } else {
            prompt_marked(p, chat_marks[MARK_OUTPUT_BEGIN]);
            prompt_plain(p, m->content, m->length);
            prompt_marked(p, chat_marks[MARK_OUTPUT_END]);
        }
        before = m->role;
    }
    // Behind what a tool said the model goes on by itself.
    if (before != CHAT_TOOL) prompt_open_answer(p, chat->thinking);
}
