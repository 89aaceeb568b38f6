/* sampler_test.c: which tokens may come, how often, and that the same input gives the same token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/rng.h"
#include "host/engine/sampler.h"

#define DRAWS 40000

static struct sampling with(float temperature)
{
    struct sampling s = SAMPLING_GREEDY;
    s.temperature = temperature;
    s.seed = 7;
    return s;
}

/* Draws many times at positions 0, 1, ... and counts. */
static void histogram(const struct sampling *s, const float *logits, uint32_t vocab, uint32_t *count)
{
    struct sampler *p = sampler_open(vocab, s);
    assert_non_null(p);
    memset(count, 0, vocab * sizeof *count);
    for (uint64_t i = 0; i < DRAWS; i++) {
        int32_t id = sampler_sample(p, logits, i);
        assert_in_range(id, 0, vocab - 1);
        count[id]++;
    }
    sampler_close(p);
}

/* Chi-square against the expected probabilities; ids of probability 0 must not come at all. 5 standard
 * deviations above its mean: a true distribution fails once in a million seeds, and the seed is fixed. */
static void expect_distribution(const uint32_t *count, const double *p, uint32_t vocab)
{
    double chi = 0.0, degrees = -1.0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (p[i] == 0.0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        double e = p[i] * DRAWS;
        chi += ((double)count[i] - e) * ((double)count[i] - e) / e;
        degrees += 1.0;
    }
    if (chi > degrees + 5.0 * sqrt(2.0 * degrees) + 5.0) fail_msg("chi-square %g, %g degrees", chi, degrees);
}

static const float logits6[6] = {1.0f, 3.0f, 2.0f, -1.0f, 2.5f, 0.0f};

/* The expected distribution, computed plainly: order[] is logits6 in descending order. */
static void expected6(double temperature, uint32_t keep, double *p)
{
    static const int order[6] = {1, 4, 2, 0, 5, 3};
    double sum = 0.0;
    memset(p, 0, 6 * sizeof *p);
    for (uint32_t i = 0; i < keep; i++) sum += p[order[i]] = exp((double)logits6[order[i]] / temperature);
    for (uint32_t i = 0; i < 6; i++) p[i] /= sum;
}

