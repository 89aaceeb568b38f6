// units_test.c: UTF-8 steps, merges against a plain reference, added tokens, the detokenizer, several
// threads.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/text/added_tokens.h"
#include "host/text/bpe.h"
#include "host/text/utf8.h"
#include "tests/text/text_support.h"

#define BAD UTF8_REPLACEMENT

static void broken_bytes_become_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *name, *in, *out;
    } cases[] = {
        {"plain", "aé中🦆", "aé中🦆"},
        {"stray continuation", "a\x80z", "a" BAD "z"},
        {"two stray continuations", "\x80\xbf", BAD BAD},
        {"overlong slash", "\xc0\xaf", BAD BAD},
        {"overlong three bytes", "\xe0\x80\xaf", BAD BAD BAD},
        {"overlong four bytes", "\xf0\x8f\xbf\xbf", BAD BAD BAD BAD},
        {"surrogate", "\xed\xa0\x80", BAD BAD BAD},
        {"above U+10FFFF", "\xf4\x90\x80\x80", BAD BAD BAD BAD},
        {"never a first byte", "\xfe\xff\xf5", BAD BAD BAD},
        {"cut after two of three", "\xe4\xb8z", BAD "z"},
        {"cut after three of four", "\xf0\x9f\xa6z", BAD "z"},
        {"cut at the end", "x\xf0\x9f\xa6", "x" BAD},
        {"cut by another start", "\xe4\xb8\xe4\xb8\xad", BAD "中"},
        {"one start after another", "\xc3\xc3\xa9", BAD "é"},
        {"last code point", "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        size_t n = utf8_lossy((const unsigned char *)cases[i].in, strlen(cases[i].in), out);
        out[n] = '\0';
        if (strcmp(out, cases[i].out) != 0) fail_msg("%s: got '%s'", cases[i].name, out);
        assert_int_equal(utf8_valid_length((unsigned char *)out, n), n);
    }
}

/* ---- merges ---- */

enum { ALPHABET = 4, MERGES = 60 };

struct plain_merge {
    int32_t left, right, merged;
};

/* The definition itself: look for the best pair from the left, merge it, again. */
static size_t plain_bpe(const struct plain_merge *merges, int32_t *id, size_t count)
{
    for (;;) {
        size_t best = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t rank = 0; rank < MERGES && rank < best; rank++)
                if (merges[rank].left == id[i] && merges[rank].right == id[i + 1]) {
                    best = rank;
                    at = i;
                }
        if (best == SIZE_MAX) return count;
        id[at] = merges[best].merged;
        count--;
        memmove(id + at + 1, id + at + 2, (count - at - 1) * sizeof *id);
    }
}

static void random_merges(struct plain_merge *merges, struct bpe *bpe, uint64_t *seed)
{
    assert_int_equal(bpe_init(bpe, MERGES), 0);
    for (int i = 0; i < 256; i++) bpe->byte_id[i] = i % ALPHABET;
    for (uint32_t rank = 0; rank < MERGES;) {
        // Of what exists by then, as a trained list has it.
        struct plain_merge m = {(int32_t)(next_random(seed) % (ALPHABET + rank)),
                                (int32_t)(next_random(seed) % (ALPHABET + rank)), (int32_t)(ALPHABET + rank)};
        if (bpe_add(bpe, m.left, m.right, m.merged, rank)) continue;
        merges[rank++] = m;
    }
}

static void merges_are_those_of_the_plain_algorithm(void **state)
{
    (void)state;
    uint64_t seed = 3;
    struct bpe_scratch scratch = {0};
    for (int table = 0; table < 30; table++) {
        struct plain_merge merges[MERGES];
        struct bpe bpe;
        random_merges(merges, &bpe, &seed);
        for (int piece = 0; piece < 40; piece++) {
            unsigned char bytes[300];
            int32_t expected[300];
            size_t length = 1 + next_random(&seed) % (piece % 4 ? 12 : 300),
                   letters = 1 + next_random(&seed) % 4;
            for (size_t i = 0; i < length; i++) {
                bytes[i] = (unsigned char)(next_random(&seed) % letters);
                expected[i] = bytes[i];
            }
            size_t count = plain_bpe(merges, expected, length);
            struct ids got = {0};
            assert_int_equal(bpe_encode(&bpe, &scratch, bytes, length, &got), 0);
            assert_int_equal(got.count, count);
            assert_memory_equal(got.id, expected, count * sizeof *expected);
            ids_free(&got);
        }
        bpe_free(&bpe);
    }
    bpe_scratch_free(&scratch);
}

static void a_merge_given_twice_is_refused(void **state)
{
    (void)state;
    struct bpe bpe;
    assert_int_equal(bpe_init(&bpe, 2), 0);
    assert_int_equal(bpe_add(&bpe, 1, 2, 3, 0), 0);
    assert_true(bpe_add(&bpe, 1, 2, 4, 1) < 0);
    bpe_free(&bpe);
}

/* ---- added tokens ---- */

