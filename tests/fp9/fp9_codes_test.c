/* fp9_codes_test.c: every code, every conversion, and the packed layout. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/fp9/fp9_random.h"

static double value_of(unsigned code) // straight from the definition
{
    unsigned e = code >> 3 & 31, m = code & 7;
    double v = (code & 0xff) == 0 ? 0.0 : ldexp(1.0 + m / 8.0, (int)e - 15);
    return code >> 8 & 1 ? -v : v;
}

static int valid(unsigned code)
{
    unsigned body = code & 0xff, e = body >> 3;
    return body == 0 || (e >= 1 && e <= 30);
}

static void all_codes(void **state)
{
    (void)state;
    unsigned numbers = 0;
    for (unsigned code = 0; code < 512; code++) {
        assert_int_equal(fp9_check((uint16_t)code), valid(code) ? 0 : -1);
        if (!valid(code)) continue;
        numbers++;
        float x = fp9_to_float((uint16_t)code);
        assert_true((double)x == value_of(code) && !signbit(x) == !(code & 256));
        uint16_t back = 0xffff;
        assert_int_equal(fp9_from_float(x, &back), 0);
        assert_int_equal(back, code);
    }
    assert_int_equal(numbers, 2 * (30 * 8 + 1));
    assert_int_equal(fp9_check(512), -1);
    assert_true(fp9_to_float(0xf7) == FP9_MAX && fp9_to_float(8) == FP9_MIN);
}

static void all_e4m3(void **state)
{
    (void)state;
    for (unsigned b = 0; b < 256; b++) {
        uint16_t code;
        unsigned e = b >> 3 & 15, m = b & 7;
        if ((b & 0x7f) == 0x7f) {
            assert_int_equal(fp9_from_e4m3((uint8_t)b, &code), -1);
            assert_true(isnan(fp9_e4m3_to_float((uint8_t)b)));
            continue;
        }
        double v = e ? ldexp(1.0 + m / 8.0, (int)e - 7) : ldexp(m / 8.0, -6);
        assert_int_equal(fp9_from_e4m3((uint8_t)b, &code), 0);
        assert_int_equal(fp9_check(code), 0);
        assert_true(fabs(value_of(code)) == v && code >> 8 == b >> 7);
        assert_true((double)fp9_e4m3_to_float((uint8_t)b) == (b & 0x80 ? -v : v));
    }
}

/* The nearest number by search over all of them; ties to the even body. */
static unsigned nearest(double magnitude)
{
    unsigned best = 0;
    for (unsigned body = 8; body <= 0xf7; body++) {
        double d = fabs(value_of(body) - magnitude), b = fabs(value_of(best) - magnitude);
        if (d < b || (d == b && body % 2 == 0)) best = body;
    }
    return best;
}

static void check_rounding(float x)
{
    uint16_t code;
    assert_int_equal(fp9_from_float(x, &code), 0);
    double m = fabs((double)x);
    unsigned body = m == 0x1p-15 ? 0 : nearest(m); // the documented tie between 0 and 2^-14
    if (code != ((signbit(x) ? 256u : 0u) | body))
        fail_msg("%a -> %#x, nearest is %#x", (double)x, code, body);
}

static void rounds_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 20000; i++)
        check_rounding(ldexpf(1.0f + fabsf(random_unit(&seed)), (int)random_below(&seed, 36) - 19) *
                       (i & 1 ? -1.0f : 1.0f));
    for (unsigned body = 8; body < 0xf7; body++) { // every midpoint and its neighbours
        float middle = (float)((value_of(body) + value_of(body + 1)) / 2);
        check_rounding(middle);
        check_rounding(nextafterf(middle, 0.0f));
        check_rounding(-nextafterf(middle, INFINITY));
    }
    const float small[] = {0.0f,      -0.0f,           0x1p-149f,       0x1p-126f,       0x1p-15f,
                           -0x1p-15f, 0x1.000002p-15f, 0x1.fffffep-16f, 0x1.fffffep-15f, 0x1p-14f};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) check_rounding(small[i]);
}

static void saturates(void **state)
{
    (void)state;
    const float large[] = {61440.0f, 61441.0f, 63487.0f,        63488.0f,
                           65536.0f, 1e10f,    0x1.fffffep127f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        uint16_t code;
        assert_int_equal(fp9_from_float(large[i], &code), 0);
        assert_int_equal(code, 0xf7);
        assert_int_equal(fp9_from_float(-large[i], &code), 0);
        assert_int_equal(code, 0x1f7);
    }
    uint16_t code;
    assert_int_equal(fp9_from_float(NAN, &code), -1);
    assert_int_equal(fp9_from_float(-NAN, &code), -1);
}

