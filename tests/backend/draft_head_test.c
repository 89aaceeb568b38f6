/* draft_head_test.c: the draft head finds the token that exact logits like best, or one that is nearly as
 * good. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "host/backend/cpu/draft_head.h"
#include "tests/backend/random.h"

static float uniform(uint64_t *seed)
{
    return (float)(int32_t)(uint32_t)random_word(seed) * 0x1p-31f;
}

static float logit(const float *w, const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)w[i] * (double)x[i];
    return (float)sum;
}

static struct weight matrix(const float *w, uint32_t tokens, size_t inputs)
{
    return (struct weight){
        .dtype = DTYPE_F32, .rows = tokens, .cols = inputs, .data = (const uint8_t *)w, .name = "head"};
}

/* Random rows are alike to within noise, so the best two are often close: most drafts are the best token, and
 * no other lies further behind than rounding explains. */
static void finds_the_best(void **state)
{
    (void)state;
    static const struct {
        uint32_t tokens;
        size_t inputs;
        unsigned threads;
    } shape[] = {{1, 8, 1}, {31, 40, 1}, {33, 64, 2}, {600, 256, 1}, {1000, 264, 3}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        uint32_t tokens = shape[k].tokens, best = 0, searches = 50;
        size_t inputs = shape[k].inputs;
        uint64_t seed = k + 1;
        float *w = malloc(tokens * inputs * sizeof *w), *x = malloc(inputs * sizeof *x);
        for (size_t i = 0; i < tokens * inputs; i++) w[i] = uniform(&seed);
        const struct weight exact = matrix(w, tokens, inputs);
        struct draft_head d;
        struct pool *pool;
        struct error err;
        assert_int_equal(pool_open(&pool, shape[k].threads, &err), 0);
        assert_int_equal(draft_head_load(&d, &exact, pool, &err), 0);
        for (uint32_t s = 0; s < searches; s++) {
            for (size_t i = 0; i < inputs; i++) x[i] = uniform(&seed);
            float most = -INFINITY;
            for (uint32_t t = 0; t < tokens; t++) most = fmaxf(most, logit(w + t * inputs, x, inputs));
            int32_t id = draft_head_best(&d, x, pool);
            assert_in_range(id, 0, tokens - 1);
            float got = logit(w + (uint32_t)id * inputs, x, inputs);
            best += got == most;
            // a logit's spread is sqrt(inputs) / 3, what 4 bits take away a twelfth of it
            if (!(most - got < 0.1f * sqrtf((float)inputs))) fail_msg("%g of %g", (double)got, (double)most);
        }
        if (best < 9 * searches / 10)
            fail_msg("%u tokens: the best one %u of %u times", tokens, best, searches);
        draft_head_free(&d);
        pool_close(pool);
        free(w);
        free(x);
    }
}

/* Equal rows: the lowest token, wherever tasks and lanes lie. Nothing but zeros: token 0. */
static void lowest_of_equals(void **state)
{
    (void)state;
    enum { TOKENS = 200, INPUTS = 16 };
    static const unsigned threads[] = {1, 2, 5};
    float w[TOKENS * INPUTS] = {0}, x[INPUTS];
    for (size_t i = 0; i < INPUTS; i++) x[i] = 1.0f + (float)i;
    for (size_t k = 0; k < 3; k++) {
        struct pool *pool;
        struct error err;
        assert_int_equal(pool_open(&pool, threads[k], &err), 0);
        for (uint32_t first = 0; first < TOKENS; first += 9) {
            memset(w, 0, sizeof w);
            for (uint32_t t = first; t < TOKENS; t += 8) w[t * INPUTS + 3] = 1.0f;
            const struct weight exact = matrix(w, TOKENS, INPUTS);
            struct draft_head d;
            assert_int_equal(draft_head_load(&d, &exact, pool, &err), 0);
            assert_int_equal(draft_head_best(&d, x, pool), first);
            draft_head_free(&d);
        }
        memset(w, 0, sizeof w);
        const struct weight exact = matrix(w, TOKENS, INPUTS);
        struct draft_head d;
        assert_int_equal(draft_head_load(&d, &exact, pool, &err), 0);
        assert_int_equal(draft_head_best(&d, x, pool), 0);
        draft_head_free(&d);
        pool_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_best),
        cmocka_unit_test(lowest_of_equals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