static void distributions(void **state)
{
    (void)state;
    // logits6 at temperature 1: descending 0.4709 0.2856 0.1732 0.0637 0.0234 0.0086 (cumulative .757 .930
    // .993)
    static const struct {
        const char *name;
        double temperature;
        double top_p, min_p;
        int top_k;
        uint32_t keep;
    } cases[] = {
        {"plain", 1.0, 1.0, 0.0, 0, 6},
        {"hot", 2.5, 1.0, 0.0, 0, 6},
        {"top-k 3", 1.0, 1.0, 0.0, 3, 3},
        {"top-k 1", 1.0, 1.0, 0.0, 1, 1},
        {"top-k of all", 1.0, 1.0, 0.0, 6, 6},
        {"top-k beyond all", 1.0, 1.0, 0.0, 100, 6},
        {"top-p 0.5: the one that crosses is kept", 1.0, 0.5, 0.0, 0, 2},
        {"top-p 0.4: the first alone", 1.0, 0.4, 0.0, 0, 1},
        {"top-p 0: still one", 1.0, 0.0, 0.0, 0, 1},
        {"top-p 0.9", 1.0, 0.9, 0.0, 0, 3},
        {"min-p 0.3", 1.0, 1.0, 0.3, 0, 3},
        {"min-p 1: the largest", 1.0, 1.0, 1.0, 0, 1},
        {"min-p after temperature", 2.5, 1.0, 0.3, 0, 5},
        {"top-p is a share of top-k's mass", 1.0, 0.6, 0.0, 2, 1},
        {"top-k 3 and top-p 0.7", 1.0, 0.7, 0.0, 3, 2},
        {"all three", 1.0, 0.95, 0.5, 5, 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        print_message("  %s\n", cases[c].name);
        struct sampling s = with((float)cases[c].temperature);
        s.top_k = cases[c].top_k;
        s.top_p = (float)cases[c].top_p;
        s.min_p = (float)cases[c].min_p;
        uint32_t count[6];
        double p[6];
        histogram(&s, logits6, 6, count);
        expected6(cases[c].temperature, cases[c].keep, p);
        expect_distribution(count, p, 6);
    }
}

static void greedy_takes_the_largest_and_the_lower_of_equals(void **state)
{
    (void)state;
    struct sampling s = SAMPLING_GREEDY;
    struct sampler *p = sampler_open(5, &s);
    assert_int_equal(sampler_sample(p, (float[]){0, 2, 5, 5, 1}, 0), 2);
    assert_int_equal(sampler_sample(p, (float[]){-3, -2, -5, -2, -9}, 0), 1);
    assert_int_equal(sampler_sample(p, (float[]){-0.0f, 0.0f, -1, -1, -1}, 0), 0);
    assert_int_equal(sampler_sample(p, (float[]){-INFINITY, -INFINITY, -1e30f, -INFINITY, -INFINITY}, 0), 2);
    sampler_close(p);
}

static void tiny_temperature_is_greedy(void **state)
{
    (void)state;
    static const float temperatures[] = {1e-6f, 1e-30f, 1e-45f};
    for (size_t i = 0; i < 3; i++) {
        struct sampling s = with(temperatures[i]);
        s.top_p = i == 1 ? 0.9f : 1.0f;
        struct sampler *p = sampler_open(4, &s);
        for (uint64_t at = 0; at < 100; at++)
            assert_int_equal(sampler_sample(p, (float[]){-1e30f, 1.0f, 1.25f, 3e-6f}, at), 2);
        sampler_close(p);
    }
}

static void no_number_no_token(void **state)
{
    (void)state;
    const float bad[][3] = {
        {0, NAN, 1}, {NAN, 0, 1}, {0, 1, NAN}, {0, INFINITY, 1}, {-INFINITY, -INFINITY, -INFINITY}};
    for (size_t t = 0; t < 2; t++) {
        struct sampling s = with(t ? 1.0f : 0.0f);
        struct sampler *p = sampler_open(3, &s);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            assert_int_equal(sampler_sample(p, bad[i], 0), -1);
        sampler_close(p);
    }
}

static void same_seed_and_position_same_token(void **state)
{
    (void)state;
    struct sampling s = with(1.0f);
    struct sampler *a = sampler_open(6, &s), *b = sampler_open(6, &s);
    s.seed = 8;
    struct sampler *c = sampler_open(6, &s);
    int32_t first[200];
    uint32_t differ = 0, lag = 0;
    for (uint64_t i = 0; i < 200; i++) first[i] = sampler_sample(a, logits6, i);
    for (uint64_t i = 200; i-- > 0;) assert_int_equal(sampler_sample(b, logits6, i), first[i]); // any order
    for (uint64_t i = 0; i < 199; i++) {
        differ += sampler_sample(c, logits6, i) != first[i];
        lag += sampler_sample(c, logits6, i) != first[i + 1];
    }
    assert_true(differ > 50 && lag > 50); // neighbouring seeds: neither the same stream nor a shifted one
    sampler_close(a);
    sampler_close(b);
    sampler_close(c);
}

static void penalties_count_generated_tokens(void **state)
{
    (void)state;
    const float l[4] = {2.0f, 1.8f, -0.5f, -1.0f};
    struct sampling s = SAMPLING_GREEDY;
    s.presence_penalty = 0.5f;
    struct sampler *p = sampler_open(4, &s);
    assert_int_equal(sampler_sample(p, l, 0), 0);
    sampler_accept(p, 0);
    assert_int_equal(sampler_sample(p, l, 1), 1); // 1.5 against 1.8
    sampler_accept(p, 1);
    assert_int_equal(sampler_sample(p, l, 2), 0); // 1.5 against 1.3
    sampler_accept(p, 0);
    assert_int_equal(sampler_sample(p, l, 3), 0); // presence does not grow
    sampler_close(p);

    s = SAMPLING_GREEDY;
    s.frequency_penalty = 0.15f;
    p = sampler_open(4, &s);
    sampler_accept(p, 0);
    assert_int_equal(sampler_sample(p, l, 0), 0); // 1.85
    sampler_accept(p, 0);
    assert_int_equal(sampler_sample(p, l, 0), 1); // 1.70: frequency grows
    sampler_close(p);

    s = SAMPLING_GREEDY;
    s.repetition_penalty = 4.0f;
    p = sampler_open(4, &s);
    sampler_accept(p, 0);
    sampler_accept(p, 1);
    assert_int_equal(sampler_sample(p, l, 0), 0); // 0.5, 0.45: divided once, not per count
    sampler_accept(p, 0);
    assert_int_equal(sampler_sample(p, l, 0), 0);
    assert_int_equal(sampler_sample(p, (float[]){-1.0f, -1.0f, -2.0f, -5.0f}, 0), 2); // negative: multiplied
    sampler_close(p);
}

static void bias_forbids_and_forces(void **state)
{
    (void)state;
    const struct logit_bias bias[] = {{1, -100.0f}, {3, 100.0f}};
    struct sampling s = with(1.0f);
    uint32_t count[6];
    s.bias = bias;
    s.bias_count = 1;
    histogram(&s, logits6, 6, count);
    assert_int_equal(count[1], 0);
    s.bias_count = 2;
    histogram(&s, logits6, 6, count);
    assert_int_equal(count[3], DRAWS);
    s.temperature = 0.0f;
    histogram(&s, logits6, 6, count);
    assert_int_equal(count[3], DRAWS);
}

/* A large vocabulary against a plain full sort: the kept set and the order of the walk. */
static const float *sort_logits;
static int descending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_logits[x] != sort_logits[y]) return sort_logits[x] < sort_logits[y] ? 1 : -1;
    return x < y ? -1 : 1;
}

