/* tool_parser.c: a state machine over the text that is not consumed yet. `raw` repeats the text of a call
 * that was not told to the sink, to be given out as text if it turns out to be none. */
#include "host/text/tool_parser.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/buffer.h"
#include "host/text/utf8.h"

#define MAX_ATTRIBUTE 512u // bytes of a name; what is longer is no name
#define D "｜DSML｜"

enum state {
    TEXT,   // of the answer
    BLOCK,  // before a call, or behind one
    NAME,   // of a function
    PARAMS, // before a parameter, or behind one
    KEY,    // of a parameter
    STRING, // a parameter's value, as it is
    OTHER,  // a parameter's value, in JSON
    JSON,   // all arguments in JSON (V3.1)
    PLAIN,  // it went wrong: everything is text
    FULL,   // max_calls reached
};

struct tool_parser {
    struct tool_parser_options o;
    struct tool_sink sink;
    enum state state;
    struct buffer held;            // not consumed
    struct buffer raw;             // consumed since the last thing told
    size_t begun;                  // bytes at the start of raw and held that the model did not write
    struct buffer name, arguments; // of the call being read, unless eager
    struct buffer scratch;
    bool first_param, skip_space;
    uint32_t calls;
};

struct markup {
    const char *begin, *spaced_begin, *end, *call, *call_end; // spaced: as it follows text
};

static const struct markup *markup(const struct tool_parser *p)
{
    static const struct markup dsml = {.begin = "<" D "function_calls>",
                                       .spaced_begin = "\n\n<" D "function_calls>",
                                       .end = "</" D "function_calls>",
                                       .call = "<" D "invoke name=\"",
                                       .call_end = "</" D "invoke>"};
    static const struct markup v31 = {.begin = "<｜tool▁calls▁begin｜>",
                                      .spaced_begin = "\n\n<｜tool▁calls▁begin｜>",
                                      .end = "<｜tool▁calls▁end｜>",
                                      .call = "<｜tool▁call▁begin｜>",
                                      .call_end = "<｜tool▁call▁end｜>"};
    return p->o.format == CHAT_TOOLS_DSML ? &dsml : &v31;
}

struct tool_parser *tool_parser_open(const struct tool_parser_options *o, const struct tool_sink *sink)
{
    struct tool_parser *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->o = *o;
    p->sink = *sink;
    if (!o->begun || !o->begun[0]) return p;
    p->begun = strlen(o->begun);
    if (tool_parser_feed(p, o->begun, p->begun) == 0) return p;
    tool_parser_close(p);
    return NULL;
}

void tool_parser_close(struct tool_parser *p)
{
    if (!p) return;
    buffer_free(&p->held);
    buffer_free(&p->raw);
    buffer_free(&p->name);
    buffer_free(&p->arguments);
    buffer_free(&p->scratch);
    free(p);
}

uint32_t tool_parser_calls(const struct tool_parser *p)
{
    return p->calls;
}

/* ---- text ---- */

static void consume(struct tool_parser *p, size_t length)
{
    if (length == 0) return;
    if (p->state != TEXT && p->state != PLAIN) buffer_append(&p->raw, p->held.data, length);
    p->held.length -= length;
    memmove(p->held.data, p->held.data + length, p->held.length + 1);
}

/* What was read is told, or needs no telling: it will not come back as text. */
static void settle(struct tool_parser *p)
{
    buffer_clear(&p->raw);
    p->begun = 0;
}

static void say(struct tool_parser *p, const char *text, size_t length)
{
    while (p->skip_space && length && strchr(" \t\r\n", *text)) {
        text++;
        length--;
    }
    if (!length) return;
    p->skip_space = false;
    p->sink.content(p->sink.ctx, text, length);
}

/* How much of the end of the text could be the beginning of the string. */
static size_t overlap(const struct buffer *b, const char *string)
{
    size_t most = strlen(string) - 1;
    if (most > b->length) most = b->length;
    while (most && memcmp(b->data + b->length - most, string, most) != 0) most--;
    return most;
}

/* 1: the text begins with it, 0: it may yet, -1: it does not. */
static int begins(const struct buffer *b, const char *string)
{
    size_t length = strlen(string), n = b->length < length ? b->length : length;
    if (n && memcmp(b->data, string, n) != 0) return -1;
    return n == length;
}

static bool find(const struct buffer *b, const char *string, size_t *at)
{
    const char *found = b->length ? memmem(b->data, b->length, string, strlen(string)) : NULL;
    if (found) *at = (size_t)(found - b->data);
    return found != NULL;
}

static void skip_space(struct tool_parser *p)
{
    size_t n = 0;
    while (n < p->held.length && strchr(" \t\r\n", p->held.data[n])) n++;
    consume(p, n);
}

/* ---- calls ---- */

static void tell_arguments(struct tool_parser *p, const char *json, size_t length)
{
    if (!length) return;
    if (p->o.eager)
        p->sink.arguments(p->sink.ctx, p->calls, json, length);
    else
        buffer_append(&p->arguments, json, length);
}

