/* engine_test.c: generations on the hash model: the tokens must be those of the plain loop "whole text in,
 * sample, append", whatever is done to produce them; how they end, fail, are cancelled and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/probe.h"
#include "setup.h"

static void every_way_gives_the_plain_loops_tokens(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 8, 17, 30}, chunks[] = {2, 3, 8, 64};
    uint32_t proposed = 0, accepted = 0;
    for (size_t m = 0; m < SETUP_MODES; m++)
        for (size_t c = 0; c < 4; c++)
            for (int kind = 0; kind < 3; kind++)
                for (size_t p = 0; p < 6; p++) {
                    struct setup t = setup_open(2, chunks[c], setup_modes[m].mtp, setup_modes[m].verify);
                    int32_t prompt[32], want[64];
                    make_prompt(prompt, lengths[p], (uint32_t)p);
                    struct sampling s = sampling_kind(kind);
                    uint32_t n = plain_loop(prompt, lengths[p], 40, true, &s, want);
                    struct collected got = {0};
                    struct generation *g = setup_start(t, prompt, lengths[p], 40, &s, true, &got);
                    setup_run(t);
                    const struct generation_result *r = generation_result(g);
                    assert_int_equal(r->reason, FINISH_LENGTH);
                    assert_int_equal(got.count, n);
                    assert_memory_equal(got.id, want, n * sizeof *want);
                    assert_int_equal(got.prefilled, lengths[p]);
                    assert_int_equal(r->generated_tokens, n);
                    assert_int_equal(got.accepted, r->drafts_accepted);
                    expect_kv(&t.fake->last_closed, prompt, lengths[p], want, n);
                    proposed += r->drafts_proposed;
                    accepted += r->drafts_accepted;
                    if (!setup_modes[m].mtp) assert_int_equal(r->drafts_proposed, 0);
                    generation_free(g);
                    setup_close(t);
                }
    assert_true(accepted > 500 && proposed - accepted > 500); // both paths were taken
}

static void what_ends_a_generation(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t prompt, max, stop_after;
        bool ignore_eos;
        enum finish_reason reason;
        uint32_t tokens; // 0: as the plain loop with EOS says
    } cases[] = {
        {"max_tokens 1", 5, 1, 0, true, FINISH_LENGTH, 1},
        {"max_tokens 2", 5, 2, 0, true, FINISH_LENGTH, 2},
        {"max_tokens 3", 5, 3, 0, true, FINISH_LENGTH, 3},
        {"positions", FAKE_POSITIONS - 6, 50, 0, true, FINISH_LENGTH, 6},
        {"positions without max_tokens", FAKE_POSITIONS - 9, 0, 0, true, FINISH_LENGTH, 9},
        {"one position left", FAKE_POSITIONS - 1, 0, 0, true, FINISH_LENGTH, 1},
        {"no position left", FAKE_POSITIONS, 5, 0, true, FINISH_LENGTH, 1},
        {"end-of-sequence token", 7, 0, 0, false, FINISH_STOP, 0},
        {"callback says no at once", 5, 20, 1, true, FINISH_STOP, 1},
        {"callback says no at 7", 5, 20, 7, true, FINISH_STOP, 7},
        {"callback says no at 8", 5, 20, 8, true, FINISH_STOP, 8},
        {"callback says no at 9", 5, 20, 9, true, FINISH_STOP, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t m = 0; m < SETUP_MODES; m++) {
            struct setup t = setup_open(2, 8, setup_modes[m].mtp, setup_modes[m].verify);
            int32_t prompt[FAKE_POSITIONS], want[FAKE_POSITIONS];
            make_prompt(prompt, cases[i].prompt, 3);
            struct sampling s = sampling_kind(cases[i].tokens ? 0 : 1);
            uint32_t n = cases[i].tokens;
            if (n)
                plain_loop(prompt, cases[i].prompt, n, true, &s, want);
            else
                n = plain_loop(prompt, cases[i].prompt, FAKE_POSITIONS - cases[i].prompt, false, &s, want);
            struct collected got = {.stop_after = cases[i].stop_after};
            struct generation *g =
                setup_start(t, prompt, cases[i].prompt, cases[i].max, &s, cases[i].ignore_eos, &got);
            setup_run(t);
            if (generation_result(g)->reason != cases[i].reason || got.count != n)
                fail_msg("%s: reason %d, %u tokens", cases[i].name, generation_result(g)->reason, got.count);
            assert_memory_equal(got.id, want, n * sizeof *want);
            assert_int_equal(generation_result(g)->generated_tokens, n);
            if (!cases[i].tokens) {
                assert_true(n > 2 && got.stop_seen && got.id[n - 1] == FAKE_EOS);
            }
            generation_free(g);
            setup_close(t);
        }
}

static void a_failure_is_one_generations_own(void **state)
{
    (void)state;
    static const struct {
        enum fake_sickness sick;
        uint32_t position;
        const char *text;
    } cases[] = {
        {SICK_OPEN, 0, "no memory for the cache"}, {SICK_START, 2, "start is sick"},
        {SICK_START, 14, "start is sick"},         {SICK_POLL, 2, "poll is sick"},
        {SICK_POLL, 15, "poll is sick"},           {SICK_SUBMIT, 2, "submit is sick"},
        {SICK_SUBMIT, 16, "submit is sick"},       {SICK_ANSWER, 2, "answer is sick"},
        {SICK_ANSWER, 17, "answer is sick"},       {SICK_NAN, 18, "logits of position 18"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t m = 0; m < SETUP_MODES; m++) {
            struct setup t = setup_open(4, 4, setup_modes[m].mtp, setup_modes[m].verify);
            t.fake->sick_seq = 0;
            t.fake->sick_position = cases[i].position;
            struct sampling s = SAMPLING_GREEDY;
            int32_t prompt[10], want[40];
            make_prompt(prompt, 10, 2);
            struct collected sick = {0}, well = {0}, later = {0};
            struct generation *a, *b, *c;
            t.fake->sick = cases[i].sick;
            a = setup_start(t, prompt, 10, 30, &s, true, &sick);
            b = setup_start(t, prompt, 10, 30, &s, true, &well);
            setup_run(t);
            assert_int_equal(generation_result(a)->reason, FINISH_ERROR);
            if (!strstr(generation_result(a)->error.text, cases[i].text))
                fail_msg("'%s' says '%s'", cases[i].text, generation_result(a)->error.text);
            plain_loop(prompt, 10, 30, true, &s, want);
            assert_memory_equal(sick.id, want, sick.count * sizeof *want); // right up to the failure
            t.fake->sick = SICK_NO;
            c = setup_start(t, prompt, 10, 30, &s, true, &later);
            setup_run(t);
            if (cases[i].sick != SICK_OPEN) { // there the healthy one is given the same handle
                assert_int_equal(well.count, 30);
                assert_memory_equal(well.id, want, sizeof(int32_t) * 30);
            }
            assert_int_equal(later.count, 30);
            assert_memory_equal(later.id, want, sizeof(int32_t) * 30);
            generation_free(a);
            generation_free(b);
            generation_free(c);
            setup_close(t);
        }
}

static void no_wait_is_without_end(void **state)
{
    (void)state;
    for (int backend = 0; backend < 2; backend++) {
        struct setup t = setup_open(1, 8, true, MTP_ONE_JOB);
        const struct flock_seam seam = fake_flock(t.fake);
        lanes_close(t.engine->lanes);
        t.engine->lanes = lanes_open(&t.fake->backend, &seam, 1, 30);
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[5] = {1, 2, 3, 4, 5}, want[6];
        plain_loop(prompt, 5, 6, true, &s, want);
        struct collected got[3];
        memset(got, 0, sizeof got);
        struct generation *g[3];
        t.fake->never_answers = !backend;
        t.fake->never_publishes = backend;
        g[0] = setup_start(t, prompt, 5, 6, &s, true, &got[0]);
        setup_run(t);
        assert_int_equal(generation_result(g[0])->reason, FINISH_ERROR);
        assert_string_equal(generation_result(g[0])->error.text,
                            backend ? "lane 0: positions 0 to 4 did not leave the fake backend within 0.03 s"
                                    : "layer 0 of positions 0 to 4: no answer from the flock within 0.03 s");
        g[1] = setup_start(t, prompt, 5, 6, &s, true, &got[1]);
        setup_run(t);
        assert_int_equal(generation_result(g[1])->reason, FINISH_ERROR);
        if (!backend)
            assert_string_equal(generation_result(g[1])->error.text,
                                "no lane: all 1 still wait for answers from the flock");
        t.fake->never_answers = t.fake->never_publishes =
            false; // the late answer comes: the lane is free again
        g[2] = setup_start(t, prompt, 5, 6, &s, true, &got[2]);
        while (generation_result(g[2])->reason == FINISH_NONE) engine_step(t.engine);
        for (int tries = 0; got[2].count == 0 && tries < 5; tries++) { // each try polls the late answer once
            generation_free(g[2]);
            g[2] = setup_start(t, prompt, 5, 6, &s, true, &got[2]);
            setup_run(t);
        }
        assert_int_equal(got[2].count, 6);
        assert_memory_equal(got[2].id, want, sizeof want);
        for (int i = 0; i < 3; i++) generation_free(g[i]);
        setup_close(t);
    }
}

static void given_up(void *ctx, uint32_t lane, int rc, const struct error *err)
{
    (void)err;
    assert_int_equal(lane, *(uint32_t *)ctx);
    assert_int_equal(rc, -ETIMEDOUT);
}

/* Ducks that still compute what nobody waits for are not timed, whichever lane it came from. */
static void nothing_is_timed_beside_a_late_step(void **state)
{
    (void)state;
    for (uint32_t lane = 0; lane < 3; lane++) {
        struct setup t = setup_open(3, 8, false, MTP_ONE_JOB);
        const struct flock_seam seam = fake_flock(t.fake);
        struct engine_probe *probe;
        struct sequence s;
        struct error err;
        char said[80];
        int32_t ids[4] = {1, 2, 3, 4};
        lanes_close(t.engine->lanes);
        t.engine->lanes = lanes_open(&t.fake->backend, &seam, 3, 30);
        t.fake->model.config.experts = t.fake->model.config.top_k = 1;
        t.fake->model.config.hidden_size = 2;
        assert_int_equal(engine_probe_open(&probe, t.engine, 4, &err), 0);
        assert_non_null(probe);
        t.fake->never_answers = true;
        assert_int_equal(sequence_open(&s, t.engine->backend, &(struct sequence_start){ids, 4, 4, 4}, &err),
                         0);
        const struct backend_job job = sequence_main_job(&s, 4, 3);
        assert_int_equal(lanes_start(t.engine->lanes, lane, &job, LANE_NONE, &err), 0);
        lanes_run(t.engine->lanes, given_up, &lane);
        for (int many = 0; many < 2; many++) {
            assert_int_equal(engine_probe_slice(probe, many, &err), -EBUSY);
            snprintf(said, sizeof said, "lane %u still waits for an answer from the flock", lane);
            assert_string_equal(err.text, said);
        }
        engine_probe_close(probe);
        t.fake->never_answers = false;
        for (int tries = 0; !lanes_idle(t.engine->lanes, lane); tries++) assert_true(tries < 100);
        sequence_close(&s);
        setup_close(t);
    }
}

