/* fp9_avx2_tile.h: packed weights into fp32 registers, shared by the AVX2 files of fp9/.
 *
 * Lanes are outputs. A word vector holds four inputs of eight outputs; each becomes raw(w) of fp9.h by at
 * most one move and one mask, sign included (layout: fp9.h). S for the next word is S added to itself, which
 * runs on more ports than a shift. 9 operations for 4 x 8 weights. */
#ifndef FP9_FP9_AVX2_TILE_H
#define FP9_FP9_AVX2_TILE_H

#include <immintrin.h>

#include "fp9/fp9_layout.h"

#define FP9__INLINE static inline __attribute__((always_inline))
/* Before a loop of constant length over registers: unrolled late, their array would stay in memory. */
#define FP9__UNROLL _Pragma("GCC unroll 16")

FP9__INLINE __m256i fp9__load(const uint8_t *vector)
{
    return _mm256_load_si256((const __m256i *)vector);
}

/* Input k (0..3) of a word; `mixed` is the word xor-ed with its S. */
FP9__INLINE __m256 fp9__weight(__m256i word, __m256i mixed, unsigned k)
{
    const __m256i mask = _mm256_set1_epi32((int)0x8ff00000);
    const __m256i rotate = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0,
                                            5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12);
    __m256i w = k == 0   ? word
                : k == 1 ? _mm256_slli_epi32(word, 16)
                : k == 2 ? _mm256_slli_epi32(mixed, 8)
                         : _mm256_shuffle_epi8(mixed, rotate);
    return _mm256_castsi256_ps(_mm256_and_si256(w, mask));
}

/* All eight inputs of tile t of a strip, 8 floats each, `step` floats apart. */
FP9__INLINE void fp9__tile(const uint8_t *strip, size_t t, float *w, size_t step)
{
    __m256i s = _mm256_sll_epi32(fp9__load(strip), _mm_cvtsi32_si128((int)(2 * t)));
    const uint8_t *words = strip + FP9__VECTOR + t * FP9__TILE_BYTES;
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        __m256i word = fp9__load(words + half * FP9__VECTOR), mixed = _mm256_xor_si256(word, s);
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++)
            _mm256_store_ps(w + (4 * half + k) * step, fp9__weight(word, mixed, k));
        s = _mm256_add_epi32(s, s);
    }
}

/* ---- several tokens: weights are made on the way to the products ----
 *
 * Two panels x up to six tokens are twelve chains, and the registers that are left make one weight a panel.
 * Making it again for every six tokens costs four operations on ports that multiply-adds leave idle; storing
 * decoded weights first would cost a store and two loads each, and its time is not hidden. */
enum { FP9__TOKENS = 6 };

/* acc += tile t (of the strip) of two panels, `slot` bytes apart, times eight inputs of each token. */
FP9__INLINE void fp9__tile_products(const uint8_t *strip, size_t slot, size_t t, const float *const x[],
                                    size_t at, unsigned tokens, __m256 acc[2][FP9__TOKENS])
{
    const __m256i mask = _mm256_set1_epi32((int)0x8ff00000);
    const __m256i rotate = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0,
                                            5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12);
    const uint8_t *words = strip + FP9__VECTOR + t * FP9__TILE_BYTES;
    __m256i mixed[2][2];
    FP9__UNROLL
    for (unsigned p = 0; p < 2; p++) {
        __m256i s = _mm256_sll_epi32(fp9__load(strip + p * slot), _mm_cvtsi32_si128((int)(2 * t)));
        mixed[p][0] = _mm256_xor_si256(s, fp9__load(words + p * slot));
        mixed[p][1] = _mm256_xor_si256(_mm256_add_epi32(s, s), fp9__load(words + p * slot + FP9__VECTOR));
    }
    FP9__UNROLL
    for (unsigned k = 0; k < 8; k++) {
        /* Nothing is loaded before its turn: all registers are taken. */
        __asm__ volatile("" : : "r"(mixed) : "memory");
        __m256 w[2];
        FP9__UNROLL
        for (unsigned p = 0; p < 2; p++) {
            const uint8_t *word = words + p * slot + k / 4 * FP9__VECTOR;
            __m256i bits = k % 4 < 2 ? fp9__load(word) : mixed[p][k / 4];
            bits = k % 4 == 1   ? _mm256_slli_epi32(bits, 16)
                   : k % 4 == 2 ? _mm256_slli_epi32(bits, 8)
                   : k % 4 == 3 ? _mm256_shuffle_epi8(bits, rotate)
                                : bits;
            w[p] = _mm256_castsi256_ps(_mm256_and_si256(bits, mask));
        }
        FP9__UNROLL
        for (unsigned q = 0; q < tokens; q++) {
            __m256 xk = _mm256_broadcast_ss(x[q] + at + k);
            FP9__UNROLL
            for (unsigned p = 0; p < 2; p++) acc[p][q] = _mm256_fmadd_ps(w[p], xk, acc[p][q]);
        }
    }
}

/* |x| < 2^-60 -> +0, compared as integers: a subnormal operand would trap. */
FP9__INLINE __m256 fp9__tiny_to_zero(__m256 x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i tiny = _mm256_castps_si256(_mm256_set1_ps(FP9_X_TINY));
    __m256i below = _mm256_cmpgt_epi32(tiny, _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    return _mm256_andnot_ps(_mm256_castsi256_ps(below), x);
}

extern const struct fp9_down_ops fp9__avx2_down;
extern fp9_prepare_fn fp9__avx2_prepare;
extern fp9_expert_fn fp9__avx2_expert;

#endif
