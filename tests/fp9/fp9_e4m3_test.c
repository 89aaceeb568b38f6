/* fp9_e4m3_test.c: the dot over e4m3 bytes gives the bits of fp9's: what bench-duck times is the same
 * product. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "fp9/fp9.h"
#include "tools/bench_e4m3.h"

enum { PANELS = E4M3_PANELS, STRIP = 32 };

static uint32_t below(uint32_t n)
{
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)seed * n >> 32);
}

static void *buffer(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return memset(p, 0, (bytes + 63) / 64 * 64);
}

/* Every finite code comes up: subnormals, both zeros, the largest. */
static void same_bits(size_t inputs)
{
    const struct fp9_kernels *k = fp9_select("avx2");
    const size_t panel = fp9_panel_bytes(inputs), blocks = (inputs + 127) / 128;
    uint8_t *fp9 = buffer(PANELS * panel + 4096), *e4m3 = buffer(PANELS * inputs * 8);
    float *x = buffer(inputs * sizeof *x), *xs = buffer(inputs * sizeof *xs),
          *scales = buffer(blocks * sizeof *scales);
    float *their_scales = buffer(PANELS * blocks * sizeof *scales), y[8 * PANELS], theirs[8 * PANELS];
    for (size_t p = 0; p < PANELS; p++)
        for (size_t s = 0; s < inputs / STRIP; s++) {
            uint8_t code[8 * STRIP];
            uint16_t wide[8 * STRIP];
            for (size_t i = 0; i < 8 * STRIP; i++) {
                code[i] = (uint8_t)(below(2) << 7 | below(0x7f));
                assert_int_equal(fp9_from_e4m3(code[i], &wide[i]), 0);
            }
            fp9_strip_put(fp9_panel_strip(fp9 + p * panel, s), inputs, s, wide);
            e4m3_strip_put(e4m3 + p * inputs * 8 + s * 8 * STRIP, code);
        }
    for (size_t i = 0; i < inputs; i++) x[i] = (float)below(2001) * 0.001f - 1;
    for (size_t b = 0; b < blocks; b++) scales[b] = (float)(1 + below(1000)) * FP9_W_SCALE / 1024;
    for (size_t p = 0; p < PANELS; p++) memcpy(their_scales + p * blocks, scales, blocks * sizeof *scales);
    k->prepare(x, inputs, xs);
    struct fp9_matrix m = {.panels = fp9,
                           .panel_stride = panel,
                           .scales = scales,
                           .scale_stride = blocks,
                           .inputs = inputs,
                           .panel_count = PANELS};
    k->dot(&m, 0, PANELS, &(struct fp9_rows){xs, inputs, NULL, 1}, y, 8 * PANELS);
    for (size_t i = 0; i < inputs; i++) xs[i] *= 256;
    e4m3_dot(e4m3, inputs, their_scales, xs, theirs);
    assert_memory_equal(y, theirs, sizeof y);
    free(fp9), free(e4m3), free(x), free(xs), free(scales), free(their_scales);
}

static void a_dot_over_e4m3_has_the_bits_of_fp9(void **state)
{
    (void)state;
    if (fp9_cpu_missing()) skip();
    same_bits(32);
    same_bits(1056); // a last block that is not full
    same_bits(7168);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_dot_over_e4m3_has_the_bits_of_fp9)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
