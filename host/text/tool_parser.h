/* tool_parser.h: what a model writes -> text and calls of tools, as it comes.
 *
 * Text goes in piece by piece (any cut, also inside a character) and comes out through the sink as soon as it
 * cannot be part of a call's markup. What looks like a call and is none comes out as the text it was.
 * Arguments come out as the text of one JSON object; only those of a finished call are promised to be whole.
 * One parser per answer, no locks. */
#ifndef DUCKD_HOST_TEXT_TOOL_PARSER_H
#define DUCKD_HOST_TEXT_TOOL_PARSER_H

#include "host/text/chat_encoding.h"

struct tool_sink {
    void (*content)(void *ctx, const char *text, size_t length);
    void (*call)(void *ctx, uint32_t index, const char *name, size_t length);
    void (*arguments)(void *ctx, uint32_t index, const char *json, size_t length);
    void *ctx;
};

struct tool_parser_options {
    enum chat_tool_format format;
    const char *begun;  // chat_forced_text(): the answer begins behind it
    uint32_t max_calls; // 0: any number; behind the last one nothing more is read
    bool eager;         // calls are told while they are written; else once they are whole
};

struct tool_parser;
/* NULL: no memory. */
struct tool_parser *tool_parser_open(const struct tool_parser_options *o, const struct tool_sink *sink);
void tool_parser_close(struct tool_parser *p);
/* 1: max_calls calls are complete, the answer can end; 0: not yet; -ENOMEM. */
int tool_parser_feed(struct tool_parser *p, const char *text, size_t length);
void tool_parser_finish(struct tool_parser *p);          // the answer has ended
uint32_t tool_parser_calls(const struct tool_parser *p); // that were complete

#endif
