/* schedule_test.c: several generations at once, on the hash model: what overlaps, whose turn it is, who waits
 * for whom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "setup.h"

/* A prompt's chunks go in pairs, each on a lane of its own and both at the same time; the MTP layer's
 * likewise. */
static void two_chunks_of_a_prompt_overlap(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct setup t = setup_open(3, 8, mtp, MTP_TWO_LANES);
        int32_t prompt[40];
        make_prompt(prompt, 40, 1);
        struct sampling s = SAMPLING_GREEDY;
        struct collected got = {0};
        t.fake->slow = 3;
        struct generation *g = setup_start(t, prompt, 40, 1, &s, true, &got);
        setup_run(t);
        assert_int_equal(generation_result(g)->reason, FINISH_LENGTH);
        assert_int_equal(t.fake->most_at_once, 2);
        uint32_t chunks = 0, lanes_seen[2] = {0};
        for (uint32_t i = 0; i < t.fake->starts; i++) {
            const struct fake_start *j = &t.fake->start[i];
            if (j->kind != BACKEND_MAIN) continue;
            assert_int_equal(j->position, 8 * chunks);
            assert_true(j->lane < 2);
            lanes_seen[j->lane]++;
            chunks++;
        }
        assert_int_equal(chunks, 5);
        assert_int_equal(lanes_seen[0], 3);
        assert_int_equal(lanes_seen[1], 2);
        generation_free(g);
        setup_close(t);
    }
}

static void verifying_on_two_lanes_overlaps(void **state)
{
    (void)state;
    struct setup t = setup_open(2, 8, true, MTP_TWO_LANES);
    int32_t prompt[4] = {1, 2, 3, 4};
    struct sampling s = SAMPLING_GREEDY;
    struct collected got = {0};
    struct generation *g = setup_start(t, prompt, 4, 20, &s, true, &got);
    setup_run(t);
    assert_int_equal(t.fake->most_at_once, 2);
    generation_free(g);
    setup_close(t);
}

static void several_at_once_do_not_touch_each_other(void **state)
{
    (void)state;
    static const uint32_t lengths[6] = {5, 30, 1, 12, 22, 9};
    for (size_t m = 0; m < SETUP_MODES; m++)
        for (uint32_t run = 0; run < 8; run++) {
            uint32_t lanes = 1 + run / 2;
            struct setup t = setup_open(lanes, 4, setup_modes[m].mtp, setup_modes[m].verify);
            t.engine->set.adapt = run % 2; // whatever the clock says of drafts: the texts are the same
            if (lanes == 1) t.engine->set.verify = MTP_ONE_JOB;
            struct generation *g[6];
            struct collected got[6];
            memset(got, 0, sizeof got);
            int32_t prompt[6][32], want[64];
            for (uint32_t i = 0; i < 6; i++) {
                struct sampling s = sampling_kind((int)i % 3);
                make_prompt(prompt[i], lengths[i], i);
                g[i] = setup_start(t, prompt[i], lengths[i], 10 + 3 * i, &s, false, &got[i]);
            }
            setup_run(t);
            for (uint32_t i = 0; i < 6; i++) {
                struct sampling s = sampling_kind((int)i % 3);
                uint32_t n = plain_loop(prompt[i], lengths[i], 10 + 3 * i, false, &s, want);
                assert_int_equal(got[i].count, n);
                assert_memory_equal(got[i].id, want, n * sizeof *want);
                generation_free(g[i]);
            }
            bool pairs = setup_modes[m].mtp && setup_modes[m].verify == MTP_TWO_LANES && lanes > 1;
            if (!t.engine->set.adapt) assert_int_equal(t.fake->most_at_once, pairs ? lanes / 2 * 2 : lanes);
            setup_close(t);
        }
}

