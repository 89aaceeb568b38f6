/* golden_cpu_test.c: CPU backend and local flock against the independent reference: logits, selections,
 * hidden states, greedy continuations, perplexity.
 *
 * Built with REDUCED (sanitizers are ten to fifty times slower) the longest prompts are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/compare.h"

struct golden_model {
    const char *dir, *goldens;
    bool ignore_eos;
    const char *prompts[16]; // the longest ones last
    uint32_t reduced;        // how many of them when REDUCED
};

static const struct golden_model models[] = {
    {"tests/goldens/v32-tiny", "tests/goldens/v32-tiny/goldens", true, {"short", "mid", "long"}, 2},
    {"tests/goldens/v3-tiny", "tests/goldens/v3-tiny/goldens", true, {"short", "mid"}, 1},
    {"models/duckling",
     "tests/goldens/duckling",
     false,
     {"short", "hello", "command", "think", "nothink", "system", "chinese", "name", "turns", "story", "long",
      "longer"},
     3},
};
enum { MODELS = sizeof models / sizeof *models };

static uint32_t prompt_count(const struct golden_model *m)
{
    uint32_t n = 0;
    while (m->prompts[n]) n++;
    return REDUCED ? m->reduced : n;
}

static const struct engine_options exact = {.backend = "cpu",
                                            .flock = "local:3",
                                            .mtp = true,
                                            .wire_activation = WIRE_F32,
                                            .wire_result = WIRE_F32,
                                            .kv_dtype = KV_F32,
                                            .kv_dtype_set = true};

static struct goldens *open_goldens(const char *dir)
{
    struct goldens *g = NULL;
    struct error err;
    if (goldens_open(&g, dir, &err)) fail_msg("%s", err.text);
    return g;
}

static void expect_below(const char *model, const char *prompt, const char *what, double value, double limit)
{
    if (!(value <= limit)) fail_msg("%s %s: %s is %.3g, limit %.3g", model, prompt, what, value, limit);
}

static void expect_near(const char *model, const char *prompt, const struct comparison *c, double limit)
{
    const struct {
        const char *what;
        const struct distance *d;
    } kinds[] = {{"logits", &c->logits},
                 {"hidden", &c->hidden},
                 {"final_norm", &c->final_norm},
                 {"router_weights", &c->router_weights},
                 {"index_scores", &c->index_scores},
                 {"mtp_hidden", &c->mtp_hidden}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        expect_below(model, prompt, kinds[i].what, distance_relative(kinds[i].d), limit);
}

static void values_are_the_references(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        struct engine *e = compare_open(models[m].dir, &exact);
        struct goldens *g = open_goldens(models[m].goldens);
        for (uint32_t p = 0; p < prompt_count(&models[m]); p++) {
            const char *dir = models[m].dir, *name = models[m].prompts[p];
            struct comparison c;
            compare_forced(e, g, name, NULL, &c);
            print_message("  %s %s: logits %.2g, mtp %.2g, hidden %.2g, scores %.2g, logprob %.2g, router "
                          "%lu, index %lu rows\n",
                          dir, name, distance_relative(&c.logits), distance_relative(&c.mtp_logits),
                          distance_relative(&c.hidden), distance_relative(&c.index_scores),
                          c.next_logprob_max, (unsigned long)c.router_rows, (unsigned long)c.index_rows);
            assert_true(c.logits.values > 0 && c.mtp_logits.values > 0);
            expect_near(dir, name, &c, 1e-4);
            // a token swapped in an undecided row reaches later rows of the MTP layer (goldens' README)
            if (strcmp(name, "long") == 0 && m == 0)
                expect_below(dir, name, "mtp_logits", c.mtp_logits_max, 2e-2);
            else
                expect_below(dir, name, "mtp_logits", distance_relative(&c.mtp_logits), 1e-4);
            expect_below(dir, name, "next_logprob", c.next_logprob_max, 2e-3);
            assert_int_equal(c.argmax_wrong, 0);
            assert_int_equal(c.mtp_argmax_wrong, 0);
            assert_int_equal(c.router_wrong, 0);
            assert_int_equal(c.index_wrong, 0);
            if (strcmp(name, "short") == 0) assert_true(c.router_rows > 0 && c.hidden.values > 0);
            if (goldens_find(g, "%s.index_topk", name))
                assert_true(c.index_rows > 0 && c.index_scores.values > 0);
        }
        goldens_close(g);
        engine_close(e);
    }
}

/* The trained model: every prompt, every row. */
static void bf16_activations_stay_near_duckling(void **state)
{
    (void)state;
    const struct golden_model *m = &models[MODELS - 1];
    struct engine_options o = exact;
    o.wire_activation = WIRE_BF16;
    struct engine *e = compare_open(m->dir, &o);
    struct goldens *g = open_goldens(m->goldens);
    for (uint32_t p = 0; p < prompt_count(m); p++) {
        struct comparison c;
        compare_forced(e, g, m->prompts[p], NULL, &c);
        double d = distance_relative(&c.logits);
        print_message("  %s: %.2g\n", m->prompts[p], d);
        expect_below(m->dir, m->prompts[p], "logits", d, 1e-2);
        assert_true(d > 1e-4); // the rounding happened
    }
    goldens_close(g);
    engine_close(e);
}

