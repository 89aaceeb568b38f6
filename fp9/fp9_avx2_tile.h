/* fp9_avx2_tile.h: packed weights into fp32 registers, shared by the AVX2 files of fp9/.
 *
 * Lanes are outputs. A word vector holds four inputs of eight outputs. Each becomes raw(w) of fp9.h, sign
 * included, out of one of two views of its word, inputs 0 and 1 out of the first, 2 and 3 out of the second,
 * by at most one move and one mask (layouts: fp9.h). All that differs between the formats is here: a way of
 * decoding is a constant of every function, and each kernel is made once for each way.
 *
 *   WAY_FP9    the second view is the word xor-ed with S; S for the next word is S added to itself, which
 *              runs on more ports than a shift: 9 operations for 4 x 8 weights, or 8 where words come out of
 *              memory for each use
 *   WAY_E4M3   a view's two inputs are the upper or the lower bytes of its 16-bit halves, with their signs
 *              shifted down by four or multiplied by 16: 8 operations; 2^-8 raw(w), which the packed scales
 *              make good
 *   WAY_SMALL  the same of marked tiles: bytes become fp9's bodies, subnormals by a table, and raw(w) is
 *              made of those; the 2^-8 are put to the activations: some 25 operations */
#ifndef FP9_FP9_AVX2_TILE_H
#define FP9_FP9_AVX2_TILE_H

#include <immintrin.h>
#include <stdbool.h>

#include "fp9/fp9_layout.h"

#define FP9__INLINE static inline __attribute__((always_inline))
/* Before a loop of constant length over registers: unrolled late, their array would stay in memory. */
#define FP9__UNROLL _Pragma("GCC unroll 16")

enum {
    FP9__AHEAD = 2048, // bytes of a dot's software prefetch: covers DRAM latency at one core's share of
                       // bandwidth, and stays within what the line buffers hold; measured best among 1, 2,
                       // 4 KB (bench-duck)
};

static inline const float *fp9__row_of(const struct fp9_rows *x, size_t t)
{
    return x->xs + (x->row ? x->row[t] : t) * x->stride;
}

FP9__INLINE __m256i fp9__load(const uint8_t *vector)
{
    return _mm256_load_si256((const __m256i *)vector);
}

enum fp9__way { FP9__WAY_FP9 = FP9_FP9, FP9__WAY_E4M3 = FP9_E4M3, FP9__WAY_SMALL };

FP9__INLINE enum fp9_format fp9__format(enum fp9__way way)
{
    return way == FP9__WAY_FP9 ? FP9_FP9 : FP9_E4M3;
}

/* How tile t of marked tiles is decoded. */
FP9__INLINE enum fp9__way fp9__way_of(enum fp9_format f, uint32_t marked, size_t t)
{
    if (f == FP9_FP9) return FP9__WAY_FP9;
    return __builtin_expect(marked >> t & 1, 0) ? FP9__WAY_SMALL : FP9__WAY_E4M3;
}

/* S as the first word of tile t wants it; nothing in e4m3. */
FP9__INLINE __m256i fp9__signs(enum fp9__way way, const uint8_t *strip, size_t t)
{
    if (way != FP9__WAY_FP9) return _mm256_setzero_si256();
    return _mm256_sll_epi32(fp9__load(strip), _mm_cvtsi32_si128((int)(2 * t)));
}

FP9__INLINE __m256i fp9__next_signs(enum fp9__way way, __m256i s)
{
    return way == FP9__WAY_FP9 ? _mm256_add_epi32(s, s) : s;
}

/* fp9's bodies of e4m3's: the exponent is 8 more, but for subnormals and zero. */
FP9__INLINE __m256i fp9__bodies(__m256i word)
{
    const __m256i more = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x2f, 0x36, 0x39, 0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40));
    __m256i body = _mm256_and_si256(word, _mm256_set1_epi8(0x7f));
    return _mm256_add_epi8(body, _mm256_shuffle_epi8(more, _mm256_min_epu8(body, _mm256_set1_epi8(8))));
}