static void begin_call(struct tool_parser *p, const char *name, size_t length)
{
    p->first_param = true;
    buffer_clear(&p->arguments);
    buffer_clear(&p->name);
    if (p->o.eager)
        p->sink.call(p->sink.ctx, p->calls, name, length);
    else
        buffer_append(&p->name, name, length);
}

static bool is_object(const struct buffer *b)
{
    cJSON *root = b->length ? cJSON_ParseWithLengthOpts(b->data, b->length + 1, NULL, 1) : NULL;
    bool object = cJSON_IsObject(root);
    cJSON_Delete(root);
    return object;
}

/* False: what was written is no call after all. */
static bool end_call(struct tool_parser *p)
{
    if (!p->o.eager) {
        if (!is_object(&p->arguments)) return false;
        p->sink.call(p->sink.ctx, p->calls, p->name.data, p->name.length);
        p->sink.arguments(p->sink.ctx, p->calls, p->arguments.data, p->arguments.length);
    }
    settle(p);
    p->calls++;
    p->state = p->o.max_calls && p->calls >= p->o.max_calls ? FULL : BLOCK;
    return true;
}

/* A piece of a string's value, escaped; a character that is not whole is left. Returns what was used. */
static size_t tell_escaped(struct tool_parser *p, const char *text, size_t length, bool all)
{
    size_t used = 0;
    while (used < length) {
        int n = utf8_step((const unsigned char *)text + used, length - used);
        if (n == 0 && !all) break;
        used += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : length - used;
    }
    buffer_clear(&p->scratch);
    buffer_json_string(&p->scratch, text, used);
    if (!buffer_failed(&p->scratch)) tell_arguments(p, p->scratch.data + 1, p->scratch.length - 2);
    return used;
}

static void tell_string(struct tool_parser *p, const char *text, size_t length)
{
    tell_arguments(p, "\"", 1);
    tell_escaped(p, text, length, true);
    tell_arguments(p, "\"", 1);
}

/* ---- one step: true if something was consumed ---- */

/* No call: the model's text comes out as it was. Of a call that was told, what follows is text. */
static bool degrade(struct tool_parser *p)
{
    size_t skip = p->begun < p->raw.length ? p->begun : p->raw.length;
    p->state = PLAIN;
    p->skip_space = false;
    say(p, p->raw.data + skip, p->raw.length - skip);
    skip = p->begun - skip; // of a beginning that was not consumed
    settle(p);
    consume(p, skip < p->held.length ? skip : p->held.length);
    return true;
}

static bool step_text(struct tool_parser *p)
{
    const char *begin = markup(p)->begin;
    const char *spaced = markup(p)->spaced_begin;
    size_t at;
    if (find(&p->held, begin, &at)) {
        size_t end = at;
        while (end > 0 && at - end < 2 && p->held.data[end - 1] == '\n') end--;
        say(p, p->held.data, end);
        if (p->begun) p->begun -= end;
        consume(p, end);
        p->state = BLOCK;
        consume(p, at - end + strlen(begin));
        return true;
    }
    size_t with = overlap(&p->held, spaced), without = overlap(&p->held, begin);
    size_t free_of = p->held.length - (with > without ? with : without);
    say(p, p->held.data, free_of);
    consume(p, free_of);
    return false;
}

static bool step_block(struct tool_parser *p)
{
    const struct markup *m = markup(p);
    skip_space(p);
    if (p->held.length == 0) return false;
    int call = begins(&p->held, m->call), end = begins(&p->held, m->end);
    if (call == 1) {
        consume(p, strlen(m->call));
        p->state = NAME;
        return true;
    }
    if (end == 1) {
        consume(p, strlen(m->end));
        if (p->calls == 0) return degrade(p); // a block without a call
        settle(p);
        p->state = TEXT;
        p->skip_space = true;
        return true;
    }
    return call < 0 && end < 0 ? degrade(p) : false;
}

static bool step_name(struct tool_parser *p)
{
    bool dsml = p->o.format == CHAT_TOOLS_DSML;
    const char *behind = dsml ? "\">" : chat_marks[MARK_SEP];
    size_t at;
    if (!find(&p->held, behind, &at)) return p->held.length > MAX_ATTRIBUTE ? degrade(p) : false;
    if (at == 0 || at > MAX_ATTRIBUTE || memchr(p->held.data, '\n', at) || memchr(p->held.data, '<', at))
        return degrade(p);
    begin_call(p, p->held.data, at);
    consume(p, at + strlen(behind));
    if (p->o.eager) settle(p);
    p->state = dsml ? PARAMS : JSON;
    return true;
}

