/* chat_encoding.c: DeepSeek-V3.2's format. Control tokens are pushed by id and texts encoded as plain text,
 * so that no message can contain a control token. */
#include "host/text/chat_encoding.h"

#include <errno.h>
#include <string.h>

#define END_THINK "</think>"

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

static int push(struct ids *out, int32_t id, struct error *err)
{
    int rc = ids_push(out, id);
    return rc ? error_set(err, rc, "out of memory for token ids") : 0;
}

/* Where an answer begins: thought through, or at once. */
static int open_answer(const struct chat_encoding *c, bool thinking, struct ids *out, struct error *err)
{
    int rc = push(out, c->assistant, err);
    int32_t mark = thinking ? c->think : c->end_think;
    return rc || mark < 0 ? rc : push(out, mark, err);
}

static int encode_message(const struct chat_encoding *c, const struct tokenizer *t,
                          const struct chat_message *m, struct ids *out, struct error *err)
{
    const char *text = m->content;
    size_t length = m->length;
    int rc;
    if (m->role == CHAT_USER && (rc = push(out, c->user, err))) return rc;
    if (m->role == CHAT_ASSISTANT) {
        const char *thought = length ? memmem(text, length, END_THINK, strlen(END_THINK)) : NULL;
        if (thought) {
            length -= (size_t)(thought - text) + strlen(END_THINK);
            text = thought + strlen(END_THINK);
        }
    }
    if ((rc = tokenizer_encode(t, text, length, false, out, err))) return rc;
    return m->role == CHAT_ASSISTANT ? push(out, c->eos, err) : 0;
}

static int encode_all(const struct chat_encoding *c, const struct tokenizer *t,
                      const struct chat_message *messages, size_t count, bool thinking, struct ids *out,
                      struct error *err)
{
    int rc = push(out, c->bos, err);
    for (size_t i = 0; i < count && !rc; i++) {
        rc = encode_message(c, t, &messages[i], out, err);
        // Every question opens an answer, as in the original; the last message opens one whatever it is.
        bool last = i + 1 == count;
        if (!rc && (last || messages[i].role == CHAT_USER)) rc = open_answer(c, last && thinking, out, err);
    }
    return rc;
}

int chat_encode(const struct chat_encoding *c, const struct tokenizer *t, const struct chat_message *messages,
                size_t count, bool thinking, struct ids *out, struct error *err)
{
    if (count == 0) return error_set(err, -EINVAL, "a chat without messages");
    if (thinking && c->think < 0)
        return error_set(err, -ENOTSUP,
                         "this model cannot think: its tokenizer has no added token '<think>'");
    size_t before = out->count;
    int rc = encode_all(c, t, messages, count, thinking, out, err);
    if (rc) out->count = before;
    return rc;
}
