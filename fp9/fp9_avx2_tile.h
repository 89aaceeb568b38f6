/* fp9_avx2_tile.h: one tile's weights into fp32 registers, shared by the AVX2 files of fp9/.
 *
 * Lanes are outputs. A 32-byte load holds four inputs of eight outputs; shift + and puts input k's body into
 * the float bits 20..27 (raw(w) of fp9.h): no widening of bytes and no half-float conversion. The sign byte
 * of a lane stands in bits 24..31 with input 0 on top; adding a register to itself moves the next sign up,
 * which runs on more ports than a shift. */
#ifndef FP9_FP9_AVX2_TILE_H
#define FP9_FP9_AVX2_TILE_H

#include <immintrin.h>

#include "fp9/fp9_layout.h"

#define FP9__INLINE static inline __attribute__((always_inline))
/* Before a loop of constant length over registers: unrolled late, their array would stay in memory. */
#define FP9__UNROLL _Pragma("GCC unroll 16")

FP9__INLINE __m256i fp9__signs(const uint8_t *sign)
{
    return _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)sign)), 24);
}

/* Input k (0..3) of the four in `body`; the top bit of `signs` is its sign. */
FP9__INLINE __m256 fp9__weight(__m256i body, __m256i signs, unsigned k)
{
    const __m256i body_bits = _mm256_set1_epi32(0x0ff00000), sign_bit = _mm256_set1_epi32((int)0x80000000);
    __m256i w = k == 0   ? _mm256_slli_epi32(body, 20)
                : k == 1 ? _mm256_slli_epi32(body, 12)
                : k == 2 ? _mm256_slli_epi32(body, 4)
                         : _mm256_srli_epi32(body, 4);
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_and_si256(w, body_bits), _mm256_and_si256(signs, sign_bit)));
}

/* All eight inputs of a tile. */
FP9__INLINE void fp9__tile(const uint8_t *body, const uint8_t *sign, __m256 w[8])
{
    __m256i signs = fp9__signs(sign);
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        __m256i b = _mm256_load_si256((const __m256i *)(body + 32 * half));
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++) {
            w[4 * half + k] = fp9__weight(b, signs, k);
            signs = _mm256_add_epi32(signs, signs);
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

#endif