static void the_longest_added_token_is_found(void **state)
{
    (void)state;
    char texts[][8] = {"<a", "<a>", "<ab", "b>", "<", "ab"};
    struct added_token tokens[6];
    for (int i = 0; i < 6; i++) tokens[i] = (struct added_token){texts[i], strlen(texts[i]), i};
    struct added_set set = {.token = tokens, .count = 6};
    added_set_sort(&set);
    static const struct {
        const char *name, *text;
        int32_t id[4]; // -1: no more
    } cases[] = {
        {"longest", "<a>", {1, -1}},
        {"shorter when the longest is cut", "<a", {0, -1}},
        {"leftmost wins", "<ab>", {2, -1}},
        {"none", "cde>", {-1}},
        {"several", "x<<a>ab", {4, 1, 5, -1}},
        {"a start that leads nowhere", "a<c", {4, -1}},
        {"empty", "", {-1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t from = 0, at = 0, length = strlen(cases[i].text);
        for (size_t n = 0; n < 4; n++) {
            const struct added_token *found = added_set_find(&set, cases[i].text, length, from, &at);
            int32_t id = found ? found->id : -1;
            if (id != cases[i].id[n]) fail_msg("%s: match %zu is %d", cases[i].name, n, id);
            if (!found) break;
            assert_memory_equal(cases[i].text + at, found->text, found->length);
            from = at + found->length;
        }
    }
}

static void text_is_a_special_token_only_when_allowed(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(SOURCE_DIR "/models/duckling");
    static const char text[] = "<｜User｜><think>";
    struct ids plain = {0}, allowed = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), false, &plain, &err), 0);
    for (size_t i = 0; i < plain.count; i++) {
        size_t length;
        bool added;
        assert_non_null(tokenizer_token(t, plain.id[i], &length, &added));
        assert_false(added);
    }
    assert_int_equal(tokenizer_encode(t, text, strlen(text), true, &allowed, &err), 0);
    assert_int_equal(allowed.count, 2);
    assert_int_equal(allowed.id[0], tokenizer_added(t, "<｜User｜>"));
    assert_int_equal(allowed.id[1], tokenizer_added(t, "<think>"));
    assert_int_equal(tokenizer_added(t, "Hello"), -1); // a token, but no added one
    assert_int_equal(tokenizer_size(t), 6400);
    ids_free(&plain);
    ids_free(&allowed);
    tokenizer_close(t);
}

/* ---- detokenizer ---- */

static void random_ids_come_as_whole_characters(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(SOURCE_DIR "/models/duckling");
    uint64_t seed = 5;
    for (int run = 0; run < 2000; run++) {
        bool keep_added = run % 2;
        int32_t id[40];
        size_t count = 1 + next_random(&seed) % 40, length = 0, expected_length, got_length;
        char *bytes = malloc(count * tokenizer_max_text(t)),
             *expected = malloc(3 * count * tokenizer_max_text(t));
        for (size_t i = 0; i < count; i++) {
            // Single bytes most of the time: that is where characters are split and broken. Some ids do not
            // exist.
            id[i] = (int32_t)(next_random(&seed) % (next_random(&seed) % 4 ? 260 : 6410)) - 1;
            size_t n;
            bool added;
            const char *token = tokenizer_token(t, id[i], &n, &added);
            if (!token || (added && !keep_added)) continue;
            memcpy(bytes + length, token, n);
            length += n;
        }
        expected_length = utf8_lossy((unsigned char *)bytes, length, expected);
        char *got = decode(t, id, count, keep_added, &got_length);
        assert_int_equal(got_length, expected_length);
        assert_memory_equal(got, expected, expected_length);
        free(got);
        free(expected);
        free(bytes);
    }
    tokenizer_close(t);
}

static void a_character_waits_for_its_last_byte(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(SOURCE_DIR "/models/duckling");
    struct ids ids = {0};
    struct error err = {0};
    char *out = malloc(tokenizer_max_text(t) + 16);
    static const char duck[] = "🦆";
    assert_int_equal(tokenizer_encode(t, duck, 4, false, &ids, &err), 0);
    assert_true(ids.count > 1);
    struct detokenizer d = {0};
    for (size_t i = 0; i + 1 < ids.count; i++) assert_int_equal(detokenizer_push(&d, t, ids.id[i], out), 0);
    assert_int_equal(detokenizer_push(&d, t, ids.id[ids.count - 1], out), 4);
    assert_string_equal(out, duck);
    assert_int_equal(detokenizer_finish(&d, out), 0);
    assert_int_equal(detokenizer_push(&d, t, ids.id[0], out), 0);
    assert_int_equal(detokenizer_finish(&d, out), UTF8_REPLACEMENT_LENGTH);
    assert_int_equal(detokenizer_finish(&d, out), 0);
    free(out);
    ids_free(&ids);
    tokenizer_close(t);
}

/* ---- threads ---- */

struct worker {
    const struct tokenizer *t;
    struct ids ids;
    int failed;
};

static void *encode_often(void *arg)
{
    struct worker *w = arg;
    static const char text[] = "Twelve ducks, 1234 oars; 你好 <｜User｜> and\n\n  so on.";
    for (int i = 0; i < 50; i++) {
        w->ids.count = 0;
        w->failed |= tokenizer_encode(w->t, text, strlen(text), true, &w->ids, NULL);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(SOURCE_DIR "/models/duckling");
    struct worker worker[4] = {{.t = t}, {.t = t}, {.t = t}, {.t = t}};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &worker[i]), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(worker[i].failed, 0);
        assert_int_equal(worker[i].ids.count, worker[0].ids.count);
        assert_memory_equal(worker[i].ids.id, worker[0].ids.id, worker[0].ids.count * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) ids_free(&worker[i].ids);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_bytes_become_replacement_characters),
        cmocka_unit_test(merges_are_those_of_the_plain_algorithm),
        cmocka_unit_test(a_merge_given_twice_is_refused),
        cmocka_unit_test(the_longest_added_token_is_found),
        cmocka_unit_test(text_is_a_special_token_only_when_allowed),
        cmocka_unit_test(random_ids_come_as_whole_characters),
        cmocka_unit_test(a_character_waits_for_its_last_byte),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
