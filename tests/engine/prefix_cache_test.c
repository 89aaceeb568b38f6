/* prefix_cache_test.c: a reused prefix must change what is computed, never what comes out. On the hash model,
 * where any wrong KV entry changes every token after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define POSITION_BYTES 10u

struct bed {
    struct fake *fake;
    struct engine *engine;
};

static struct bed open_bed(bool mtp, uint64_t positions)
{
    struct bed t = {.fake = fake_open()};
    t.fake->max_tokens = 8;
    const struct flock_seam seam = fake_flock(t.fake);
    const struct engine_settings set = {.lanes = 2,
                                        .prefill_chunk = 8,
                                        .step_timeout_ms = 5000,
                                        .mtp = mtp,
                                        .verify = MTP_ONE_JOB,
                                        .prefix_cache_bytes = positions * POSITION_BYTES,
                                        .bytes_per_position = POSITION_BYTES};
    struct error err;
    assert_int_equal(engine__assemble(&t.engine, &t.fake->model, &t.fake->backend, &seam, &set, &err), 0);
    return t;
}

static void close_bed(struct bed t)
{
    engine_close(t.engine);
    for (uint32_t i = 0; i < FAKE_SEQS; i++) assert_false(t.fake->seq[i].open);
    free(t.fake);
}

struct text {
    int32_t id[FAKE_POSITIONS];
    uint32_t count;
};

static bool append(void *ctx, const struct generated *g)
{
    struct text *t = ctx;
    t->id[t->count++] = g->id;
    return true;
}

/* Runs a prompt, appends `more` tokens to it, returns how many of the prompt's were cached. The tokens are
 * checked against the model computed from the whole text. */
static uint32_t go_on(struct bed b, struct text *t, uint32_t more)
{
    struct text prompt = *t;
    const struct generation_request r = {.prompt = prompt.id,
                                         .prompt_count = prompt.count,
                                         .max_tokens = more,
                                         .ignore_eos = true,
                                         .sampling = SAMPLING_GREEDY,
                                         .on_token = append,
                                         .ctx = t};
    struct generation *g;
    struct error err;
    assert_int_equal(engine_start(b.engine, &g, &r, &err), 0);
    while (engine_step(b.engine)) {
    }
    const struct generation_result *result = generation_result(g);
    assert_int_equal(result->reason, FINISH_LENGTH);
    uint32_t cached = result->cached_tokens;
    generation_free(g);
    struct sampling greedy = SAMPLING_GREEDY;
    struct sampler *s = sampler_open(FAKE_VOCAB, &greedy);
    for (uint32_t n = prompt.count; n < t->count; n++) {
        float logits[FAKE_VOCAB];
        fake_reference(t->id, n, logits, NULL);
        assert_int_equal(t->id[n], sampler_sample(s, logits, n));
    }
    sampler_close(s);
    return cached;
}

static void say(struct text *t, uint32_t count, uint32_t variant)
{
    for (uint32_t i = 0; i < count; i++)
        t->id[t->count++] = (int32_t)((i * i * 7 + variant * 13 + i) % (FAKE_VOCAB - 1));
}

static void a_second_turn_computes_only_what_is_new(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct bed b = open_bed(mtp, 1000);
        struct text t = {0};
        say(&t, 20, 1);
        assert_int_equal(go_on(b, &t, 11), 0);
        uint32_t known = t.count - 1; // the last token was never put in
        say(&t, 9, 2);
        uint32_t cached = go_on(b, &t, 11);
        // With MTP the last round may have stopped before the MTP layer had caught up.
        assert_in_range(cached, known - (mtp ? 4 : 0), known);
        if (!mtp) assert_int_equal(cached, known);
        close_bed(b);
    }
}

static void the_same_again_and_branches(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct bed b = open_bed(mtp, 1000);
        struct text first = {0}, other = {0};
        say(&first, 30, 3);
        struct text again = first;
        assert_int_equal(go_on(b, &first, 8), 0);
        assert_int_equal(go_on(b, &again, 8), 29); // the last token gives the logits
        assert_memory_equal(again.id, first.id, first.count * sizeof first.id[0]);
        memcpy(other.id, first.id, 17 * sizeof first.id[0]);
        other.count = 17;
        other.id[other.count] = (first.id[17] + 1) % (FAKE_VOCAB - 1);
        other.count++;
        assert_int_equal(go_on(b, &other, 8), mtp ? 16 : 17);
        say(&first, 3, 5);
        assert_true(go_on(b, &first, 4) >= 30); // the branch did not harm it
        close_bed(b);
    }
}

static void the_budget_holds_and_conversations_stay(void **state)
{
    (void)state;
    struct bed b = open_bed(true, 100);
    struct text t = {0};
    say(&t, 20, 1);
    go_on(b, &t, 4);
    say(&t, 6, 2);
    assert_true(go_on(b, &t, 4) > 15);
    for (uint32_t i = 0; i < 8; i++) { // titles, tags: much more than fits
        struct text side = {0};
        say(&side, 25, 20 + i);
        go_on(b, &side, 3);
        assert_true(prefix_cache_bytes(b.engine->prefixes) <= 100 * POSITION_BYTES);
    }
    say(&t, 6, 3);
    assert_true(go_on(b, &t, 4) > 25);
    struct text large = {0};
    say(&large, 110, 9); // more than the budget: not kept, nobody pushed out
    go_on(b, &large, 2);
    say(&t, 6, 4);
    assert_true(go_on(b, &t, 4) > 35);
    close_bed(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_turn_computes_only_what_is_new),
        cmocka_unit_test(the_same_again_and_branches),
        cmocka_unit_test(the_budget_holds_and_conversations_stay),
    };
    return cmocka_run_group_tests_name("prefix-cache", tests, NULL, NULL);
}
