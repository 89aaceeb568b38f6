/* pieces_test.c: norms, rotations and the router against double precision and brute force. */
#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "host/backend/cpu/norm.h"
#include "host/backend/cpu/router.h"
#include "host/backend/rope.h"
#include "tests/backend/random.h"

static void close_to(float a, double b, double tolerance)
{
    if (!(fabs((double)a - b) <= tolerance)) fail_msg("%.9g, expected %.9g", (double)a, b);
}

/* ---- norms ---- */

static void norms_are_those_of_double_precision(void **state)
{
    (void)state;
    uint64_t seed = 3;
    const size_t sizes[] = {8, 96, 288, 7168};
    for (size_t k = 0; k < 4; k++) {
        size_t n = sizes[k];
        float *x = random_floats(&seed, n), *w = random_floats(&seed, n), *b = random_floats(&seed, n),
              *y = random_floats(&seed, n);
        double ss = 0, mean = 0, var = 0;
        for (size_t i = 0; i < n; i++) {
            ss += (double)x[i] * (double)x[i] / (double)n;
            mean += (double)x[i] / (double)n;
        }
        for (size_t i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
        assert_true(norm_rms(x, w, 1e-6f, n, y));
        for (size_t i = 0; i < n; i++) close_to(y[i], (double)x[i] / sqrt(ss + 1e-6) * (double)w[i], 2e-6);
        assert_true(norm_layer(x, w, b, 1e-6f, n, y));
        for (size_t i = 0; i < n; i++)
            close_to(y[i], ((double)x[i] - mean) / sqrt(var + 1e-6) * (double)w[i] + (double)b[i], 2e-6);
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (size_t i = 0; i < 3; i++) {
            x[n - 1 - i] = bad[i];
            assert_false(norm_rms(x, w, 1e-6f, n, y));
            assert_false(norm_layer(x, w, b, 1e-6f, n, y));
            x[n - 1 - i] = 0;
        }
        free(x), free(w), free(b), free(y);
    }
}

/* ---- rotations ---- */

static const struct model_config published = {.qk_nope_dim = 128,
                                              .qk_rope_dim = 64,
                                              .rope_theta = 10000,
                                              .yarn = true,
                                              .yarn_factor = 40,
                                              .yarn_beta_fast = 32,
                                              .yarn_beta_slow = 1,
                                              .yarn_mscale = 1,
                                              .yarn_mscale_all_dim = 1,
                                              .yarn_original_positions = 4096};

static void yarn_gives_the_published_frequencies(void **state)
{
    (void)state;
    struct rope r;
    rope_init(&r, &published);
    assert_int_equal(r.pairs, 32);
    assert_float_equal(r.amplitude, 1.0f, 0);
    close_to(rope_softmax_scale(&published), 0.1352338, 1e-7);
    // dimensions of the two betas: 64 ln(4096 / 2 pi b) / (2 ln 10000) = 10.5 and 22.5, so 10 and 23
    for (size_t i = 0; i < 32; i++) {
        double plain = pow(10000.0, -(double)i / 32.0), ramp = fmin(fmax(((double)i - 10) / 13, 0), 1);
        close_to(r.inverse_frequency[i], plain * (1 - ramp) + plain / 40 * ramp, 2e-7 * plain);
    }
    float cosines[32], sines[32];
    rope_position(&r, 100000, cosines, sines);
    for (size_t i = 0; i < 32; i++) {
        double angle = (double)(100000.0f * r.inverse_frequency[i]);
        close_to(cosines[i], cos(angle), 1e-7);
        close_to(sines[i], sin(angle), 1e-7);
    }
    struct model_config plain = published;
    plain.yarn = false;
    rope_init(&r, &plain);
    close_to(r.inverse_frequency[31], pow(10000.0, -31.0 / 32), 1e-9);
    close_to(rope_softmax_scale(&plain), 1 / sqrt(192.0), 1e-8);
    struct model_config other = published;
    other.yarn_mscale_all_dim = 0; // then mscale goes to the amplitude and none into the softmax
    rope_init(&r, &other);
    close_to(r.amplitude, 0.1 * log(40.0) + 1, 1e-6);
    close_to(rope_softmax_scale(&other), 1 / sqrt(192.0), 1e-8);
}

static void both_rotations_turn_pairs(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (size_t pairs = 4; pairs <= 32; pairs += 4) {
        float *x = random_floats(&seed, 2 * pairs), *c = random_floats(&seed, pairs),
              *s = random_floats(&seed, pairs);
        float *y = random_floats(&seed, 2 * pairs), *half = random_floats(&seed, 2 * pairs);
        memcpy(half, x, 2 * pairs * sizeof(float));
        rope_interleaved(x, c, s, pairs, y);
        rope_half_split(half, c, s, pairs);
        for (size_t i = 0; i < pairs; i++) {
            double cc = (double)c[i], ss = (double)s[i], a = (double)x[2 * i], b = (double)x[2 * i + 1];
            close_to(y[2 * i], a * cc - b * ss, 2e-7);
            close_to(y[2 * i + 1], b * cc + a * ss, 2e-7);
            a = (double)x[i], b = (double)x[pairs + i];
            close_to(half[i], a * cc - b * ss, 2e-7);
            close_to(half[pairs + i], b * cc + a * ss, 2e-7);
        }
        rope_interleaved(x, c, s, pairs, x); // in place
        assert_memory_equal(x, y, 2 * pairs * sizeof(float));
        free(x), free(c), free(s), free(y), free(half);
    }
}

/* ---- router ---- */

struct router_case {
    const char *name;
    uint32_t experts, groups, top_groups, top_k;
    bool norm;
    unsigned levels; // distinct logits: few levels make ties
};

/* Straight from the definition: sort (score descending, id ascending). */
static void choose(const struct model_config *c, const float *logits, const float *bias, int32_t *ids,
                   double *weights)
{
    double biased[256], group[64];
    bool taken[256] = {false}, kept[64] = {false};
    uint32_t n = c->experts / c->groups;
    // fp32 like the router itself, so that ties are the same ties
    for (uint32_t i = 0; i < c->experts; i++) {
        float pad[8] = {logits[i]}, b[8] = {bias[i]}, scratch[16], w[1];
        int32_t id[1];
        struct model_config one = {.experts = 1, .groups = 1, .top_groups = 1, .top_k = 1, .routed_scale = 1};
        router_choose(&one, pad, b, scratch, id, w);
        biased[i] = (double)(w[0] + bias[i]);
    }
    for (uint32_t g = 0; g < c->groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * n; i < (g + 1) * n; i++)
            if (biased[i] > first)
                second = first, first = biased[i];
            else if (biased[i] > second)
                second = biased[i];
        group[g] = n > 1 ? (double)((float)first + (float)second) : first;
    }
    for (uint32_t k = 0; k < c->top_groups; k++) {
        int best = -1;
        for (uint32_t g = 0; g < c->groups; g++)
            if (!kept[g] && (best < 0 || group[g] > group[best])) best = (int)g;
        kept[best] = true;
    }
    for (uint32_t k = 0; k < c->top_k; k++) {
        int best = -1;
        for (uint32_t i = 0; i < c->experts; i++)
            if (kept[i / n] && !taken[i] && (best < 0 || biased[i] > biased[best])) best = (int)i;
        taken[best] = true;
    }
    double sum = 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < c->experts; i++) {
        if (!taken[i]) continue;
        ids[k] = (int32_t)i;
        weights[k] = 1 / (1 + exp(-(double)logits[i]));
        sum += weights[k++];
    }
    for (k = 0; k < c->top_k; k++) weights[k] *= (double)c->routed_scale / (c->norm_topk_prob ? sum : 1);
}

