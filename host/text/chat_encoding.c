/* chat_encoding.c: what the formats have in common. Control tokens are pushed by id and texts encoded as
 * plain text, so that no message can contain a control token. */
#include "host/text/chat_encoding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/chat_prompt.h"

#define END_THINK "</think>"

const char *const chat_marks[CHAT_MARKS] = {
    [MARK_DSML] = "｜DSML｜",
    [MARK_CALLS_BEGIN] = "<｜tool▁calls▁begin｜>",
    [MARK_CALLS_END] = "<｜tool▁calls▁end｜>",
    [MARK_CALL_BEGIN] = "<｜tool▁call▁begin｜>",
    [MARK_CALL_END] = "<｜tool▁call▁end｜>",
    [MARK_SEP] = "<｜tool▁sep｜>",
    [MARK_OUTPUT_BEGIN] = "<｜tool▁output▁begin｜>",
    [MARK_OUTPUT_END] = "<｜tool▁output▁end｜>",
};

int chat_encoding_init(struct chat_encoding *c, const struct tokenizer *t, int32_t bos, int32_t eos,
                       struct error *err)
{
    static const char user[] = "<｜User｜>", assistant[] = "<｜Assistant｜>";
    *c = (struct chat_encoding){.bos = bos,
                                .eos = eos,
                                .user = tokenizer_added(t, user),
                                .assistant = tokenizer_added(t, assistant),
                                .think = tokenizer_added(t, "<think>"),
                                .end_think = tokenizer_added(t, END_THINK)};
    for (size_t i = 0; i < CHAT_MARKS; i++) c->mark[i] = tokenizer_added(t, chat_marks[i]);
    if (c->user < 0 || c->assistant < 0)
        return error_set(err, -ENOTSUP, "this model cannot chat: its tokenizer has no added token '%s'",
                         c->user < 0 ? user : assistant);
    size_t length;
    bool added;
    if (!tokenizer_token(t, bos, &length, &added) || !tokenizer_token(t, eos, &length, &added))
        return error_set(err, -EINVAL, "BOS %d or EOS %d is no token of the tokenizer (size %u)", bos, eos,
                         tokenizer_size(t));
    if ((c->think < 0) != (c->end_think < 0))
        return error_set(err, -EINVAL, "the tokenizer has only one of the added tokens '<think>' and '%s'",
                         END_THINK);
    return 0;
}

enum chat_tool_format chat_tool_format_of(const char *chat_template)
{
    return chat_template && strstr(chat_template, chat_marks[MARK_SEP]) ? CHAT_TOOLS_V31 : CHAT_TOOLS_DSML;
}

bool chat_is_mark(const struct chat_encoding *c, int32_t id)
{
    for (size_t i = 0; i < CHAT_MARKS; i++)
        if (id >= 0 && c->mark[i] == id) return true;
    return false;
}

void prompt_open_answer(struct chat_prompt *p, bool thinking)
{
    prompt_token(p, p->c->assistant);
    prompt_token(p, thinking ? p->c->think : p->c->end_think);
}

void prompt_answer(struct chat_prompt *p, const struct chat_message *m)
{
    const char *text = m->content;
    size_t length = m->length;
    const char *thought = length ? memmem(text, length, END_THINK, strlen(END_THINK)) : NULL;
    if (thought) {
        length -= (size_t)(thought - text) + strlen(END_THINK);
        text = thought + strlen(END_THINK);
    }
    prompt_plain(p, text, length);
}

char *chat_forced_text(const struct chat_encoding *c, enum chat_choice choice, const char *function)
{
    struct buffer b = {0};
    bool dsml = c->tools == CHAT_TOOLS_DSML, named = choice == CHAT_CHOICE_NAMED;
    if (choice == CHAT_CHOICE_AUTO)
        buffer_text(&b, "");
    else if (dsml)
        buffer_text(&b, "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"");
    else
        buffer_text(&b, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>");
    if (named) buffer_text(&b, function);
    if (named) buffer_text(&b, dsml ? "\">\n" : chat_marks[MARK_SEP]);
    if (!buffer_failed(&b)) return b.data;
    buffer_free(&b);
    return NULL;
}

int chat_encode(const struct chat_encoding *c, const struct tokenizer *t, const struct chat_request *chat,
                struct ids *out, struct error *err)
{
    if (chat->count == 0) return error_set(err, -EINVAL, "a chat without messages");
    if (chat->thinking && c->think < 0)
        return error_set(err, -ENOTSUP,
                         "this model cannot think: its tokenizer has no added token '<think>'");
    if (chat->thinking && chat->choice != CHAT_CHOICE_AUTO)
        return error_set(err, -EINVAL, "a forced call leaves no room for thoughts before it");
    size_t before = out->count;
    struct chat_prompt p = {.c = c, .t = t, .out = out, .err = err};
    prompt_token(&p, c->bos);
    if (c->tools == CHAT_TOOLS_DSML)
        chat_dsml_messages(&p, chat);
    else
        chat_v31_messages(&p, chat);
    if (chat->choice != CHAT_CHOICE_AUTO) {
        char *forced = chat_forced_text(c, chat->choice, chat->function);
        if (forced)
            prompt_marked(&p, forced);
        else
            p.rc = error_set(err, -ENOMEM, "out of memory for a prompt");
        free(forced);
    }
    int rc = prompt_finish(&p);
    if (rc) out->count = before;
    return rc;
}