static void a_long_prompt_does_not_stall_who_decodes(void **state)
{
    (void)state;
    struct setup t = setup_open(4, 4, false, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[40];
    make_prompt(prompt, 40, 1);
    struct collected got[3];
    memset(got, 0, sizeof got);
    struct generation *g[3];
    g[0] = setup_start(t, prompt, 3, 100, &s, true, &got[0]);
    engine_step(t.engine);
    assert_int_equal(got[0].count, 1);
    g[1] = setup_start(t, prompt, 40, 5, &s, true, &got[1]);
    g[2] = setup_start(t, prompt, 40, 5, &s, true, &got[2]);
    for (uint32_t step = 1; step <= 20; step++) { // 10 chunks each, in turns
        engine_step(t.engine);
        assert_int_equal(got[0].count, 1 + step);
        assert_int_equal(got[1].prefilled + got[2].prefilled, 4 * step);
        assert_int_equal(got[1].prefilled - got[2].prefilled, step % 2 ? 4 : 0);
    }
    setup_run(t);
    assert_int_equal(got[1].count, 5);
    assert_int_equal(got[2].count, 5);
    for (int i = 0; i < 3; i++) generation_free(g[i]);
    setup_close(t);
}

/* Short prompts share a round, and do not wait for a long one that came before them. */
static void short_prompts_do_not_wait_for_a_long_one(void **state)
{
    (void)state;
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        struct setup t = setup_open(8, 8, false, MTP_ONE_JOB);
        t.engine->share.adaptive = anywhere;
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[100];
        make_prompt(prompt, 100, 1);
        struct collected got[6];
        memset(got, 0, sizeof got);
        struct generation *g[6];
        g[0] = setup_start(t, prompt, 3, 50, &s, true, &got[0]);
        engine_step(t.engine);
        g[1] = setup_start(t, prompt, 100, 5, &s, true, &got[1]);
        for (int i = 2; i < 6; i++) g[i] = setup_start(t, prompt, 4, 5, &s, true, &got[i]);
        for (int step = 0; step < 4; step++) engine_step(t.engine);
        assert_int_equal(got[0].count, 5); // who decodes did so in every round
        for (int i = 2; i < 6; i++) assert_true(got[i].count > 0);
        assert_true(got[1].count == 0 && got[1].prefilled >= 8);
        setup_run(t);
        for (int i = 1; i < 6; i++) assert_int_equal(got[i].count, 5);
        for (int i = 0; i < 6; i++) generation_free(g[i]);
        setup_close(t);
    }
}

/* The rows that prompts get follow what rounds take. */
static void prompts_get_their_share(void **state)
{
    (void)state;
    struct prefill_share p;
    prefill_share_begin(&p, false, 512);
    prefill_share_measured(&p, 1, 512, 9000000000u);
    assert_int_equal(prefill_share_rows(&p, 1), 512);
    assert_int_equal(prefill_share_cut(&p, 600, 512), 512);
    assert_int_equal(prefill_share_cut(&p, 600, 500), 0); // whole chunks only
    prefill_share_begin(&p, true, 512);
    assert_int_equal(prefill_share_rows(&p, 0), 1024);
    assert_int_equal(prefill_share_rows(&p, 1), 0); // first it is seen what decoding takes
    prefill_share_measured(&p, 1, 0, 1000000);
    uint32_t first = prefill_share_rows(&p, 1);
    assert_int_equal(prefill_share_cut(&p, 600, 20), 20);
    for (int i = 0; i < 50; i++) prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 10000000);
    assert_int_equal(prefill_share_rows(&p, 1), 512); // 10 ms a round: nobody notices
    for (int i = 0; i < 50; i++)                      // 5 ms a row: about 50 rows are a quarter of a second
        prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 5000000u * prefill_share_rows(&p, 1));
    assert_in_range(prefill_share_rows(&p, 1), 25, first);
    for (int i = 0; i < 50; i++) prefill_share_measured(&p, 10, 0, 1000000000);
    for (int i = 0; i < 50; i++) // decoding takes a second: prompts may add 0.4 s
        prefill_share_measured(&p, 10, prefill_share_rows(&p, 1),
                               1000000000u + 5000000u * prefill_share_rows(&p, 1));
    assert_in_range(prefill_share_rows(&p, 1), 40, 90);
    for (int i = 0; i < 90; i++) prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 9000000000u);
    assert_int_equal(prefill_share_rows(&p, 1), 16);
}

static void those_who_wait_are_served_in_order(void **state)
{
    (void)state;
    struct setup t = setup_open(1, 8, false, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[3] = {1, 2, 3};
    struct collected got[3];
    memset(got, 0, sizeof got);
    struct generation *g[3];
    for (int i = 0; i < 3; i++) g[i] = setup_start(t, prompt, 3, 4, &s, true, &got[i]);
    for (uint32_t step = 0; step < 12; step++) {
        engine_step(t.engine);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t expected = step + 1 > 4 * i ? step + 1 - 4 * i : 0;
            assert_int_equal(got[i].count, expected < 4 ? expected : 4);
        }
    }
    assert_false(engine_step(t.engine));
    for (int i = 0; i < 3; i++) generation_free(g[i]);
    setup_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_chunks_of_a_prompt_overlap),
        cmocka_unit_test(verifying_on_two_lanes_overlaps),
        cmocka_unit_test(several_at_once_do_not_touch_each_other),
        cmocka_unit_test(a_long_prompt_does_not_stall_who_decodes),
        cmocka_unit_test(short_prompts_do_not_wait_for_a_long_one),
        cmocka_unit_test(prompts_get_their_share),
        cmocka_unit_test(those_who_wait_are_served_in_order),
    };
    return cmocka_run_group_tests_name("engine schedule", tests, NULL, NULL);
}