/* The random models choose experts and positions by scores without any order in them, so rounding tips some
 * choices: rows that chose as the exact run did, of all prompts together. */
static void bf16_activations_stay_near_random(void **state)
{
    (void)state;
    struct engine_options o = exact;
    o.wire_activation = WIRE_BF16;
    for (size_t m = 0; m + 1 < MODELS; m++) {
        struct engine *e = compare_open(models[m].dir, &exact), *rounded = compare_open(models[m].dir, &o);
        struct goldens *g = open_goldens(models[m].goldens);
        struct distance all = {0.0, 0.0, 0};
        uint64_t left_out = 0, rows = 0;
        for (uint32_t p = 0; p < prompt_count(&models[m]); p++) {
            struct comparison base, c;
            compare_forced(e, g, models[m].prompts[p], NULL, &base);
            compare_forced(rounded, g, models[m].prompts[p], &base, &c);
            all.difference += c.logits.difference;
            all.reference += c.logits.reference;
            all.values += c.logits.values;
            left_out += c.left_out;
            rows += base.logits.values / engine_model(e)->config.vocab_size;
        }
        double d = distance_relative(&all);
        print_message("  %s: %.2g, %lu of %lu rows left out\n", models[m].dir, d, (unsigned long)left_out,
                      (unsigned long)rows);
        assert_true(left_out * 4 < rows && d > 1e-4);
        expect_below(models[m].dir, "all", "logits", d, 1e-2);
        goldens_close(g);
        engine_close(e);
        engine_close(rounded);
    }
}

static void greedy_text_is_the_references(void **state)
{
    (void)state;
    static const char *const flocks[] = {"local:1", "local:3", "local:7"};
    for (size_t m = 0; m < MODELS; m++) {
        struct goldens *g = open_goldens(models[m].goldens);
        uint32_t proposed = 0, accepted = 0, tokens = 0;
        for (size_t f = 0; f < 3; f++)
            for (int mtp = 0; mtp < 2; mtp++) {
                if (REDUCED && mtp != (f == 1)) continue; // without MTP on 1 and 7 ducks, with it on 3
                struct engine_options o = exact;
                o.flock = flocks[f];
                o.mtp = mtp;
                struct engine *e = compare_open(models[m].dir, &o);
                for (uint32_t p = 0; p < prompt_count(&models[m]); p++) {
                    if (f != 1 && p >= 10) continue; // the two long ones once
                    struct generation_result r =
                        compare_greedy(e, g, models[m].prompts[p], models[m].ignore_eos);
                    proposed += r.drafts_proposed;
                    accepted += r.drafts_accepted;
                    tokens += r.generated_tokens;
                    if (!mtp) assert_int_equal(r.drafts_proposed, 0);
                }
                engine_close(e);
            }
        print_message("  %s: %u tokens, %u of %u drafts accepted\n", models[m].dir, tokens, accepted,
                      proposed);
        assert_true(proposed > 0);
        if (!models[m].ignore_eos) assert_true(accepted * 10 > proposed * 8); // a trained model drafts well
        goldens_close(g);
    }
}

struct loss {
    const int32_t *ids;
    uint32_t count;
    double nll;
};

static void add_loss(void *ctx, uint32_t position, const float *logits)
{
    struct loss *l = ctx;
    if (position + 1 == l->count) return;
    double top = (double)logits[0], sum = 0.0;
    for (int v = 1; v < 6400; v++) top = fmax(top, (double)logits[v]);
    for (int v = 0; v < 6400; v++) sum += exp((double)logits[v] - top);
    l->nll += top + log(sum) - (double)logits[l->ids[position + 1]];
}

static void perplexity_is_the_references(void **state)
{
    (void)state;
    struct goldens *g = open_goldens("tests/goldens/duckling");
    struct engine *e = compare_open("models/duckling", &exact);
    const struct golden *ids = goldens_find(g, "ppl_text.ids"), *nll = goldens_find(g, "ppl_text.nll");
    uint32_t rows = REDUCED ? 1 : 4, count = REDUCED ? 256 : 1024;
    double got = 0.0, want = 0.0;
    for (uint32_t r = 0; r < rows; r++) {
        struct loss l = {ids->i + (size_t)1024 * r, count, 0.0};
        const struct engine_rows out = {.row = add_loss, .ctx = &l};
        struct error err;
        if (engine_evaluate(e, l.ids, count, 0, &out, &err)) fail_msg("%s", err.text);
        got += l.nll;
        for (uint32_t i = 0; i + 1 < count; i++) want += (double)nll->f[(size_t)1023 * r + i];
    }
    double n = (double)(count - 1) * rows, ratio = exp((got - want) / n);
    print_message("  %u rows: %.5f nats, reference %.5f, perplexity %+.4f %%\n", rows, got / n, want / n,
                  100.0 * (ratio - 1.0));
    assert_true(fabs(ratio - 1.0) <= 1e-3);
    engine_close(e);
    goldens_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_the_references),
        cmocka_unit_test(bf16_activations_stay_near_duckling),
        cmocka_unit_test(bf16_activations_stay_near_random),
        cmocka_unit_test(greedy_text_is_the_references),
        cmocka_unit_test(perplexity_is_the_references),
    };
    return cmocka_run_group_tests_name("golden-cpu", tests, NULL, NULL);
}