static void cancelling_and_freeing_at_any_time(void **state)
{
    (void)state;
    for (size_t m = 0; m < SETUP_MODES; m++) {
        struct setup t = setup_open(4, 4, setup_modes[m].mtp, setup_modes[m].verify);
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[10], want[30];
        make_prompt(prompt, 10, 2);
        plain_loop(prompt, 10, 30, true, &s, want);
        struct collected got[6];
        memset(got, 0, sizeof got);
        struct generation *g[6];
        for (int i = 0; i < 6; i++) g[i] = setup_start(t, prompt, 10, 30, &s, true, &got[i]);
        got[0].cancel_at_2 = g[0]; // itself
        got[1].free_at_2 = g[1];   // itself
        for (int step = 0; step < 2; step++) engine_step(t.engine);
        generation_cancel(g[2]); // while it reads its prompt
        assert_true(generation_done(g[2]));
        assert_int_equal(generation_result(g[2])->reason, FINISH_CANCELLED);
        generation_free(g[5]); // while it waits
        got[3].cancel_at_2 = g[4];
        setup_run(t);
        assert_int_equal(generation_result(g[0])->reason, FINISH_CANCELLED);
        assert_int_equal(got[0].count, 2);
        assert_int_equal(got[1].count, 2);
        assert_int_equal(got[3].count, 30);
        assert_memory_equal(got[3].id, want, sizeof want);
        assert_int_equal(generation_result(g[4])->reason, FINISH_CANCELLED);
        assert_int_equal(got[5].count, 0);
        generation_free(g[0]);
        generation_free(g[2]);
        generation_free(g[3]);
        got[2] = (struct collected){0};
        g[1] = setup_start(t, prompt, 10, 30, &s, true, &got[2]);
        engine_step(t.engine);
        setup_close(t); // with one under way
        generation_free(g[1]);
        generation_free(g[4]);
    }
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct setup t = setup_open(1, 8, false, MTP_ONE_JOB);
    int32_t prompt[FAKE_POSITIONS + 1] = {0}, bad[2] = {1, FAKE_VOCAB}, negative[1] = {-1};
    struct generation_request r[5];
    for (int i = 0; i < 5; i++)
        r[i] = (struct generation_request){.prompt = prompt, .prompt_count = 4, .sampling = SAMPLING_GREEDY};
    static const char *const text[5] = {
        "the prompt has no tokens", "the prompt has 161 tokens; the model has 160 positions",
        "prompt token 1 is 40; the vocabulary has 40", "prompt token 0 is -1; the vocabulary has 40",
        "temperature is -1; it can be 0 to inf"};
    r[0].prompt_count = 0;
    r[1].prompt_count = FAKE_POSITIONS + 1;
    r[2].prompt = bad;
    r[2].prompt_count = 2;
    r[3].prompt = negative;
    r[3].prompt_count = 1;
    r[4].sampling.temperature = -1.0f;
    for (int i = 0; i < 5; i++) {
        struct generation *g = NULL;
        struct error err;
        assert_true(engine_start(t.engine, &g, &r[i], &err) < 0);
        assert_string_equal(err.text, text[i]);
        assert_null(g);
    }
    assert_false(engine_step(t.engine));
    setup_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_plain_loops_tokens), cmocka_unit_test(what_ends_a_generation),
        cmocka_unit_test(a_failure_is_one_generations_own),       cmocka_unit_test(no_wait_is_without_end),
        cmocka_unit_test(cancelling_and_freeing_at_any_time),     cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(nothing_is_timed_beside_a_late_step),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
