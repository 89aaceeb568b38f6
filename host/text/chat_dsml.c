/* chat_dsml.c: DeepSeek-V3.2's format: tools as markup in plain text. The wording is part of the format: the
 * model was trained on exactly these bytes (encoding_dsv32 of its publisher). */
#include <errno.h>
#include <string.h>

#include "host/text/chat_prompt.h"
#include "host/text/json_numbers.h"
#include "host/util/json_depth.h"

static const char tools_head[] =
    "\n\n## Tools\n\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following as part of "
    "your "
    "reply to the user:\n"
    "<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>\n\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and "
    "objects should use JSON format. The \"string\" attribute should be set to \"true\" for string type "
    "parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a "
    "thinking block. Here is an example:\n\n"
    "<｜DSML｜function_calls>\n"
    "...\n"
    "</｜DSML｜function_calls>\n\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n\n"
    "<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n";

static void put_tools(struct chat_prompt *p, const cJSON *tools)
{
    const cJSON *tool;
    if (!tools) return;
    prompt_marked(p, tools_head);
    cJSON_ArrayForEach(tool, tools)
    {
        prompt_json(p, cJSON_GetObjectItemCaseSensitive(tool, "function"));
        prompt_marked(p, "\n");
    }
    prompt_marked(p, "</functions>\n");
}

static void put_text(struct chat_prompt *p, const char *text)
{
    prompt_plain(p, text, strlen(text));
}

static void put_arguments(struct chat_prompt *p, const struct chat_call *call)
{
    const char *text = call->arguments[0] ? call->arguments : "{}", *end = NULL;
    cJSON *root = cJSON_ParseWithOpts(text, &end, 0);
    const cJSON *item;
    if (!p->rc && !root && json_stopped_too_deep(text, end, CJSON_NESTING_LIMIT))
        p->rc = error_set(p->err, -EINVAL, "the arguments of a call of '%.100s' are nested deeper than %d",
                          call->name, CJSON_NESTING_LIMIT);
    if (!p->rc && !cJSON_IsObject(root))
        p->rc =
            error_set(p->err, -EINVAL, "the arguments of a call of '%.100s' are no JSON object", call->name);
    if (!p->rc && !json_keep_numbers(root, text))
        p->rc = error_set(p->err, -ENOMEM, "out of memory for a prompt");
    cJSON_ArrayForEach(item, root)
    {
        bool string = cJSON_IsString(item);
        if (p->rc) break;
        prompt_marked(p, item == root->child ? "" : "\n");
        prompt_marked(p, "<｜DSML｜parameter name=\"");
        put_text(p, item->string);
        prompt_marked(p, string ? "\" string=\"true\">" : "\" string=\"false\">");
        if (string)
            put_text(p, item->valuestring);
        else
            prompt_json(p, item);
        prompt_marked(p, "</｜DSML｜parameter>");
    }
    cJSON_Delete(root);
}

static void put_calls(struct chat_prompt *p, const struct chat_message *m)
{
    if (!m->call_count) return;
    prompt_marked(p, "\n\n<｜DSML｜function_calls>\n");
    for (size_t i = 0; i < m->call_count; i++) {
        prompt_marked(p, "<｜DSML｜invoke name=\"");
        put_text(p, m->call[i].name);
        prompt_marked(p, "\">\n");
        put_arguments(p, &m->call[i]);
        prompt_marked(p, "\n</｜DSML｜invoke>\n");
    }
    prompt_marked(p, "</｜DSML｜function_calls>");
}

/* What was thought is kept while calls go on: between the last question and its answer. */
static void put_thoughts(struct chat_prompt *p, const struct chat_message *m)
{
    static const char end[] = "</think>";
    const char *thought = m->length ? memmem(m->content, m->length, end, sizeof end - 1) : NULL;
    if (m->reasoning)
        put_text(p, m->reasoning);
    else if (thought)
        prompt_plain(p, m->content, (size_t)(thought - m->content));
    prompt_token(p, p->c->end_think);
}

void chat_dsml_messages(struct chat_prompt *p, const struct chat_request *chat)
{
    const struct chat_message *m = chat->messages;
    size_t last_question = chat->count; // none
    for (size_t i = 0; i < chat->count; i++)
        if (m[i].role == CHAT_USER) last_question = i;
    if (m[0].role != CHAT_SYSTEM) put_tools(p, chat->tools);
    for (size_t i = 0; i < chat->count; i++) {
        bool last = i + 1 == chat->count, ends_run = last || m[i + 1].role != CHAT_TOOL;
        bool thoughts = chat->thinking && i > last_question;
        switch (m[i].role) {
        case CHAT_SYSTEM:
            prompt_plain(p, m[i].content, m[i].length);
            if (i == 0) put_tools(p, chat->tools);
            break;
        case CHAT_USER:
            prompt_token(p, p->c->user);
            prompt_plain(p, m[i].content, m[i].length);
            prompt_open_answer(p, chat->thinking && i == last_question);
            break;
        case CHAT_ASSISTANT:
            if (thoughts) put_thoughts(p, &m[i]);
            prompt_answer(p, &m[i]);
            put_calls(p, &m[i]);
            prompt_token(p, p->c->eos);
            break;
        case CHAT_TOOL:
            if (i == 0 || m[i - 1].role != CHAT_TOOL) put_text(p, "\n\n<function_results>");
            put_text(p, "\n<result>");
            prompt_plain(p, m[i].content, m[i].length);
            put_text(p, "</result>");
            if (!ends_run) break;
            put_text(p, "\n</function_results>\n\n");
            prompt_token(p, thoughts ? p->c->think : p->c->end_think);
            break;
        }
        if (last && m[i].role != CHAT_USER && m[i].role != CHAT_TOOL) prompt_open_answer(p, chat->thinking);
    }
}
