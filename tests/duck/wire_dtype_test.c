// wire_dtype_test.c: rounding to bf16 and scaled e4m3 against the nearest representable number.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "duck/wire_dtype.h"

static void bf16_keeps_its_own_numbers(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 65536; u++) {
        float x = wire_bf16_to_float((uint16_t)u);
        if (isnan(x)) {
            assert_true(isnan(wire_bf16_to_float(wire_bf16(x))));
        } else {
            assert_int_equal(wire_bf16(x), u);
        }
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t u = 0x0080; u < 0x7f7f; u += 3) {
        double low = wire_bf16_to_float((uint16_t)u), high = wire_bf16_to_float((uint16_t)(u + 1));
        float middle = (float)((low + high) / 2); // exact
        assert_int_equal(wire_bf16(middle), u % 2 ? u + 1 : u);
        assert_int_equal(wire_bf16(nextafterf(middle, INFINITY)), u + 1);
        assert_int_equal(wire_bf16(nextafterf(middle, -INFINITY)), u);
        assert_int_equal(wire_bf16(-middle), (u % 2 ? u + 1 : u) | 0x8000);
    }
    assert_int_equal(wire_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(wire_bf16(-INFINITY), 0xff80);
}

static void e4m3_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 0x7e; u++) {
        float low = fp9_e4m3_to_float((uint8_t)u), high = fp9_e4m3_to_float((uint8_t)(u + 1));
        float middle = (low + high) / 2; // exact
        assert_int_equal(wire_e4m3(low), u);
        assert_int_equal(wire_e4m3(-high), (u + 1) | 0x80);
        assert_int_equal(wire_e4m3(middle), u % 2 ? u + 1 : u);
        assert_int_equal(wire_e4m3(nextafterf(middle, INFINITY)), u + 1);
        assert_int_equal(wire_e4m3(nextafterf(middle, -INFINITY)), u);
        assert_int_equal(wire_e4m3(-middle), (u % 2 ? u + 1 : u) | 0x80);
    }
    assert_int_equal(wire_e4m3(449), 0x7e);
    assert_int_equal(wire_e4m3(1e30f), 0x7e);
    assert_int_equal(wire_e4m3(-INFINITY), 0xfe);
    assert_int_equal(wire_e4m3(NAN) & 0x7f, 0x7f);
}

static void fp8_runs_have_their_own_scale(void **state)
{
    (void)state;
    float x[300], y[300];
    for (int i = 0; i < 300; i++) x[i] = (float)(i % 17 - 8) * (i < 128 ? 1.0f : i < 256 ? 1e6f : 1e-6f);
    x[3] = -112.0f; // scale of the first run: 0.25
    wire_round(WIRE_FP8, x, 300, y);
    assert_true(y[3] == -112.0f);
    for (int i = 0; i < 300; i++) {
        float largest = i < 128 ? 112.0f : i < 256 ? 8e6f : 8e-6f;
        // 3 bits of mantissa, or half a step of the subnormals
        float most = fmaxf(fabsf(x[i]) / 16, largest / 448 / 1024) * 1.0001f;
        assert_true(fabsf(y[i] - x[i]) <= most);
    }
    float again[300];
    wire_round(WIRE_FP8, y, 300, again); // 448 x (amax / 448) may not be amax: near, not equal
    for (int i = 0; i < 300; i++) assert_true(fabsf(again[i] - y[i]) <= fabsf(y[i]) * 1e-6f);
}

static void fp8_extremes(void **state)
{
    (void)state;
    float x[4] = {0x1p-70f, -0x1p-80f, 0, 1e-39f}, y[4];
    wire_round(WIRE_FP8, x, 4, y);
    for (int i = 0; i < 4; i++) assert_true(y[i] == 0);
    float big[2] = {INFINITY, -3e38f};
    wire_round(WIRE_FP8, big, 2, y);
    assert_true(isfinite(y[0]) && y[0] > 3.3e38f && isfinite(y[1]) && y[1] < -2.8e38f);
    float nan[2] = {NAN, 5};
    wire_round(WIRE_FP8, nan, 2, y);
    assert_true(isnan(y[0]) && y[1] == 5);
    nan[1] = 0;
    wire_round(WIRE_FP8, nan, 2, y);
    assert_true(isnan(y[0]) && y[1] == 0);
}

static void in_place_and_f32(void **state)
{
    (void)state;
    float x[200], y[200], z[200];
    for (int i = 0; i < 200; i++) x[i] = sinf((float)i) * 3;
    wire_round(WIRE_F32, x, 200, y);
    assert_memory_equal(x, y, sizeof x);
    for (int d = WIRE_F32; d <= WIRE_FP8; d++) {
        wire_round((enum wire_dtype)d, x, 200, y);
        memcpy(z, x, sizeof z);
        wire_round((enum wire_dtype)d, z, 200, z);
        assert_memory_equal(y, z, sizeof y);
    }
}

static void packing_and_unpacking_is_rounding(void **state)
{
    (void)state;
    enum { TOKENS = 3, N = 200 };
    static float x[TOKENS * N], rounded[TOKENS * N], back[TOKENS * N];
    static uint8_t packed[TOKENS * N * 4 + 1];
    for (int i = 0; i < TOKENS * N; i++)
        x[i] = (float)((i * 7919) % 2003 - 1000) * powf(2.0f, (float)(i % 40 - 20));
    memset(x + N, 0, 128 * sizeof *x); // a run of zeros
    x[5] = NAN;
    for (enum wire_dtype d = WIRE_F32; d < WIRE_DTYPES; d++) {
        assert_true(wire_packed_bytes(d, TOKENS, N) < sizeof packed);
        wire_pack(d, x, TOKENS, N, packed + 1); // unaligned
        wire_unpack(d, packed + 1, TOKENS, N, back);
        for (int t = 0; t < TOKENS; t++) wire_round(d, x + t * N, N, rounded + t * N);
        for (int i = 0; i < TOKENS * N; i++)
            assert_true(back[i] == rounded[i] || (isnan(back[i]) && isnan(rounded[i])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_keeps_its_own_numbers),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(e4m3_rounds_to_nearest_even),
        cmocka_unit_test(fp8_runs_have_their_own_scale),
        cmocka_unit_test(fp8_extremes),
        cmocka_unit_test(in_place_and_f32),
        cmocka_unit_test(packing_and_unpacking_is_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
