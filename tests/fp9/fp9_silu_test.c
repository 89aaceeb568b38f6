/* fp9_silu_test.c: the SiLU and the expert's elementwise part: accuracy, extremes, the same bits everywhere.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/fp9/fp9_random.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void check_accuracy(float x)
{
    double exact = (double)x / (1.0 + exp(-(double)x)), got = (double)fp9_silu(x);
    if (fabs(got - exact) > 0x1p-21 * fabs(exact))
        fail_msg("silu(%a) = %a, exactly %a", (double)x, got, exact);
}

static void dense_sweep(void **state)
{
    (void)state;
    for (uint32_t bits = 0x21800000u; bits < 0x7f000000u; bits += 4099) { // 2^-60 .. 2^127
        float x = from_bits(bits);
        check_accuracy(x);
        if (x <= 87.0f) check_accuracy(-x);
    }
}

static void extremes(void **state)
{
    (void)state;
    const float to_minus_zero[] = {-88.0f, -1000.0f, -0x1.fffffep127f, -INFINITY};
    for (size_t i = 0; i < 4; i++) {
        float y = fp9_silu(to_minus_zero[i]);
        assert_true(y == 0.0f && signbit(y));
    }
    const float tiny[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 0x1.fffffep-61f};
    for (size_t i = 0; i < 5; i++) {
        float y = fp9_silu(tiny[i]);
        assert_true(y == 0.0f && !signbit(y));
    }
    assert_true(fp9_silu(INFINITY) == INFINITY && isnan(fp9_silu(NAN)) && isnan(fp9_silu(-NAN)));
}

static void assert_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("element %zu: %a and %a", i, (double)a[i], (double)b[i]);
}

static void same_bits(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float g[N], u[N], a[N], b[N];
    uint64_t seed = 3;
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < N; i++) {
            uint64_t r = random_next(&seed); // ordinary values in even rounds, any bits in odd ones
            g[i] = round & 1 ? from_bits((uint32_t)r) : 20.0f * random_unit(&seed);
            u[i] = round & 1 ? from_bits((uint32_t)(r >> 32)) : 20.0f * random_unit(&seed);
        }
        float weight = round % 8 == 7 ? 0x1p-130f : random_unit(&seed);
        fp9_scalar.expert(g, u, weight, N, a);
        fp9_avx2.expert(g, u, weight, N, b);
        assert_same(a, b, N);
        for (size_t i = 0; i < N && !(round & 1); i++) {
            double exact = (double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i] * (double)weight * 0x1p96;
            assert_true(fabs((double)a[i] - exact) <= 1e-6 * fabs(exact));
        }
        fp9_scalar.prepare(g, N - 3, a);
        fp9_avx2.prepare(g, N - 3, b);
        assert_same(a, b, N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_sweep),
        cmocka_unit_test(extremes),
        cmocka_unit_test(same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
