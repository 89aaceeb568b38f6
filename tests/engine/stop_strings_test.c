/* stop_strings_test.c: every case is fed whole, byte by byte and cut in two at every place: the text that
 * comes out and whether a stop string was found must not depend on the cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "host/engine/stop_strings.h"

struct result {
    char text[512];
    size_t length;
    int found;
};

static struct stop_strings *open_strings(const char *const *stop)
{
    size_t count = 0;
    while (stop[count]) count++;
    struct stop_strings *s = NULL;
    struct error err;
    assert_int_equal(stop_strings_open(&s, stop, count, &err), 0);
    return s;
}

static void feed(struct stop_strings *s, const char *piece, size_t length, struct result *r)
{
    struct stop_text t = {"", 0};
    r->found = stop_strings_feed(s, piece, length, &t);
    assert_true(r->found == 0 || r->found == 1);
    memcpy(r->text + r->length, t.text, t.length);
    r->length += t.length;
}

static struct result run(const char *const *stop, const char *text, const size_t *cuts, size_t cut_count)
{
    struct stop_strings *s = open_strings(stop);
    struct result r = {.length = 0};
    size_t at = 0, length = strlen(text);
    for (size_t i = 0; i <= cut_count && !r.found; i++) {
        size_t end = i < cut_count ? cuts[i] : length;
        feed(s, text + at, end - at, &r);
        at = end;
    }
    struct stop_text t = stop_strings_finish(s);
    if (r.found) assert_int_equal(t.length, 0);
    memcpy(r.text + r.length, t.text, t.length);
    r.length += t.length;
    r.text[r.length] = 0;
    stop_strings_close(s);
    return r;
}

static const struct {
    const char *stop[4], *text, *out;
    int found;
} cases[] = {
    {{NULL}, "anything", "anything", 0},
    {{"STOP"}, "no such thing", "no such thing", 0},
    {{"STOP"}, "go on STOP here", "go on ", 1},
    {{"STOP"}, "STOP", "", 1},
    {{"STOP"}, "ends with STO", "ends with STO", 0},
    {{"STOP"}, "STSTOP", "ST", 1},
    {{"aab"}, "aaaaab", "aaa", 1},
    {{"abab", "babc"}, "xabac ababc", "xabac ", 1},
    {{"babc", "abcd"}, "ababcd", "a", 1},
    {{"b", "abc"}, "abc", "a", 1},   // the one that is completed first
    {{"bc", "abc"}, "xabc", "x", 1}, // both end here: the longest
    {{"\n\n", "User:"}, "one\ntwo\n\nthree", "one\ntwo", 1},
    {{"User:"}, "User User: x", "User ", 1},
    {{"\xc3\xa9"}, "\xc3\xa8\xc3\xa9", "\xc3\xa8", 1}, // e-grave and e-acute share a byte
    {{"\xe5\xa5\xbd"}, "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x81", "\xe4\xbd\xa0", 1},
    {{"aaaa", "aa"}, "baaaa", "b", 1},
    {{"abcabd"}, "abcabcabd", "abc", 1},
};

static void every_cut_gives_the_same(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *text = cases[c].text;
        size_t length = strlen(text), all[64];
        for (size_t i = 0; i + 1 < length; i++) all[i] = i + 1;
        struct result r = run(cases[c].stop, text, NULL, 0);
        assert_string_equal(r.text, cases[c].out);
        assert_int_equal(r.found, cases[c].found);
        r = run(cases[c].stop, text, all, length - 1);
        assert_string_equal(r.text, cases[c].out);
        assert_int_equal(r.found, cases[c].found);
        for (size_t cut = 0; cut <= length; cut++) {
            r = run(cases[c].stop, text, &cut, 1);
            assert_string_equal(r.text, cases[c].out);
            assert_int_equal(r.found, cases[c].found);
        }
    }
}

static void holds_back_only_what_may_be_a_beginning(void **state)
{
    (void)state;
    struct stop_strings *s = open_strings((const char *const[]){"STOP", "OPEN", NULL});
    static const struct {
        const char *piece, *out;
    } steps[] = {{"abc", "abc"}, {"xS", "x"}, {"TO", ""}, {"PE", "ST"}, {"ns", "OPEns"}, {"", ""}, {"O", ""}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct stop_text t;
        int found = stop_strings_feed(s, steps[i].piece, strlen(steps[i].piece), &t);
        if (i == 3) { // "STOP" is complete: nothing of it, nothing after it
            assert_int_equal(found, 1);
            assert_int_equal(t.length, 0);
            assert_int_equal(stop_strings_feed(s, "more", 4, &t), 1);
            assert_int_equal(t.length, 0);
            break;
        }
        assert_int_equal(found, 0);
        assert_int_equal(t.length, strlen(steps[i].out));
        assert_memory_equal(t.text, steps[i].out, t.length);
    }
    stop_strings_close(s);

    s = open_strings((const char *const[]){"STOP!", "OPEN", NULL});
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct stop_text t;
        assert_int_equal(stop_strings_feed(s, steps[i].piece, strlen(steps[i].piece), &t), 0);
        assert_int_equal(t.length, strlen(steps[i].out));
        assert_memory_equal(t.text, steps[i].out, t.length);
    }
    struct stop_text t = stop_strings_finish(s);
    assert_int_equal(t.length, 1);
    assert_memory_equal(t.text, "O", 1);
    stop_strings_close(s);
}

static void an_empty_string_is_refused(void **state)
{
    (void)state;
    struct stop_strings *s = NULL;
    struct error err;
    assert_true(stop_strings_open(&s, (const char *const[]){"a", ""}, 2, &err) < 0);
    assert_string_equal(err.text, "stop string 2 of 2 is empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same),
        cmocka_unit_test(holds_back_only_what_may_be_a_beginning),
        cmocka_unit_test(an_empty_string_is_refused),
    };
    return cmocka_run_group_tests_name("stop_strings", tests, NULL, NULL);
}
