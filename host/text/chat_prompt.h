/* chat_prompt.h: a prompt being put together: runs of plain text between control tokens.
 *
 * Text that touches is tokenized together, whoever it came from, as the original does with the whole prompt.
 * The first error sticks; prompt_finish() returns it. For the chat encodings only. */
#ifndef DUCKD_HOST_TEXT_CHAT_PROMPT_H
#define DUCKD_HOST_TEXT_CHAT_PROMPT_H

#include <cjson/cJSON.h>

#include "host/text/buffer.h"
#include "host/text/chat_encoding.h"

struct chat_prompt {
    const struct chat_encoding *c;
    const struct tokenizer *t;
    struct ids *out;
    struct error *err;
    int rc;
    struct buffer run; // text since the last control token
};

void prompt_token(struct chat_prompt *p, int32_t id); // < 0: the model has none, nothing happens
void prompt_plain(struct chat_prompt *p, const char *text, size_t length);
/* Our own text: <think>, </think> and chat_marks[] in it are control tokens where the tokenizer has them. */
void prompt_marked(struct chat_prompt *p, const char *text);
/* JSON with ", " and ": " and without escapes that need not be: as Python writes what models are trained on.
 */
void prompt_json(struct chat_prompt *p, const cJSON *item);
int prompt_finish(struct chat_prompt *p); // 0 or the error

/* ---- shared by the formats (chat_encoding.c) ---- */

/* Where an answer begins: thought through, or at once. */
void prompt_open_answer(struct chat_prompt *p, bool thinking);
/* Text of an answer without reasoning in it. */
void prompt_answer(struct chat_prompt *p, const struct chat_message *m);

/* ---- the formats ---- */

void chat_dsml_messages(struct chat_prompt *p, const struct chat_request *chat);
void chat_v31_messages(struct chat_prompt *p, const struct chat_request *chat);

#endif