static void the_router_chooses_as_the_reference(void **state)
{
    const struct router_case *rc = *state;
    struct model_config c = {.experts = rc->experts,
                             .groups = rc->groups,
                             .top_groups = rc->top_groups,
                             .top_k = rc->top_k,
                             .norm_topk_prob = rc->norm,
                             .routed_scale = 2.5f};
    uint64_t seed = 11;
    for (int round = 0; round < 500; round++) {
        float logits[256] = {0}, copy[256], bias[256], biased[320], weights[16];
        int32_t ids[16], expected_ids[16];
        double expected[16];
        for (uint32_t i = 0; i < rc->experts; i++) {
            logits[i] = (float)((int)(random_word(&seed) % rc->levels) - (int)(rc->levels / 2)) * 8.0f /
                        (float)rc->levels;
            bias[i] = rc->levels > 100 ? random_float(&seed) * 0.1f : (float)(random_word(&seed) % 2) * 0.25f;
        }
        memcpy(copy, logits, sizeof copy);
        assert_true(router_choose(&c, logits, bias, biased, ids, weights));
        choose(&c, copy, bias, expected_ids, expected);
        for (uint32_t k = 0; k < c.top_k; k++) {
            assert_int_equal(ids[k], expected_ids[k]);
            close_to(weights[k], expected[k], 1e-6);
        }
    }
    float logits[256] = {[2] = NAN}, bias[256] = {0}, biased[320], weights[16];
    int32_t ids[16];
    assert_false(router_choose(&c, logits, bias, biased, ids, weights));
}

static struct router_case router_cases[] = {
    {"router as published", 256, 8, 4, 8, true, 100000},
    {"router, ties everywhere", 256, 8, 4, 8, true, 2},
    {"router, one group", 16, 1, 1, 4, true, 1000},
    {"router, 12 experts", 12, 4, 2, 3, true, 5},
    {"router, weights as they are", 32, 4, 2, 4, false, 1000},
    {"router, all groups kept", 32, 4, 4, 5, true, 3},
};

int main(void)
{
    enum { CASES = sizeof router_cases / sizeof *router_cases };
    struct CMUnitTest tests[CASES + 3] = {[CASES] = cmocka_unit_test(norms_are_those_of_double_precision),
                                          [CASES + 1] =
                                              cmocka_unit_test(yarn_gives_the_published_frequencies),
                                          [CASES + 2] = cmocka_unit_test(both_rotations_turn_pairs)};
    for (size_t i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){router_cases[i].name, the_router_chooses_as_the_reference, NULL, NULL,
                                       &router_cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