/* Of e4m3 the upper bytes of 16-bit halves. */
FP9__INLINE __m256i fp9__first_view(enum fp9__way way, __m256i word)
{
    const __m256i sign = _mm256_set1_epi16(-0x8000);
    if (way == FP9__WAY_FP9) return word;
    if (way == FP9__WAY_E4M3) return _mm256_srai_epi16(word, 4);
    return _mm256_or_si256(_mm256_srli_epi16(fp9__bodies(word), 4), _mm256_and_si256(word, sign));
}

/* Of e4m3 the lower bytes, times 16. */
FP9__INLINE __m256i fp9__second_view(enum fp9__way way, __m256i word, __m256i signs)
{
    const __m256i lower = _mm256_set1_epi16(16), sign = _mm256_set1_epi16(-0x8000);
    if (way == FP9__WAY_FP9) return _mm256_xor_si256(word, signs);
    if (way == FP9__WAY_E4M3) return _mm256_maddubs_epi16(lower, word);
    return _mm256_or_si256(_mm256_maddubs_epi16(fp9__bodies(word), lower),
                           _mm256_and_si256(_mm256_slli_epi16(word, 8), sign));
}

/* Input k (0..3) of a word out of its view. */
FP9__INLINE __m256 fp9__weight(enum fp9__way way, __m256i view, unsigned k)
{
    const __m256i mask = _mm256_set1_epi32(way == FP9__WAY_E4M3 ? (int)0x87f00000 : (int)0x8ff00000);
    const __m256i rotate = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0,
                                            5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12);
    __m256i w = view;
    if (k == 1 || (k == 3 && way != FP9__WAY_FP9))
        w = _mm256_slli_epi32(view, 16);
    else if (k == 2 && way == FP9__WAY_FP9)
        w = _mm256_slli_epi32(view, 8);
    else if (k == 3)
        w = _mm256_shuffle_epi8(view, rotate);
    return _mm256_castsi256_ps(_mm256_and_si256(w, mask));
}

/* The upper or the lower half of every lane, as a weight: two bytes earlier in memory what was the lower half
 * is the upper one, so that one operation does what would be a load, a shift and a mask. */
FP9__INLINE __m256 fp9__half(const void *lanes, bool lower, __m256i mask)
{
    const char *at = (const char *)lanes - (lower ? 2 : 0);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)at), mask));
}

/* Input 0 or 1 of a word of fp9 out of memory. */
FP9__INLINE __m256 fp9__weight_there(const uint8_t *word, unsigned k)
{
    const __m256i mask = _mm256_set1_epi32((int)0x8ff00000);
    return fp9__half(word, k == 1, mask);
}

/* An activation in all lanes. */
FP9__INLINE __m256 fp9__x(enum fp9__way way, const float *x)
{
    __m256 all = _mm256_broadcast_ss(x);
    return way == FP9__WAY_SMALL ? _mm256_mul_ps(all, _mm256_set1_ps(FP9_W_SCALE / FP9_E4M3_SCALE)) : all;
}

/* ---- more tokens: the views of a block are unpacked once into L1, two inputs to a lane ----
 *
 * The upper half of a lane is what an even input has in the upper half of its fp32 bits, the lower half the
 * same of the odd input after it (the lower halves of the weights are zero): fp9__half() makes either a
 * weight. Whole weights would be twice the stores, and beside the products a store costs the time of two
 * loads. */

/* Of a word's second view: as its first view has inputs 0 and 1, those inputs have 2 and 3 in the halves of
 * the lanes. */
FP9__INLINE __m256i fp9__second_halves(enum fp9__way way, __m256i view)
{
    const __m256i rotate = _mm256_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2,
                                            7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14);
    return way == FP9__WAY_FP9 ? _mm256_shuffle_epi8(view, rotate) : view;
}

/* What of a half a weight is, where it stands. */
FP9__INLINE __m256i fp9__mask(enum fp9__way way)
{
    return _mm256_set1_epi32(way == FP9__WAY_E4M3 ? (int)0x87f00000 : (int)0x8ff00000);
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
