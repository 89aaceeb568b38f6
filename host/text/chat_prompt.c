/* chat_prompt.c: see chat_prompt.h. */
#include "host/text/chat_prompt.h"

#include <errno.h>
#include <string.h>

#include "host/text/json_numbers.h"

static void flush(struct chat_prompt *p)
{
    if (!p->rc && buffer_failed(&p->run)) p->rc = error_set(p->err, -ENOMEM, "out of memory for a prompt");
    if (!p->rc && p->run.length)
        p->rc = tokenizer_encode(p->t, p->run.data, p->run.length, false, p->out, p->err);
    buffer_clear(&p->run);
}

void prompt_token(struct chat_prompt *p, int32_t id)
{
    if (id < 0) return;
    flush(p);
    if (!p->rc && ids_push(p->out, id)) p->rc = error_set(p->err, -ENOMEM, "out of memory for token ids");
}

void prompt_plain(struct chat_prompt *p, const char *text, size_t length)
{
    buffer_append(&p->run, text, length);
}

/* The control token that begins at `text`, its length in *length; -1: none. */
static int32_t mark_at(const struct chat_encoding *c, const char *text, size_t *length)
{
    static const char think[] = "<think>", end_think[] = "</think>";
    const struct {
        const char *text;
        int32_t id;
    } thoughts[] = {{think, c->think}, {end_think, c->end_think}};
    for (size_t i = 0; i < 2; i++) {
        *length = strlen(thoughts[i].text);
        if (thoughts[i].id >= 0 && strncmp(text, thoughts[i].text, *length) == 0) return thoughts[i].id;
    }
    for (size_t i = 0; i < CHAT_MARKS; i++) {
        *length = strlen(chat_marks[i]);
        if (c->mark[i] >= 0 && strncmp(text, chat_marks[i], *length) == 0) return c->mark[i];
    }
    return -1;
}

void prompt_marked(struct chat_prompt *p, const char *text)
{
    const char *from = text;
    while (*text) {
        size_t length;
        int32_t id = mark_at(p->c, text, &length);
        if (id < 0) {
            text++;
            continue;
        }
        prompt_plain(p, from, (size_t)(text - from));
        prompt_token(p, id);
        from = text += length;
    }
    prompt_plain(p, from, (size_t)(text - from));
}

static void put_json(struct buffer *b, const cJSON *item)
{
    const cJSON *child;
    if (cJSON_IsString(item)) {
        buffer_json_string(b, item->valuestring, strlen(item->valuestring));
    } else if (cJSON_IsNumber(item)) {
        json_put_number(b, item);
    } else if (cJSON_IsBool(item)) {
        buffer_text(b, cJSON_IsTrue(item) ? "true" : "false");
    } else if (cJSON_IsArray(item) || cJSON_IsObject(item)) {
        bool object = cJSON_IsObject(item);
        buffer_text(b, object ? "{" : "[");
        cJSON_ArrayForEach(child, item)
        {
            if (child != item->child) buffer_text(b, ", ");
            if (object) buffer_json_string(b, child->string, strlen(child->string));
            if (object) buffer_text(b, ": ");
            put_json(b, child); // as deep as the parser let it be
        }
        buffer_text(b, object ? "}" : "]");
    } else {
        buffer_text(b, "null");
    }
}

void prompt_json(struct chat_prompt *p, const cJSON *item)
{
    put_json(&p->run, item);
}

int prompt_finish(struct chat_prompt *p)
{
    flush(p);
    buffer_free(&p->run);
    return p->rc;
}
