/* speed_test.c: 1 MB of text is encoded in time, the worst kinds included: one piece of 1 MB must not cost
 * more than n log n. Argument: "duckling" or "deepseek". The bound is generous (a sanitizer or a busy machine
 * is slow); quadratic work takes hours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"
#include "tests/text/text_support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEXT_BYTES 100000u // there it is the memory accesses that are looked at
#else
#define TEXT_BYTES 1000000u
#endif
#define BOUND_NS 10000000000u

static const struct {
    const char *name, *unit; // repeated up to 1 MB
} cases[] = {
    {"mixed text", "The duck's 12345 eggs, 3.5 kg; 你好，世界。 naïve Ελληνικά\tfor (i = 0; i < n; i++)\n\n  "
                   "🦆 कमल "},
    {"one word", "a"},
    {"one word of two letters", "ab"},
    {"CJK", "鸭"},
    {"CJK, several", "一只小鸭子在水里游"},
    {"kana", "アヒル"},
    {"emoji", "🦆"},
    {"joined emoji", "👨‍👩‍👧"},
    {"combining marks", "e\u0301\u0323"},
    {"spaces", " "},
    {"line feeds", "\n"},
    {"wide spaces", "\u3000"},
    {"digits", "7"},
    {"punctuation", "!"},
    {"starts of added tokens", "<｜User"},
    {"control characters", "\x01"},
    {"stray bytes", "\xff"},
};

static const char *tokenizer_path;

static void a_megabyte_of_anything_is_encoded_in_time(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(tokenizer_path);
    char *text = malloc(TEXT_BYTES + 200);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t unit = strlen(cases[i].unit), length = 0;
        while (length < TEXT_BYTES) {
            memcpy(text + length, cases[i].unit, unit);
            length += unit;
        }
        struct ids ids = {0};
        struct error err = {0};
        uint64_t start = clock_cpu_ns();
        if (tokenizer_encode(t, text, length, true, &ids, &err)) fail_msg("%s: %s", cases[i].name, err.text);
        uint64_t took = clock_cpu_ns() - start;
        printf("%-24s %8.1f ms %8zu ids\n", cases[i].name, (double)took / 1e6, ids.count);
        if (took > BOUND_NS) fail_msg("%s took %.1f s", cases[i].name, (double)took / 1e9);
        ids_free(&ids);
    }
    free(text);
    tokenizer_close(t);
}

int main(int argc, char **argv)
{
    bool deepseek = argc > 1 && strcmp(argv[1], "deepseek") == 0;
    tokenizer_path = deepseek ? DEEPSEEK_TOKENIZER : SOURCE_DIR "/models/duckling";
    if (deepseek) skip_without(tokenizer_path);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_megabyte_of_anything_is_encoded_in_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
