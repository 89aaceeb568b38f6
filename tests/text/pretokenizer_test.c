// pretokenizer_test.c: how patterns are translated, and how text is cut.
#include <stdlib.h>
#include <string.h>

#include "host/text/byte_level.h"
#include "host/text/pretokenizer.h"
#include "host/text/regex_dialect.h"
#include "tests/text/text_support.h"

static void patterns_become_those_of_pcre2(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *pcre2; // NULL: refused
    } cases[] = {
        {"a+b*?c?+", "a+b*?c?+"},
        {"\\p{L}\\P{Nd}[\\p{M}x]", "\\p{L}\\P{Nd}[\\p{M}x]"},
        {"\\p{Han}", "\\p{sc:Han}"},
        {"\\u3040-\\x{309f}\\x0a", "\\x{3040}-\\x{309f}\\x{0a}"},
        {"\\d\\D", "\\p{Nd}\\P{Nd}"},
        {"(?i:'s|'t)(?=x)(?!y)(?<=z)(?<!w)(?:v)(?>u)(t)", "(?i:'s|'t)(?=x)(?!y)(?<=z)(?<!w)(?:v)(?>u)(t)"},
        {"x{1,3}y{2}z{4,}", "x{1,3}y{2}z{4,}"},
        {"[^\\r\\n\\-\\]]\\[\\\\", "[^\\r\\n\\-\\]]\\[\\\\"},
        {"x{1,3}+", NULL},
        {"x{2}?", NULL},
        {"x{,3}", NULL},
        {"{", NULL},
        {"^x", NULL},
        {"x$", NULL},
        {"\\w", NULL},
        {"\\bx", NULL},
        {"\\h", NULL},
        {"\\K", NULL},
        {"\\1", NULL},
        {"[a[b]]", NULL},
        {"[a&&b]", NULL},
        {"[]a]", NULL},
        {"[\\S]", NULL},
        {"[a", NULL},
        {"(?x)a", NULL},
        {"(*UTF)a", NULL},
        {"\\pL", NULL},
        {"\\p{^L}", NULL},
        {"\\p{L", NULL},
        {"\\u12", NULL},
        {"\\x{1234567}", NULL},
        {"a\\", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out = NULL;
        struct error err = {0};
        int rc = regex_to_pcre2(cases[i].pattern, &out, &err);
        if ((rc == 0) != (cases[i].pcre2 != NULL)) fail_msg("%s: %d %s", cases[i].pattern, rc, err.text);
        if (rc == 0 && strcmp(out, cases[i].pcre2) != 0) fail_msg("%s: became %s", cases[i].pattern, out);
        if (rc) assert_non_null(strstr(err.text, "not supported"));
        free(out);
    }
}

static int collect(void *arg, const char *piece, size_t length, struct error *err)
{
    (void)err;
    char *out = arg;
    strncat(out, piece, length);
    strcat(out, "|");
    return 0;
}

enum drop { ISOLATED, MATCHES, GAPS };
struct stage {
    const char *pattern;
    bool literal;
    enum drop drop;
};

static void texts_are_cut_where_patterns_say(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct stage stages[2];
        const char *text, *pieces;
    } cases[] = {
        {"isolated", {{"[0-9]+", false, ISOLATED}}, "a12b3", "a|12|b|3|"},
        {"removed", {{"[0-9]+", false, MATCHES}}, "a12b3", "a|b|"},
        {"removed, inverted", {{"[0-9]+", false, GAPS}}, "a12b3", "12|3|"},
        {"no match", {{"x", false, ISOLATED}}, "abc", "abc|"},
        {"a literal", {{"a.c", true, ISOLATED}}, "abca.c", "abc|a.c|"},
        {"a stage sees only its piece",
         {{"-", false, ISOLATED}, {"\\s+(?!\\S)", false, ISOLATED}},
         "a  -b",
         "a|  |-|b|"},
        {"without the first stage it sees more", {{"\\s+(?!\\S)", false, ISOLATED}}, "a  -b", "a| | -b|"},
        {"empty matches cut", {{"x*", false, ISOLATED}}, "axxb", "a|xx|b|"},
        {"empty matches cut between characters", {{"(?=é)", false, ISOLATED}}, "éaé", "éa|é|"},
        {"white space is Unicode's",
         {{"\\s+", false, ISOLATED}},
         "a\u3000\u00a0\xc2\x85"
         "b",
         "a|\u3000\u00a0\xc2\x85|b|"},
        {"a vowel separator is none", {{"\\s+", false, ISOLATED}}, "a\u180eb", "a\u180eb|"},
        {". excludes LF only", {{".+", false, ISOLATED}}, "a\rb\nc", "a\rb|\n|c|"},
        {"ByteLevel's own pattern",
         {{BYTE_LEVEL_PATTERN, false, ISOLATED}},
         "I'll  go 42,  ok ",
         "I|'ll| | go| 42|,| | ok| |"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pretokenizer p = {0};
        struct splitting s;
        struct error err = {0};
        char out[128] = "";
        for (int k = 0; k < 2 && cases[i].stages[k].pattern; k++) {
            const struct stage *stage = &cases[i].stages[k];
            if (pretokenizer_add(&p, stage->pattern, stage->literal, stage->drop == MATCHES,
                                 stage->drop == GAPS, &err))
                fail_msg("%s: %s", cases[i].name, err.text);
        }
        assert_int_equal(splitting_open(&s, &p, collect, out, &err), 0);
        assert_int_equal(splitting_run(&s, cases[i].text, strlen(cases[i].text)), 0);
        if (strcmp(out, cases[i].pieces) != 0) fail_msg("%s: got %s", cases[i].name, out);
        splitting_close(&s);
        pretokenizer_free(&p);
    }
}

/* A pattern that backtracks without end is given up with a line that says so. */
static void endless_backtracking_is_given_up(void **state)
{
    (void)state;
    struct pretokenizer p = {0};
    struct splitting s;
    struct error err = {0};
    char out[8] = "", text[5001];
    memset(text, 'a', sizeof text);
    assert_int_equal(pretokenizer_add(&p, "(?:a|aa)*(?:a|aa)*[bc]", false, false, false, &err), 0);
    assert_int_equal(splitting_open(&s, &p, collect, out, &err), 0);
    assert_true(splitting_run(&s, text, sizeof text) < 0);
    assert_non_null(strstr(err.text, "limit"));
    splitting_close(&s);
    pretokenizer_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_become_those_of_pcre2),
        cmocka_unit_test(texts_are_cut_where_patterns_say),
        cmocka_unit_test(endless_backtracking_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