static bool step_params(struct tool_parser *p)
{
    const char *end = markup(p)->call_end, *param = "<" D "parameter name=\"";
    skip_space(p);
    if (p->held.length == 0) return false;
    int more = begins(&p->held, param), ended = begins(&p->held, end);
    if (more == 1) {
        consume(p, strlen(param));
        p->state = KEY;
        return true;
    }
    if (ended == 1) {
        consume(p, strlen(end));
        tell_arguments(p, p->first_param ? "{}" : "}", p->first_param ? 2 : 1);
        return end_call(p) ? true : degrade(p);
    }
    return more < 0 && ended < 0 ? degrade(p) : false;
}

static bool step_key(struct tool_parser *p)
{
    static const char is_string[] = "\" string=\"true", is_other[] = "\" string=\"false";
    size_t at, length = 0;
    if (!find(&p->held, "\">", &at)) return p->held.length > MAX_ATTRIBUTE ? degrade(p) : false;
    bool string = at >= sizeof is_string - 1 &&
                  !memcmp(p->held.data + at - (sizeof is_string - 1), is_string, sizeof is_string - 1);
    bool other = at >= sizeof is_other - 1 &&
                 !memcmp(p->held.data + at - (sizeof is_other - 1), is_other, sizeof is_other - 1);
    if (string) length = at - (sizeof is_string - 1);
    if (other) length = at - (sizeof is_other - 1);
    if (length == 0 || length > MAX_ATTRIBUTE) return degrade(p);
    tell_arguments(p, p->first_param ? "{" : ", ", p->first_param ? 1 : 2);
    p->first_param = false;
    tell_string(p, p->held.data, length);
    tell_arguments(p, string ? ": \"" : ": ", string ? 3 : 2);
    consume(p, at + 2);
    if (p->o.eager) settle(p);
    p->state = string ? STRING : OTHER;
    return true;
}

/* A value that claims to be JSON and is none is a string: the arguments always parse. */
static void tell_value(struct tool_parser *p, const char *text, size_t length)
{
    char *copy = strndup(text, length);
    cJSON *value = copy ? cJSON_ParseWithOpts(copy, NULL, 1) : NULL;
    if (value)
        tell_arguments(p, text, length);
    else
        tell_string(p, text, length);
    cJSON_Delete(value);
    free(copy);
}

static bool step_value(struct tool_parser *p)
{
    static const char end[] = "</" D "parameter>";
    size_t at;
    bool string = p->state == STRING;
    if (find(&p->held, end, &at)) {
        if (string)
            tell_escaped(p, p->held.data, at, true);
        else
            tell_value(p, p->held.data, at);
        if (string) tell_arguments(p, "\"", 1);
        consume(p, at + sizeof end - 1);
        p->state = PARAMS;
    } else if (string) {
        consume(p, tell_escaped(p, p->held.data, p->held.length - overlap(&p->held, end), false));
    }
    if (p->o.eager) settle(p);
    return p->state == PARAMS;
}

static bool step_json(struct tool_parser *p)
{
    const char *end = markup(p)->call_end;
    size_t at = p->held.length - overlap(&p->held, end);
    bool found = find(&p->held, end, &at);
    tell_arguments(p, p->held.data, at);
    consume(p, found ? at + strlen(end) : at);
    if (p->o.eager) settle(p);
    if (!found) return false;
    return end_call(p) ? true : degrade(p);
}

static bool step(struct tool_parser *p)
{
    if (p->held.length == 0) return false;
    switch (p->state) {
    case TEXT:
        return step_text(p);
    case BLOCK:
        return step_block(p);
    case NAME:
        return step_name(p);
    case PARAMS:
        return step_params(p);
    case KEY:
        return step_key(p);
    case STRING:
    case OTHER:
        return step_value(p);
    case JSON:
        return step_json(p);
    case PLAIN:
        say(p, p->held.data, p->held.length);
        break;
    case FULL:
        break;
    }
    consume(p, p->held.length);
    return false;
}

int tool_parser_feed(struct tool_parser *p, const char *text, size_t length)
{
    buffer_append(&p->held, text, length);
    while (!buffer_failed(&p->held) && step(p)) {
    }
    bool failed = buffer_failed(&p->held) || buffer_failed(&p->raw) || buffer_failed(&p->name) ||
                  buffer_failed(&p->arguments) || buffer_failed(&p->scratch);
    return failed ? -ENOMEM : p->state == FULL;
}

void tool_parser_finish(struct tool_parser *p)
{
    bool told = p->o.eager && p->state > NAME && p->state < PLAIN;
    if (p->state == TEXT) {
        say(p, p->held.data, p->held.length);
    } else if (told) { // the arguments stay unfinished, which is what the client has to see
        if (p->state == STRING) tell_escaped(p, p->held.data, p->held.length, true);
        if (p->state == JSON) tell_arguments(p, p->held.data, p->held.length);
    } else if (p->state == BLOCK && p->calls > 0) { // only the block's end is missing
        p->skip_space = true;
        say(p, p->held.data, p->held.length);
    } else if (p->state < PLAIN) {
        degrade(p);
        say(p, p->held.data, p->held.length);
    }
    buffer_clear(&p->held);
    buffer_clear(&p->raw);
}
