/* bench_e4m3.c: see bench_e4m3.h. Compiled with -mavx2 -mfma. */
#include "tools/bench_e4m3.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "fp9/fp9.h"

enum { STRIP = 32, STRIP_BYTES = 256, BLOCK = 128, AHEAD = 2048 };

/* Vector v of a strip: inputs 4v and 4v + 1 in the upper bytes of odd and even lanes, 4v + 2 and 4v + 3 in
 * the lower ones. */
void e4m3_strip_put(uint8_t *at, const uint8_t code[256])
{
    for (unsigned input = 0; input < STRIP; input++)
        for (unsigned lane = 0; lane < 8; lane++)
            at[input / 4 * 32 + lane * 4 + (input % 2 ? 0 : 2) + (input % 4 < 2)] = code[32 * lane + input];
}

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

void e4m3_fill(uint8_t *at, size_t bytes)
{
    enum { STRIPS = 512, SUM = 12 }; // twelve uniform numbers make a normal one
    uint32_t seed = 1;
    for (size_t s = 0; s < bytes / STRIP_BYTES; s++) {
        uint8_t code[STRIP_BYTES];
        for (unsigned i = 0; s < STRIPS && i < STRIP_BYTES; i++) {
            float x = -SUM / 2.0f;
            for (int k = 0; k < SUM; k++)
                x += (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
            code[i] = nearest(112 * x);
        }
        if (s < STRIPS)
            e4m3_strip_put(at + s * STRIP_BYTES, code);
        else
            memcpy(at + s * STRIP_BYTES, at + (s - STRIPS) * STRIP_BYTES, STRIP_BYTES);
    }
}

static inline __attribute__((always_inline)) void strip(const uint8_t *const at[], size_t offset,
                                                        const float *x, size_t ahead, __m256 acc[])
{
    const __m256i mask = _mm256_set1_epi32((int)0x87f00000);
#pragma GCC unroll 8
    for (unsigned v = 0; v < STRIP_BYTES / 32; v++) {
        __m256i both[E4M3_PANELS], lanes[E4M3_PANELS];
#pragma GCC unroll 4
        for (unsigned p = 0; p < E4M3_PANELS; p++) {
            const uint8_t *from = at[p] + offset + (size_t)v * 32;
            both[p] = _mm256_load_si256((const __m256i *)from);
            if (v % 2 == 0) _mm_prefetch((const char *)from + ahead, _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (unsigned k = 0; k < 4; k++) {
            __m256 xk = _mm256_broadcast_ss(x + 4 * v + k);
#pragma GCC unroll 4
            for (unsigned p = 0; p < E4M3_PANELS; p++) {
                if (k % 2 == 0) lanes[p] = _mm256_srai_epi16(k ? _mm256_slli_epi16(both[p], 8) : both[p], 4);
                __m256i w = k % 2 ? _mm256_slli_epi32(lanes[p], 16) : lanes[p];
                w = _mm256_and_si256(w, mask);
                acc[p] = _mm256_fmadd_ps(_mm256_castsi256_ps(w), xk, acc[p]);
            }
        }
    }
}

void e4m3_dot(const uint8_t *panels, size_t inputs, const float *scales, const float *x, float *y)
{
    const uint8_t *at[E4M3_PANELS];
    __m256 sum[E4M3_PANELS], acc[E4M3_PANELS];
    for (unsigned p = 0; p < E4M3_PANELS; p++) {
        at[p] = panels + p * inputs * 8;
        sum[p] = _mm256_setzero_ps();
    }
    for (size_t first = 0; first < inputs; first += BLOCK) {
#pragma GCC unroll 4
        for (unsigned p = 0; p < E4M3_PANELS; p++) acc[p] = _mm256_setzero_ps();
        // From a panel's end into the one of the same place in the next call's, which follows.
        size_t ahead =
            (first + BLOCK) * 8 + AHEAD <= inputs * 8 ? AHEAD : AHEAD + (E4M3_PANELS - 1) * inputs * 8;
        for (size_t i = first; i < first + BLOCK && i < inputs; i += STRIP)
            strip(at, i * 8, x + i, ahead, acc);
#pragma GCC unroll 4
        for (unsigned p = 0; p < E4M3_PANELS; p++) {
            __m256 scale = _mm256_broadcast_ss(scales + p * ((inputs + BLOCK - 1) / BLOCK) + first / BLOCK);
            sum[p] = _mm256_fmadd_ps(scale, acc[p], sum[p]);
        }
    }
    for (unsigned p = 0; p < E4M3_PANELS; p++) _mm256_storeu_ps(y + 8 * p, sum[p]);
}
