/* bench_weights.c: see bench_weights.h. */
#include "tools/bench_weights.h"

#include <math.h>

#include "fp9/fp9.h"

static uint8_t nearest(float x)
{
    uint8_t code = 0;
    float best = INFINITY;
    for (unsigned c = 0; c < 0x7f; c++) {
        float off = fabsf(fp9_e4m3_to_float((uint8_t)c) - fabsf(x));
        if (off < best) code = (uint8_t)(c | (x < 0 ? 0x80 : 0));
        best = fminf(best, off);
    }
    return code;
}

void bench_weights(uint8_t *out, size_t n, int rare)
{
    enum { MADE = 1 << 17, SUM = 12 }; // the others repeat them; twelve uniform numbers make a normal one
    uint32_t seed = 1;
    for (size_t i = 0; i < n && i < MADE; i++) {
        float x = -SUM / 2.0f;
        for (int k = 0; k < SUM; k++) x += (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
        out[i] = rare ? (uint8_t)(x < 0 ? 0x81 : 1) : nearest(112 * x);
    }
    for (size_t i = MADE; i < n; i++) out[i] = out[i - MADE];
}
