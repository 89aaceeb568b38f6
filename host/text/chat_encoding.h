/* chat_encoding.h: messages -> token ids, in DeepSeek's chat format.
 *
 * One seam for every encoding a model family uses. Message text is encoded as plain text: it can never
 * produce a control token. Control tokens are looked up by their text in the tokenizer; a model without them
 * is refused when a chat is asked for. */
#ifndef DUCKD_HOST_TEXT_CHAT_ENCODING_H
#define DUCKD_HOST_TEXT_CHAT_ENCODING_H

#include "host/text/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    const char *content; // UTF-8, may be empty
    size_t length;
};

struct chat_encoding {
    int32_t bos, eos, user, assistant, think, end_think; // think/end_think: -1 when the model has none
};
int chat_encoding_init(struct chat_encoding *c, const struct tokenizer *t, int32_t bos, int32_t eos,
                       struct error *err);

/* BOS and the messages in order: a system text as it is, <User>text<Assistant></think> for a question,
 * text<EOS> for an answer. The last question ends with <think> instead if `thinking`; when the last message
 * is no question, <Assistant> and that mark follow it (an answer is always a finished turn). Reasoning in
 * answers (up to and including the first "</think>") is dropped. */
int chat_encode(const struct chat_encoding *c, const struct tokenizer *t, const struct chat_message *messages,
                size_t count, bool thinking, struct ids *out, struct error *err);

#endif