static void layout_round_trip(void **state)
{
    (void)state;
    const size_t shapes[] = {1, 7, 8, 9, 24, 120, 127, 128, 129, 136, 256, 300, 1000, 7168};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        size_t n = shapes[i], bytes = fp9_panel_bytes(FP9_FP9, n);
        assert_int_equal(bytes % 64, 0);
        if (n % 128 == 0) assert_int_equal(bytes, n * 9);
        uint8_t *panel = aligned_bytes(bytes), *tiled = aligned_bytes(bytes);
        uint16_t *codes = calloc((n + 31) / 32 * 256, sizeof *codes); // (strip, lane, k)
        uint64_t seed = n;
        memset(panel, 0, bytes);
        memset(tiled, 0, bytes);
        for (size_t input = 0; input < n; input++)
            for (unsigned lane = 0; lane < 8; lane++) {
                uint16_t code = random_code(&seed);
                codes[input / 32 * 256 + lane * 32 + input % 32] = code;
                fp9_panel_set(panel, n, input, lane, code);
            }
        for (size_t strip = 0; strip < (n + 31) / 32; strip++)
            fp9_strip_put(fp9_panel_strip(FP9_FP9, tiled, strip), n, strip, codes + 256 * strip);
        for (size_t input = 0; input < n; input++)
            for (unsigned lane = 0; lane < 8; lane++)
                assert_int_equal(fp9_panel_get(FP9_FP9, panel, input, lane),
                                 codes[input / 32 * 256 + lane * 32 + input % 32]);
        assert_memory_equal(panel, tiled, bytes);
        free(panel);
        free(tiled);
        free(codes);
    }
}

/* Whole strips out of e4m3 rows, and that a NaN is found. */
static void e4m3_strips(void **state)
{
    (void)state;
    static const size_t shapes[] = {8, 16, 24, 32, 64, 120, 7168};
    struct fp9_e4m3_table table;
    fp9_e4m3_table_make(&table);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        size_t n = shapes[i], stride = n + 5, bytes = fp9_panel_bytes(FP9_FP9, n);
        uint8_t *one = aligned_bytes(bytes), *all = aligned_bytes(bytes),
                *rows = aligned_bytes(8 * stride + 64);
        uint64_t seed = n;
        memset(one, 0, bytes);
        memset(all, 0, bytes);
        for (size_t k = 0; k < 8 * stride; k++) {
            rows[k] = (uint8_t)random_next(&seed);
            if ((rows[k] & 0x7f) == 0x7f) rows[k] ^= 1;
        }
        for (size_t strip = 0; strip < (n + 31) / 32; strip++) {
            uint16_t code[256] = {0};
            for (size_t k = 0; k < 256; k++)
                if (32 * strip + k % 32 < n)
                    assert_int_equal(fp9_from_e4m3(rows[k / 32 * stride + 32 * strip + k % 32], &code[k]), 0);
            fp9_strip_put(fp9_panel_strip(FP9_FP9, one, strip), n, strip, code);
            assert_int_equal(fp9_strip_put_e4m3(FP9_FP9, fp9_panel_strip(FP9_FP9, all, strip), n, strip,
                                                &table, rows, stride),
                             0);
        }
        assert_memory_equal(one, all, bytes);
        rows[7 * stride + n - 1] = 0xff;
        assert_int_equal(fp9_strip_put_e4m3(FP9_FP9, fp9_panel_strip(FP9_FP9, all, (n - 1) / 32), n,
                                            (n - 1) / 32, &table, rows, stride),
                         -1);
        free(one);
        free(all);
        free(rows);
    }
}

/* Every strip has its own bytes: what is put last is read back, whatever lies beside it. */
static void quad_round_trip(void **state)
{
    (void)state;
    for (size_t n = 8; n <= 136; n += 8) {
        size_t bytes = fp9_quad_bytes(FP9_FP9, n), strips = (n + 31) / 32;
        assert_int_equal(bytes % 64, 0);
        if (n % 32 == 0) assert_int_equal(bytes, n * 36);
        uint8_t *quad = aligned_bytes(bytes);
        uint16_t *codes = calloc(4 * strips * 256, sizeof *codes);
        uint64_t seed = n;
        for (size_t i = 0; i < 4 * strips * 256; i++)
            codes[i] = i / 256 % strips * 32 + i % 32 < n ? random_code(&seed) : 0;
        for (size_t i = 0; i < 4 * strips; i++)
            fp9_strip_put(fp9_quad_strip(FP9_FP9, quad, n, i / strips, i % strips), n, i % strips,
                          codes + 256 * i);
        for (size_t i = 0; i < 4 * strips; i++)
            for (size_t k = 0; k < 256; k++)
                if (i % strips * 32 + k % 32 < n)
                    assert_int_equal(fp9_quad_get(FP9_FP9, quad, n, i / strips, i % strips * 32 + k % 32,
                                                  (unsigned)k / 32),
                                     codes[256 * i + k]);
        free(quad);
        free(codes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codes),       cmocka_unit_test(all_e4m3),
        cmocka_unit_test(e4m3_strips),     cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(saturates),       cmocka_unit_test(layout_round_trip),
        cmocka_unit_test(quad_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
