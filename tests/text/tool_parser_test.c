/* tool_parser_test.c: what models write -> text and calls, cut at every byte, whole and as it comes. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/buffer.h"
#include "host/text/tool_parser.h"
#include "tests/text/text_support.h"

#define D "｜DSML｜"
#define OPEN "<" D "function_calls>\n"
#define CLOSE "</" D "function_calls>"
#define INVOKE(name) "<" D "invoke name=\"" name "\">\n"
#define END "</" D "invoke>\n"
#define PARAM(key, string, value)                                                                            \
    "<" D "parameter name=\"" key "\" string=\"" string "\">" value "</" D "parameter>\n"
#define CALLS "<｜tool▁calls▁begin｜>"
#define CALL(name, arguments) "<｜tool▁call▁begin｜>" name "<｜tool▁sep｜>" arguments "<｜tool▁call▁end｜>"
#define DONE "<｜tool▁calls▁end｜>"

/* Told as: text as it is, calls as [name arguments]. */
struct told {
    struct buffer text;
    uint32_t index;
    bool open;
};

static void end_call(struct told *t)
{
    if (t->open) buffer_text(&t->text, "]");
    t->open = false;
}

static void on_content(void *ctx, const char *text, size_t length)
{
    struct told *t = ctx;
    end_call(t);
    buffer_append(&t->text, text, length);
}

static void on_call(void *ctx, uint32_t index, const char *name, size_t length)
{
    struct told *t = ctx;
    end_call(t);
    assert_int_equal(index, t->index++);
    buffer_text(&t->text, "[");
    buffer_append(&t->text, name, length);
    buffer_text(&t->text, " ");
    t->open = true;
}

static void on_arguments(void *ctx, uint32_t index, const char *json, size_t length)
{
    struct told *t = ctx;
    assert_true(t->open && index + 1 == t->index);
    buffer_append(&t->text, json, length);
}

/* Feeds pieces of `size` bytes (0: all at once), or two pieces cut at `cut`. */
static char *read_all(const struct tool_parser_options *o, const char *text, size_t size, size_t cut,
                      uint32_t *calls)
{
    struct told t = {0};
    const struct tool_sink sink = {on_content, on_call, on_arguments, &t};
    struct tool_parser *p = tool_parser_open(o, &sink);
    size_t length = strlen(text);
    assert_non_null(p);
    for (size_t at = 0, n; at < length; at += n) {
        n = size ? size : at < cut ? cut : length;
        if (n > length - at) n = length - at;
        char *exact = malloc(n); // a sanitizer sees a read beyond it
        assert_non_null(exact);
        memcpy(exact, text + at, n);
        int rc = tool_parser_feed(p, exact, n);
        free(exact);
        assert_true(rc == 0 || (rc == 1 && o->max_calls));
        if (rc) break;
    }
    tool_parser_finish(p);
    *calls = tool_parser_calls(p);
    tool_parser_close(p);
    end_call(&t);
    if (!t.text.data) buffer_text(&t.text, "");
    return t.text.data;
}