static void large_vocabulary_equals_a_full_sort(void **state)
{
    (void)state;
    enum { V = 20000 };
    float *l = malloc(V * sizeof *l);
    int32_t *order = malloc(V * sizeof *order);
    for (uint32_t i = 0; i < V; i++) {
        l[i] = roundf((float)(rng_uniform(3, i) * 64.0)) * 0.25f; // many ties
        order[i] = (int32_t)i;
    }
    sort_logits = l;
    qsort(order, V, sizeof *order, descending);
    struct sampling s = with(1.5f);
    s.top_k = 700;
    s.top_p = 0.8f;
    struct sampler *p = sampler_open(V, &s);
    double weight[700], mass = 0.0, kept = 0.0;
    uint32_t n = 0;
    for (int i = 0; i < 700; i++)
        mass += weight[i] = (double)expf((float)(((double)l[order[i]] - (double)l[order[0]]) / (double)1.5f));
    while (n < 700 && kept < (double)0.8f * mass) kept += weight[n++];
    for (uint64_t at = 0; at < 300; at++) {
        double left = rng_uniform(7, at) * kept;
        uint32_t i = 0;
        while (i + 1 < n && (left -= weight[i]) >= 0.0) i++;
        assert_int_equal(sampler_sample(p, l, at), order[i]);
    }
    sampler_close(p);
    free(l);
    free(order);
}

/* A backend's largest logits instead of all of them: the same token, or the admission that they do not
 * decide. */
