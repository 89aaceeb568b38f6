/* evaluate_test.c: the teacher-forced pass on the hash model: every row once, in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "setup.h"

struct rows_seen {
    int32_t *ids;
    uint32_t next, next_mtp, progress;
};

static void check_row(void *ctx, uint32_t position, const float *logits)
{
    struct rows_seen *s = ctx;
    float want[FAKE_VOCAB];
    assert_int_equal(position, s->next++);
    fake_reference(s->ids, position + 1, want, NULL);
    assert_memory_equal(logits, want, sizeof want);
}

static void check_mtp_row(void *ctx, uint32_t position, const float *logits)
{
    struct rows_seen *s = ctx;
    float want[FAKE_VOCAB];
    assert_int_equal(position, s->next_mtp++);
    fake_mtp_reference(s->ids, position + 2, want);
    assert_memory_equal(logits, want, sizeof want);
}

static void note_progress(void *ctx, uint32_t done, uint32_t total)
{
    struct rows_seen *s = ctx;
    assert_true(done > s->progress && done <= total);
    s->progress = done;
}

static void evaluating_gives_every_row_once_in_order(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2, 5, 8, 64}, froms[] = {0, 1, 7, 28, 29, 30};
    int32_t ids[30];
    make_prompt(ids, 30, 4);
    for (size_t c = 0; c < 4; c++)
        for (size_t f = 0; f < 6; f++)
            for (int mtp = 0; mtp < 2; mtp++) {
                struct setup t = setup_open(1, chunks[c], mtp, MTP_ONE_JOB);
                struct rows_seen seen = {ids, froms[f], froms[f], 0};
                const struct engine_rows rows = {check_row, mtp ? check_mtp_row : NULL, note_progress, &seen};
                struct error err;
                assert_int_equal(engine_evaluate(t.engine, ids, 30, froms[f], &rows, &err), 0);
                assert_int_equal(seen.next, 30);
                assert_int_equal(seen.next_mtp, mtp && froms[f] < 29 ? 29 : froms[f]);
                assert_int_equal(seen.progress, 30);
                setup_close(t);
            }
}

static void evaluating_between_rounds_disturbs_nobody(void **state)
{
    (void)state;
    struct setup t = setup_open(1, 8, true, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[10], want[20];
    make_prompt(prompt, 10, 5);
    plain_loop(prompt, 10, 20, true, &s, want);
    struct collected got = {0};
    struct generation *g = setup_start(t, prompt, 10, 20, &s, true, &got);
    do {
        struct rows_seen seen = {prompt, 0, 0, 0};
        const struct engine_rows rows = {check_row, check_mtp_row, NULL, &seen};
        struct error err;
        assert_int_equal(engine_evaluate(t.engine, prompt, 10, 0, &rows, &err), 0);
    } while (engine_step(t.engine));
    assert_int_equal(got.count, 20);
    assert_memory_equal(got.id, want, sizeof want);
    generation_free(g);
    setup_close(t);
}

static void what_cannot_be_evaluated(void **state)
{
    (void)state;
    struct setup t = setup_open(1, 8, false, MTP_ONE_JOB);
    int32_t ids[FAKE_POSITIONS + 1] = {0};
    struct rows_seen seen = {ids, 0, 0, 0};
    const struct engine_rows rows = {check_row, NULL, NULL, &seen},
                             mtp = {check_row, check_mtp_row, NULL, &seen};
    struct error err;
    assert_true(engine_evaluate(t.engine, ids, 0, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "no tokens to evaluate");
    assert_true(engine_evaluate(t.engine, ids, FAKE_POSITIONS + 1, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "161 tokens to evaluate; the model has 160 positions");
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &mtp, &err) < 0);
    assert_string_equal(err.text, "MTP logits are wanted, but the MTP layer is not loaded");
    ids[2] = FAKE_VOCAB;
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "token 2 is 40; the vocabulary has 40");
    ids[2] = 0;
    t.fake->sick_seq = 0;
    t.fake->sick_position = 3;
    t.fake->sick = SICK_ANSWER;
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "answer is sick");
    assert_int_equal(seen.next, 0);
    setup_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluating_gives_every_row_once_in_order),
        cmocka_unit_test(evaluating_between_rounds_disturbs_nobody),
        cmocka_unit_test(what_cannot_be_evaluated),
    };
    return cmocka_run_group_tests_name("engine evaluate", tests, NULL, NULL);
}