static const struct {
    const char *name;
    struct tool_parser_options o;
    const char *text, *whole, *eager; // eager NULL: as whole
    uint32_t calls;
} cases[] = {
    {"text", {0}, "A < B\n\nand <b>", "A < B\n\nand <b>", NULL, 0},
    {"nothing", {0}, "", "", NULL, 0},
    {"a call",
     {0},
     "\n\n" OPEN INVOKE("f") PARAM("city", "true", "New \"York\"\n") PARAM("days", "false", "2") END CLOSE,
     "[f {\"city\": \"New \\\"York\\\"\\n\", \"days\": 2}]",
     NULL,
     1},
    {"two calls behind text",
     {0},
     "I look.\n\n" OPEN INVOKE("f") PARAM("a", "false", "[1, {\"b\": null}]") END INVOKE("g") "\n" END CLOSE,
     "I look.[f {\"a\": [1, {\"b\": null}]}][g {}]",
     NULL,
     2},
    {"Chinese and an emoji in a value",
     {0},
     OPEN INVOKE("天气") PARAM("城市", "true", "北京 🦆<｜x") END CLOSE "\n",
     "[天气 {\"城市\": \"北京 🦆<｜x\"}]",
     NULL,
     1},
    {"text behind calls", {0}, OPEN INVOKE("f") END CLOSE "\n\nDone.", "[f {}]Done.", NULL, 1},
    {"a value that is no JSON becomes a string",
     {0},
     OPEN INVOKE("f") PARAM("a", "false", "{oops") END CLOSE,
     "[f {\"a\": \"{oops\"}]",
     NULL,
     1},
    {"the block is not closed", {0}, OPEN INVOKE("f") END, "[f {}]", NULL, 1},
    {"only the first of many",
     {.max_calls = 1},
     OPEN INVOKE("f") END INVOKE("g") END CLOSE,
     "[f {}]",
     NULL,
     1},
    {"a block without calls is text", {0}, "x\n\n" OPEN CLOSE "y", "x\n\n" OPEN CLOSE "y", NULL, 0},
    {"markup in a sentence is text",
     {0},
     "Write <" D "function_calls> first, then " INVOKE("f"),
     "Write <" D "function_calls> first, then " INVOKE("f"),
     NULL,
     0},
    {"a name that is none",
     {0},
     OPEN "<" D "invoke name=\"a<b\">\n",
     OPEN "<" D "invoke name=\"a<b\">\n",
     NULL,
     0},
    {"something between parameters",
     {0},
     OPEN INVOKE("f") PARAM("a", "true", "x") "hm" END CLOSE,
     OPEN INVOKE("f") PARAM("a", "true", "x") "hm" END CLOSE,
     "[f {\"a\": \"x\"]\nhm" END CLOSE,
     0},
    {"a parameter without its type",
     {0},
     OPEN INVOKE("f") "<" D "parameter name=\"a\">x",
     OPEN INVOKE("f") "<" D "parameter name=\"a\">x",
     "[f ]\n<" D "parameter name=\"a\">x",
     0},
    {"cut in a value",
     {0},
     OPEN INVOKE("f") "<" D "parameter name=\"path\" string=\"true\">/tmp</" D "para",
     OPEN INVOKE("f") "<" D "parameter name=\"path\" string=\"true\">/tmp</" D "para",
     "[f {\"path\": \"/tmp</" D "para]",
     0},
    {"the second call breaks", {0}, OPEN INVOKE("f") END "oh", "[f {}]\noh", NULL, 1},
    {"a call was forced",
     {.begun = "\n\n" OPEN "<" D "invoke name=\""},
     "f\">\n" PARAM("a", "true", "x") END CLOSE,
     "[f {\"a\": \"x\"}]",
     NULL,
     1},
    {"a named call was forced",
     {.begun = "\n\n" OPEN INVOKE("f"), .max_calls = 1},
     PARAM("a", "true", "x") END CLOSE,
     "[f {\"a\": \"x\"}]",
     NULL,
     1},
    {"a forced call that the model ignores",
     {.begun = "\n\n" OPEN "<" D "invoke name=\""},
     "Sorry,\nno.",
     "Sorry,\nno.",
     NULL,
     0},
    {"V3.1: two calls",
     {.format = CHAT_TOOLS_V31},
     "Wait." CALLS CALL("f", "{\"a\": \"<｜tool\"}") CALL("g", "{}") DONE,
     "Wait.[f {\"a\": \"<｜tool\"}][g {}]",
     NULL,
     2},
    {"V3.1: arguments that are no object",
     {.format = CHAT_TOOLS_V31},
     CALLS CALL("f", "{\"a\": ") DONE,
     CALLS CALL("f", "{\"a\": ") DONE,
     "[f {\"a\": ]",
     0},
    {"V3.1: no name", {.format = CHAT_TOOLS_V31}, CALLS CALL("", "{}"), CALLS CALL("", "{}"), NULL, 0},
    {"V3.1: a named call was forced",
     {.format = CHAT_TOOLS_V31, .begun = CALLS "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", .max_calls = 1},
     "{\"a\": 1}<｜tool▁call▁end｜>" DONE,
     "[f {\"a\": 1}]",
     NULL,
     1},
};

static void check(size_t i, bool eager, size_t size, size_t cut)
{
    struct tool_parser_options o = cases[i].o;
    uint32_t calls;
    o.eager = eager;
    char *got = read_all(&o, cases[i].text, size, cut, &calls);
    const char *expected = eager && cases[i].eager ? cases[i].eager : cases[i].whole;
    if (strcmp(got, expected) != 0)
        fail_msg("%s (%s, pieces of %zu, cut at %zu): got\n%s\nexpected\n%s", cases[i].name,
                 eager ? "eager" : "whole", size, cut, got, expected);
    if (!eager || !cases[i].eager) assert_int_equal(calls, cases[i].calls);
    free(got);
}

static void every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int eager = 0; eager < 2; eager++) {
            size_t length = strlen(cases[i].text);
            check(i, eager, 0, 0);
            check(i, eager, 1, 0);
            check(i, eager, 3, 0);
            for (size_t cut = 1; cut < length; cut++) check(i, eager, 0, cut);
        }
}

/* Text is not kept longer than it has to be. */
static void text_comes_at_once(void **state)
{
    (void)state;
    struct told t = {0};
    const struct tool_sink sink = {on_content, on_call, on_arguments, &t};
    const struct tool_parser_options o = {.eager = true};
    struct tool_parser *p = tool_parser_open(&o, &sink);
    tool_parser_feed(p, "Hello <", 7);
    assert_string_equal(t.text.data, "Hello ");
    tool_parser_feed(p, "b>\n\n", 4);
    assert_string_equal(t.text.data, "Hello <b>");
    const char *begin = "<" D "function_calls>\n<" D "invoke name=\"f\">";
    tool_parser_feed(p, begin, strlen(begin));
    assert_string_equal(t.text.data, "Hello <b>[f ");
    const char *param = "\n<" D "parameter name=\"a\" string=\"true\">one two";
    tool_parser_feed(p, param, strlen(param));
    assert_string_equal(t.text.data, "Hello <b>[f {\"a\": \"one two");
    tool_parser_close(p);
    buffer_free(&t.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cut), cmocka_unit_test(text_comes_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