static void candidates_decide_as_all_logits_do(void **state)
{
    (void)state;
    enum { V = 4000, KINDS = 9 };
    static const struct sampling kinds[KINDS] = {
        {.temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1},
        {.temperature = 1.0f, .top_p = 0.95f, .min_p = 0.02f, .repetition_penalty = 1},
        {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.05f, .repetition_penalty = 1},
        {.temperature = 1.3f, .top_p = 1.0f, .top_k = 50, .repetition_penalty = 1},
        {.temperature = 2.0f, .top_p = 0.8f, .top_k = 255, .repetition_penalty = 1},
        {.temperature = 0.01f, .top_p = 0.99f, .top_k = 40, .repetition_penalty = 1},
        {.temperature = 0.02f, .top_p = 0.5f, .repetition_penalty = 1},
        {.temperature = 50.0f, .top_p = 0.5f, .repetition_penalty = 1},
        {.temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1}};
    static float l[V];
    static int32_t order[V];
    uint32_t decided[KINDS] = {0}, asked = 0;
    for (uint64_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < V; i++) {
            double spread = 0;
            for (uint64_t j = 0; j < 6; j++) spread += rng_uniform(round, i * 8 + j) - 0.5;
            l[i] = (float)(spread * (double)(round % 5 + 1));
            if (round % 3 == 0) l[i] = roundf(l[i] * 4) * 0.25f; // ties
            order[i] = (int32_t)i;
        }
        sort_logits = l;
        qsort(order, V, sizeof *order, descending);
        for (uint32_t k = 0; k < KINDS; k++) {
            struct sampler *p = sampler_open(V, &kinds[k]);
            const double scale = kinds[k].temperature > 0.0f ? 1.0 / (double)kinds[k].temperature : 1.0;
            struct backend_candidates c = {.count = BACKEND_CANDIDATES};
            for (uint32_t i = 0; i < V; i++) {
                c.mass += exp((double)l[i] - (double)l[order[0]]);
                c.tempered += exp(((double)l[i] - (double)l[order[0]]) * scale);
                if (i < BACKEND_CANDIDATES) c.id[i] = order[i], c.logit[i] = l[order[i]];
            }
            assert_true(sampler_takes_candidates(p));
            for (uint64_t at = 0; at < 20; at++) {
                int32_t id = -2;
                if (!sampler_choose(p, &c, at, &id)) {
                    asked++;
                    continue;
                }
                decided[k]++;
                assert_int_equal(id, sampler_sample(p, l, at));
            }
            sampler_close(p);
        }
    }
    for (uint32_t k = 0; k < KINDS; k++) {
        print_message("temperature %g: %u of 1200 decided\n", (double)kinds[k].temperature, decided[k]);
        if (kinds[k].temperature < 50.0f) assert_true(decided[k] > 0);
    }
    assert_true(asked > 0);
    struct sampling all = with(1.0f), many = with(1.0f);
    many.top_k = (int32_t)BACKEND_CANDIDATES;
    struct sampler *a = sampler_open(V, &all), *b = sampler_open(V, &many);
    assert_false(sampler_takes_candidates(a));
    assert_false(sampler_takes_candidates(b));
    sampler_close(a);
    sampler_close(b);
}

static void impossible_parameters_are_refused(void **state)
{
    (void)state;
    const struct logit_bias outside = {6, 1.0f}, endless = {1, INFINITY};
    struct sampling ok = with(1.0f), s[10];
    for (int i = 0; i < 10; i++) s[i] = ok;
    s[0].temperature = -1.0f;
    s[1].temperature = NAN;
    s[2].top_p = 1.5f;
    s[3].min_p = -0.1f;
    s[4].top_k = -1;
    s[5].repetition_penalty = 0.0f;
    s[6].frequency_penalty = INFINITY;
    s[7].presence_penalty = NAN;
    s[8].bias = &outside;
    s[9].bias = &endless;
    s[8].bias_count = s[9].bias_count = 1;
    struct error err;
    assert_int_equal(sampling_check(&ok, 6, &err), 0);
    for (int i = 0; i < 10; i++) assert_true(sampling_check(&s[i], 6, &err) < 0);
    assert_true(sampling_check(&s[8], 6, &err) < 0);
    assert_string_equal(err.text, "logit bias on token 6; the vocabulary has 6");
}

static void random_numbers_are_uniform(void **state)
{
    (void)state;
    uint32_t count[64] = {0};
    double p[64];
    for (uint64_t i = 0; i < DRAWS; i++) count[(int)(rng_uniform(i / 200, i % 200) * 64.0)]++;
    for (int i = 0; i < 64; i++) p[i] = 1.0 / 64.0;
    expect_distribution(count, p, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions),
        cmocka_unit_test(greedy_takes_the_largest_and_the_lower_of_equals),
        cmocka_unit_test(tiny_temperature_is_greedy),
        cmocka_unit_test(no_number_no_token),
        cmocka_unit_test(same_seed_and_position_same_token),
        cmocka_unit_test(penalties_count_generated_tokens),
        cmocka_unit_test(bias_forbids_and_forces),
        cmocka_unit_test(large_vocabulary_equals_a_full_sort),
        cmocka_unit_test(candidates_decide_as_all_logits_do),
        cmocka_unit_test(impossible_parameters_are_refused),
        cmocka_unit_test(random_numbers_are_uniform),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
