/* window_test.c: an MTP layer that is given the end of a text only. Reading a key or a hidden state that was
 * never made stops the hash model (fake.c), so every text here also shows that nothing is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "setup.h"

#define CHUNK 16u
#define WINDOW 8u
#define LONG 70u
#define MORE 60u

static struct fake *timed;
static double second_row; // what a job's rows after the first cost, as a share of the first

/* Time is what all jobs that were started cost. */
static uint64_t fake_clock(void)
{
    double ns = 0;
    for (uint32_t i = 0; i < timed->starts; i++)
        ns += (timed->start[i].kind == BACKEND_MTP ? 50 : 1000) *
              (1 + second_row * (timed->start[i].tokens - 1));
    return (uint64_t)ns;
}

static struct setup open_window(uint32_t lanes, bool adapt, enum mtp_verify verify, uint64_t cached)
{
    struct setup t = {.fake = fake_open()};
    timed = t.fake;
    t.fake->max_tokens = CHUNK;
    t.fake->two_lanes = verify == MTP_TWO_LANES;
    const struct flock_seam seam = fake_flock(t.fake);
    const struct engine_settings set = {.lanes = lanes,
                                        .prefill_chunk = CHUNK,
                                        .step_timeout_ms = 5000,
                                        .mtp = true,
                                        .mtp_window = WINDOW,
                                        .adapt = adapt,
                                        .verify = verify,
                                        .clock = fake_clock,
                                        .prefix_cache_bytes = cached,
                                        .bytes_per_position = 1};
    struct error err;
    assert_int_equal(engine__assemble(&t.engine, &t.fake->model, &t.fake->backend, &seam, &set, &err), 0);
    return t;
}

static struct generation_result said(struct setup t, const int32_t *prompt, uint32_t count,
                                     const struct sampling *s)
{
    int32_t expected[FAKE_POSITIONS];
    struct collected got = {0};
    struct generation *g = setup_start(t, prompt, count, MORE, s, true, &got);
    setup_run(t);
    struct generation_result r = *generation_result(g);
    assert_int_equal(r.reason, FINISH_LENGTH);
    assert_int_equal(got.count, plain_loop(prompt, count, MORE, true, s, expected));
    assert_memory_equal(got.id, expected, got.count * sizeof *expected);
    generation_free(g);
    return r;
}

static uint32_t mtp_rows(const struct fake *f, uint32_t from)
{
    uint32_t rows = 0;
    for (uint32_t i = from; i < f->starts; i++)
        if (f->start[i].kind == BACKEND_MTP) rows += f->start[i].tokens;
    return rows;
}

static void tokens_are_those_without(void **state)
{
    (void)state;
    second_row = 0.02;
    for (int verify = MTP_ONE_JOB; verify <= MTP_TWO_LANES; verify++)
        for (int adapt = 0; adapt < 2; adapt++)
            for (uint32_t count = 1; count < LONG; count += count < 20 ? 1 : 7)
                for (int kind = 0; kind < 2; kind++) {
                    struct setup t = open_window(2, adapt, verify, 0);
                    int32_t prompt[LONG];
                    make_prompt(prompt, count, 3);
                    struct sampling s = sampling_kind(kind);
                    struct generation_result r = said(t, prompt, count, &s);
                    assert_true(r.drafts_proposed > 0);
                    setup_close(t);
                }
}

static void of_a_prompt_it_gets_the_end(void **state)
{
    (void)state;
    struct setup t = open_window(2, false, MTP_ONE_JOB, 0);
    int32_t prompt[LONG];
    make_prompt(prompt, LONG, 1);
    struct sampling s = sampling_kind(0);
    said(t, prompt, LONG, &s);
    assert_true(mtp_rows(t.fake, 0) <= WINDOW + MORE);
    setup_close(t);
}

/* Where drafts are dear the MTP layer computes nothing but its trials, and nothing of the next prompt. */
static void dropped_drafts_cost_nothing(void **state)
{
    (void)state;
    struct setup t = open_window(2, true, MTP_ONE_JOB, 0);
    int32_t prompt[LONG];
    make_prompt(prompt, LONG, 1);
    struct sampling s = sampling_kind(0);
    second_row = 1.5;
    for (int i = 0; i < 3; i++) said(t, prompt, LONG, &s);
    uint32_t from = t.fake->starts, proposed = 0, generations = 20;
    for (uint32_t i = 0; i < generations; i++) proposed += said(t, prompt, LONG, &s).drafts_proposed;
    assert_true(from > 0 && t.fake->starts < 4096);
    assert_true(proposed > 0 && proposed < generations * MORE / 20);
    assert_true(mtp_rows(t.fake, from) <= 3 * proposed + WINDOW * generations);
    second_row = 0.02; // and when they are cheap, they are back
    for (int i = 0; i < 8; i++) proposed = said(t, prompt, LONG, &s).drafts_proposed;
    assert_true(proposed > MORE / 4);
    setup_close(t);
}

static void texts_go_on_from_the_cache(void **state)
{
    (void)state;
    for (int adapt = 0; adapt < 2; adapt++)
        for (uint32_t first = 9; first < 40; first++) {
            struct setup t = open_window(2, adapt, MTP_ONE_JOB, 10000);
            int32_t prompt[LONG];
            make_prompt(prompt, LONG, 1);
            struct sampling s = sampling_kind(0);
            second_row = adapt ? 1.5 : 0.02; // with dear drafts much of the text has no MTP keys
            said(t, prompt, first, &s);
            struct generation_result r = said(t, prompt, LONG, &s);
            assert_in_range(r.cached_tokens, first - 1, first); // its last token is run again
            setup_close(t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_without),
        cmocka_unit_test(of_a_prompt_it_gets_the_end),
        cmocka_unit_test(dropped_drafts_cost_nothing),
        cmocka_unit_test(texts_go_on_from_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
