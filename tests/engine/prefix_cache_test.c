/* prefix_cache_test.c: a reused prefix must change what is computed, never what comes out. On the hash model,
 * where any wrong KV entry changes every token after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "conversation.h"

static void a_second_turn_computes_only_what_is_new(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct bed b = bed_open(mtp, 1000);
        struct text t = {0};
        text_say(&t, 20, 1);
        assert_int_equal(text_go_on(b, &t, 11), 0);
        uint32_t known = t.count - 1; // the last token was never put in
        text_say(&t, 9, 2);
        uint32_t cached = text_go_on(b, &t, 11);
        // With MTP the last round may have stopped before the MTP layer had caught up.
        assert_in_range(cached, known - (mtp ? 4 : 0), known);
        if (!mtp) assert_int_equal(cached, known);
        bed_close(b);
    }
}

static void the_same_again_and_branches(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct bed b = bed_open(mtp, 1000);
        struct text first = {0}, other = {0};
        text_say(&first, 30, 3);
        struct text again = first;
        assert_int_equal(text_go_on(b, &first, 8), 0);
        assert_int_equal(text_go_on(b, &again, 8), 29); // the last token gives the logits
        assert_memory_equal(again.id, first.id, first.count * sizeof first.id[0]);
        memcpy(other.id, first.id, 17 * sizeof first.id[0]);
        other.count = 17;
        other.id[other.count] = (first.id[17] + 1) % (FAKE_VOCAB - 1);
        other.count++;
        assert_int_equal(text_go_on(b, &other, 8), mtp ? 16 : 17);
        text_say(&first, 3, 5);
        assert_true(text_go_on(b, &first, 4) >= 30); // the branch did not harm it
        bed_close(b);
    }
}

static void the_budget_holds_and_conversations_stay(void **state)
{
    (void)state;
    struct bed b = bed_open(true, 100);
    struct text t = {0};
    text_say(&t, 20, 1);
    text_go_on(b, &t, 4);
    text_say(&t, 6, 2);
    assert_true(text_go_on(b, &t, 4) > 15);
    for (uint32_t i = 0; i < 8; i++) { // titles, tags: much more than fits
        struct text side = {0};
        text_say(&side, 25, 20 + i);
        text_go_on(b, &side, 3);
        assert_true(prefix_cache_bytes(b.engine->prefixes) <= 100 * POSITION_BYTES);
    }
    text_say(&t, 6, 3);
    assert_true(text_go_on(b, &t, 4) > 25);
    struct text large = {0};
    text_say(&large, 110, 9); // more than the budget: not kept, nobody pushed out
    text_go_on(b, &large, 2);
    text_say(&t, 6, 4);
    assert_true(text_go_on(b, &t, 4) > 35);
    bed_close(b);
}

/* A backend with room for three sequences: what is kept makes way for what begins. */
static void a_full_backend_takes_new_texts(void **state)
{
    (void)state;
    struct bed b = bed_open(false, 1000);
    b.fake->most_seqs = 3;
    struct text last = {0};
    for (uint32_t i = 0; i < 6; i++) {
        struct text t = {0};
        text_say(&t, 20, 20 + i);
        assert_int_equal(text_go_on(b, &t, 4), 0);
        last = t;
    }
    text_say(&last, 5, 4);
    assert_true(text_go_on(b, &last, 4) > 20);
    bed_close(b);
}

/* The text that goes on is the one that would be given up first: it is the last to go, and the others make
 * way. With room for one sequence it goes, too, and nothing is reused. */
static void what_is_continued_makes_way_last(void **state)
{
    (void)state;
    for (uint32_t most = 1; most <= 4; most++) {
        struct bed b = bed_open(false, 1000);
        struct text oldest = {0};
        b.fake->most_seqs = most;
        text_say(&oldest, 20, 30);
        assert_int_equal(text_go_on(b, &oldest, 4), 0);
        for (uint32_t i = 1; i < most; i++) {
            struct text t = {0};
            text_say(&t, 20, 30 + i);
            assert_int_equal(text_go_on(b, &t, 4), 0);
        }
        text_say(&oldest, 5, 6);
        assert_int_equal(text_go_on(b, &oldest, 4), most == 1 ? 0 : 23);
        bed_close(b);
    }
}

static bool until_third(void *ctx, const struct generated *g)
{
    struct text *t = ctx;
    t->id[t->count++] = g->id;
    return g->index < 2;
}

/* A sequence with far more room than it used is kept as a smaller one, for which older ones make way. */
static void what_ends_early_is_kept_in_a_full_backend(void **state)
{
    (void)state;
    struct bed b = bed_open(false, 1000);
    struct text older = {0}, t = {0};
    b.fake->most_seqs = 2;
    text_say(&older, 20, 10);
    assert_int_equal(text_go_on(b, &older, 4), 0);
    text_say(&t, 20, 11);
    struct text prompt = t;
    const struct generation_request r = {.prompt = prompt.id,
                                         .prompt_count = prompt.count,
                                         .max_tokens = 100,
                                         .ignore_eos = true,
                                         .sampling = SAMPLING_GREEDY,
                                         .on_token = until_third,
                                         .ctx = &t};
    struct generation *g;
    struct error err;
    assert_int_equal(engine_start(b.engine, &g, &r, &err), 0);
    while (engine_step(b.engine)) {
    }
    assert_int_equal(generation_result(g)->reason, FINISH_STOP);
    generation_free(g);
    text_say(&t, 5, 12);
    assert_int_equal(text_go_on(b, &t, 4), 22);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_turn_computes_only_what_is_new),
        cmocka_unit_test(the_same_again_and_branches),
        cmocka_unit_test(the_budget_holds_and_conversations_stay),
        cmocka_unit_test(a_full_backend_takes_new_texts),
        cmocka_unit_test(what_is_continued_makes_way_last),
        cmocka_unit_test(what_ends_early_is_kept_in_a_full_backend),
    };
    return cmocka_run_group_tests_name("prefix-cache", tests, NULL, NULL);
}
