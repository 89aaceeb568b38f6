/* drafts_test.c: drafts are dropped when they cost more than they bring and come back when they pay again, by
 * what rounds take on a clock that the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "fake.h"
#include "host/engine/drafts.h"

static uint32_t random_state = 1;
static double uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) / 16777216.0;
}

/* ---- the rule alone ---- */

struct world {
    double price, acceptance, noise; // a round with drafts over one without, less 1; of times, relative
};

struct walk {
    double ns;
    uint32_t tokens, with, changes;
};

/* Rounds as the engine runs them: a draft that was made is verified in the next round. */
static struct walk walk(struct drafts *d, struct draft_state *s, const struct world *w, uint32_t rounds)
{
    struct walk out = {0};
    bool have = false;
    for (uint32_t i = 0; i < rounds; i++) {
        bool accepted = have && uniform() < w->acceptance, before = have;
        if (have) drafts_judged(s, accepted);
        have = drafts_wanted(d, s, 1);
        // half of a draft's price is its verification, half its making
        double ns = 1e6 * (1 + w->price * (before + have) / 2.0) * (1 + w->noise * (uniform() - 0.5));
        if (uniform() < 0.02)
            ns *= 5; // somebody else's work
        else
            out.ns += ns;
        out.tokens += 1u + accepted;
        out.with += before;
        out.changes += before != have;
        if (before == have) drafts_measured(d, 1, have, (uint64_t)ns);
    }
    return out;
}

static void never_far_from_the_better_one(void **state)
{
    (void)state;
    static const struct world worlds[] = {{1.2, 0.6, 0.3}, {1.2, 0.95, 0.3}, {0.1, 0.9, 0.3},
                                          {0.9, 0.5, 0.3}, {0.5, 0.9, 0.3},  {0.3, 0.1, 0.3},
                                          {0.5, 0.5, 0.1}, {0.0, 0.0, 0.1}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        const struct world *w = &worlds[i];
        struct drafts d = {0};
        struct draft_state s;
        drafts_begin(&d, &s);
        struct walk got = walk(&d, &s, w, 3000);
        double rate = got.tokens / got.ns * 1e6 / 1.02, best = fmax(1, (1 + w->acceptance) / (1 + w->price));
        print_message(
            "price %.1f, acceptance %.2f: %.3f of the better one, %2.0f %% of rounds with a draft\n",
            w->price, w->acceptance, rate / best, 100.0 * got.with / 3000);
        assert_true(rate > 0.97 * best);
    }
}

static void they_come_back(void **state)
{
    (void)state;
    const struct world bad = {0.8, 0.2, 0.2}, good = {0.8, 0.95, 0.2}, cheap = {0.1, 0.5, 0.2};
    const struct world phases[] = {good, bad, good, bad, cheap};
    struct drafts d = {0};
    struct draft_state s;
    drafts_begin(&d, &s);
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        struct walk got = walk(&d, &s, &phases[i], 600);
        print_message("phase %zu: %u of 600 rounds with a draft\n", i, got.with);
        bool pay = 1 + phases[i].acceptance > 1 + phases[i].price;
        assert_true(pay ? got.with > 300 : got.with < 150);
    }
}

/* Where it makes no difference the choice must not flutter. */
static void they_do_not_flutter(void **state)
{
    (void)state;
    const struct world even = {0.5, 0.5, 0.05};
    struct drafts d = {0};
    struct draft_state s;
    drafts_begin(&d, &s);
    struct walk got = walk(&d, &s, &even, 4000);
    print_message("%u changes in 4000 rounds\n", got.changes);
    assert_true(got.changes < 200);
}

static void short_answers_see_trials_too(void **state)
{
    (void)state;
    const struct world dear = {1.5, 0.9, 0.1}, cheap = {0.1, 0.9, 0.1};
    struct drafts d = {0};
    uint32_t with = 0;
    for (int i = 0; i < 400; i++) {
        struct draft_state s;
        drafts_begin(&d, &s);
        struct walk got = walk(&d, &s, i < 100 ? &dear : &cheap, 20);
        drafts_end(&d, &s);
        if (i >= 300) with += got.with;
    }
    assert_true(with > 100 * 20 / 2);
}

/* ---- in the engine ---- */

