/* synthetic_flock_test.c: chosen experts become as many different ones of those that are held. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "host/engine/synthetic_flock.h"

enum { EXPERTS = 256, TOP_K = 8, TOKENS = 40 };

static uint32_t state_of_random = 7;
static uint32_t below(uint32_t n)
{
    state_of_random = state_of_random * 1664525u + 1013904223u;
    return (state_of_random >> 8) % n;
}

/* Ascending, no two alike in a row; an expert's weight is its number. */
static void choose(int32_t *ids, float *weights, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++) {
        bool in[EXPERTS] = {false};
        for (uint32_t k = 0; k < TOP_K;) {
            uint32_t id = below(EXPERTS);
            k += !in[id];
            in[id] = true;
        }
        for (uint32_t id = 0; id < EXPERTS; id++)
            if (in[id]) {
                *ids++ = (int32_t)id;
                *weights++ = (float)id;
            }
    }
}

static uint32_t distinct(const int32_t *ids, uint32_t n)
{
    bool seen[EXPERTS] = {false};
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        count += !seen[ids[i]];
        seen[ids[i]] = true;
    }
    return count;
}

static void rows_keep_their_number_of_experts(void **state)
{
    (void)state;
    static const uint32_t helds[] = {8, 16, 64, 255, 256};
    for (size_t h = 0; h < sizeof helds / sizeof helds[0]; h++)
        for (uint32_t tokens = 1; tokens <= TOKENS; tokens++) {
            int32_t real[TOKENS * TOP_K], ids[TOKENS * TOP_K], room[2 * EXPERTS];
            float weights[TOKENS * TOP_K];
            uint32_t n = tokens * TOP_K, held = helds[h];
            choose(real, weights, tokens);
            memcpy(ids, real, sizeof real);
            uint32_t before = distinct(real, n);
            synthetic_flock_choose(ids, weights, tokens, TOP_K, EXPERTS, held, tokens, room);
            for (uint32_t t = 0; t < tokens; t++) {
                float sum = 0, want = 0;
                for (uint32_t k = 0; k < TOP_K; k++) {
                    const uint32_t i = t * TOP_K + k;
                    assert_in_range(ids[i], 0, held - 1);
                    if (k > 0) assert_true(ids[i] > ids[i - 1]);
                    sum += weights[i];
                    want += (float)real[i];
                }
                assert_true(sum == want); // weights moved, none was lost
            }
            assert_int_equal(distinct(ids, n), before < held ? before : held);
        }
}

static void shapes_keep_what_a_step_reads(void **state)
{
    (void)state;
    const struct model_config c = {.layers = 61,
                                   .mtp_layers = 1,
                                   .first_dense_layers = 3,
                                   .experts = 256,
                                   .top_k = 8,
                                   .expert_width = 2048};
    struct model_config held = synthetic_flock_config(&c, 1, 32);
    assert_int_equal(held.first_dense_layers, 1);
    assert_int_equal(held.layers, 2);
    assert_int_equal(held.experts, 32);
    assert_int_equal(held.expert_width, 2048);
    held = synthetic_flock_config(&c, 61, 256);
    assert_int_equal(held.first_dense_layers, 3);
    assert_int_equal(held.layers, 61);
    assert_int_equal(held.mtp_layers, 0);

    struct model m = {.config = c, .distinct_layers = 2};
    static const uint32_t whose[][2] = {{0, 0}, {1, 1}, {2, 0}, {3, 3}, {4, 4}, {5, 3}, {60, 4}, {61, 3}};
    for (size_t i = 0; i < sizeof whose / sizeof whose[0]; i++)
        assert_int_equal(model_weights_layer(&m, whose[i][0]), whose[i][1]);
    m.distinct_layers = 0;
    assert_int_equal(model_weights_layer(&m, 37), 37);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_keep_their_number_of_experts),
        cmocka_unit_test(shapes_keep_what_a_step_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
