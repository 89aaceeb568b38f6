/* chat_encoding.h: messages -> token ids, in DeepSeek's chat formats.
 *
 * One seam for every encoding a model family uses. Message text is encoded as plain text: it can never
 * produce a control token. Control tokens are looked up by their text in the tokenizer; a model without them
 * is refused when a chat is asked for. What the model answers is read by tool_parser.h. */
#ifndef DUCKD_HOST_TEXT_CHAT_ENCODING_H
#define DUCKD_HOST_TEXT_CHAT_ENCODING_H

#include "host/text/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

struct chat_call {
    const char *name;
    const char *arguments; // text of a JSON object; "": {}
};

struct chat_message {
    enum chat_role role;
    const char *content; // UTF-8, may be empty
    size_t length;
    const char *reasoning;        // of an answer; NULL: none
    const struct chat_call *call; // (call_count) of an answer
    size_t call_count;
};

/* How tools are described and called: DeepSeek-V3.2's markup, or the control tokens of V3.1 and V3.2-Exp. */
enum chat_tool_format { CHAT_TOOLS_DSML, CHAT_TOOLS_V31 };

/* Control tokens of tool calls, by their texts in chat_marks[]. */
enum chat_mark {
    MARK_DSML,
    MARK_CALLS_BEGIN,
    MARK_CALLS_END,
    MARK_CALL_BEGIN,
    MARK_CALL_END,
    MARK_SEP,
    MARK_OUTPUT_BEGIN,
    MARK_OUTPUT_END,
    CHAT_MARKS
};
extern const char *const chat_marks[CHAT_MARKS];

struct chat_encoding {
    int32_t bos, eos, user, assistant, think, end_think; // think/end_think: -1 when the model has none
    int32_t mark[CHAT_MARKS];                            // -1: the tokenizer has none, plain text does
    enum chat_tool_format tools;
};
int chat_encoding_init(struct chat_encoding *c, const struct tokenizer *t, int32_t bos, int32_t eos,
                       struct error *err);
/* The format that a checkpoint's chat template (of its tokenizer_config.json; NULL: none) asks for. V3.2 has
 * no template. */
enum chat_tool_format chat_tool_format_of(const char *chat_template);
/* A control token of tool calls: its text belongs to what tool_parser.h reads. */
bool chat_is_mark(const struct chat_encoding *c, int32_t id);

enum chat_choice { CHAT_CHOICE_AUTO, CHAT_CHOICE_REQUIRED, CHAT_CHOICE_NAMED };

struct cJSON;
struct chat_request {
    const struct chat_message *messages; // (count)
    size_t count;
    const struct cJSON *tools; // array of {"type": "function", "function": {"name": ...}}; NULL: none
    enum chat_choice choice;   // REQUIRED, NAMED: the prompt ends inside a call, thinking must be off
    const char *function;      // of NAMED
    bool thinking;
};

/* BOS and the messages in order: a system text as it is, <User>text<Assistant></think> for a question,
 * text<EOS> for an answer. The last question ends with <think> instead if `thinking`; when the last message
 * is neither a question nor a tool's, <Assistant> and that mark follow it (an answer is always a finished
 * turn). Reasoning of answers (`reasoning`, or up to and including the first "</think>") is dropped, except
 * with DSML, while thinking, in answers after the last question: calls belong to one train of thought. */
int chat_encode(const struct chat_encoding *c, const struct tokenizer *t, const struct chat_request *chat,
                struct ids *out, struct error *err);
/* The text that `choice` puts behind the prompt: where the model's answer begins. To be freed; NULL: no
 * memory. */
char *chat_forced_text(const struct chat_encoding *c, enum chat_choice choice, const char *function);

#endif