static struct fake *timed;
static uint32_t timed_starts;
static uint64_t timed_ns;
static double second_row; // what it adds to a job of one

/* A job takes its time the moment the clock is looked at after it. */
static uint64_t fake_clock(void)
{
    for (; timed_starts < timed->starts; timed_starts++) {
        const struct fake_start *j = &timed->start[timed_starts];
        double rows = 1 + second_row * (j->tokens - 1);
        timed_ns += (uint64_t)(j->kind == BACKEND_MTP ? 50 * rows : 1000 * rows);
    }
    return timed_ns;
}

struct text {
    int32_t id[FAKE_POSITIONS];
    uint32_t count;
};

static bool keep(void *ctx, const struct generated *t)
{
    struct text *text = ctx;
    text->id[text->count++] = t->id;
    return true;
}

struct outcome {
    uint32_t rounds, proposed, tokens;
    uint64_t ns;
};

static struct outcome generate(struct engine *e, uint32_t variant)
{
    struct text got = {.count = 0};
    int32_t ids[FAKE_POSITIONS + 1];
    for (uint32_t i = 0; i < 10; i++) ids[i] = (int32_t)((i * 7 + variant * 13) % (FAKE_VOCAB - 1));
    const struct generation_request r = {.prompt = ids,
                                         .prompt_count = 10,
                                         .max_tokens = 140,
                                         .ignore_eos = true,
                                         .sampling = SAMPLING_GREEDY,
                                         .on_token = keep,
                                         .ctx = &got};
    struct generation *g;
    struct error err;
    uint64_t began = fake_clock();
    assert_int_equal(engine_start(e, &g, &r, &err), 0);
    while (engine_step(e))
        ;
    const struct generation_result *result = generation_result(g);
    assert_int_equal(got.count, 140);
    for (uint32_t i = 0; i < 140; i++) { // greedy decoding without jobs, lanes or drafts
        float logits[FAKE_VOCAB];
        fake_reference(ids, 10 + i, logits, NULL);
        int32_t best = 0;
        for (int32_t v = 1; v < FAKE_VOCAB; v++)
            if (logits[v] > logits[best]) best = v;
        assert_int_equal(got.id[i], best);
        ids[10 + i] = best;
    }
    uint64_t prefill = (uint64_t)((1000 + 50) * (1 + second_row * 9));
    struct outcome o = {result->rounds, result->drafts_proposed, got.count, fake_clock() - began - prefill};
    generation_free(g);
    return o;
}

static void the_engine_follows_the_clock(void **state)
{
    (void)state;
    timed = fake_open();
    timed->max_tokens = 16;
    const struct flock_seam seam = fake_flock(timed);
    const struct engine_settings set = {.lanes = 2,
                                        .prefill_chunk = 16,
                                        .step_timeout_ms = 5000,
                                        .mtp = true,
                                        .verify = MTP_ONE_JOB,
                                        .adapt = true,
                                        .clock = fake_clock};
    struct engine *e;
    struct error err;
    assert_int_equal(engine__assemble(&e, &timed->model, &timed->backend, &seam, &set, &err), 0);
    second_row = 1.5;
    for (uint32_t i = 0; i < 6; i++) {
        struct outcome o = generate(e, i);
        print_message("dear drafts: %u of %u rounds, %.3f x single tokens\n", o.proposed, o.rounds,
                      (double)o.ns / (1000.0 * o.tokens));
        assert_true(o.proposed < o.rounds / 3);
        if (i > 0) assert_true((double)o.ns < 1.15 * 1000 * o.tokens); // 0.05 of it is the MTP layer's KV
    }
    assert_true(engine_break_even(e) > 1.4);
    second_row = 0.02;
    struct outcome o = {0};
    for (uint32_t i = 6; i < 14; i++) o = generate(e, i);
    print_message("cheap drafts: %u of %u rounds, %.3f x single tokens\n", o.proposed, o.rounds,
                  (double)o.ns / (1000.0 * o.tokens));
    assert_true(engine_break_even(e) < 0.1);
    assert_true(o.proposed > o.rounds / 2);
    engine_close(e);
    free(timed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_far_from_the_better_one), cmocka_unit_test(they_come_back),
        cmocka_unit_test(they_do_not_flutter),           cmocka_unit_test(short_answers_see_trials_too),
        cmocka_unit_test(the_engine_follows_the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
