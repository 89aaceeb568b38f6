/* fp9_avx512_couple.h: packed weights into registers of 16 lanes, shared by the AVX-512 files of fp9/: the
 * same vector of two panels, a couple, one in each half. */
#ifndef FP9_FP9_AVX512_COUPLE_H
#define FP9_FP9_AVX512_COUPLE_H

#include "fp9/fp9_avx2_tile.h"

FP9__INLINE __m512i fp9__load_couple(const uint8_t *low, const uint8_t *high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(fp9__load(low)), fp9__load(high), 1);
}

/* Input k (0..3) of a word of fp9; `mixed` is the word xor-ed with its S. */
FP9__INLINE __m512 fp9__couple_fp9(__m512i word, __m512i mixed, unsigned k)
{
    const __m512i mask = _mm512_set1_epi32((int)0x8ff00000);
    __m512i w = k == 0   ? word
                : k == 1 ? _mm512_slli_epi32(word, 16)
                : k == 2 ? _mm512_slli_epi32(mixed, 8)
                         : _mm512_rol_epi32(mixed, 24);
    return _mm512_castsi512_ps(_mm512_and_si512(w, mask));
}

/* Input k of a word of e4m3. */
FP9__INLINE __m512 fp9__couple_e4m3(__m512i word, unsigned k)
{
    const __m512i mask = _mm512_set1_epi32((int)0x87f00000);
    __m512i up = k == 0   ? word
                 : k == 1 ? _mm512_slli_epi32(word, 16)
                 : k == 2 ? _mm512_slli_epi32(word, 8)
                          : _mm512_slli_epi32(word, 24);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(up, 4), mask));
}

/* The views (fp9_avx2_tile.h) of a word that is in *first; of e4m3 the word is both. *signs are those of fp9
 * and become the next word's. */
FP9__INLINE void fp9__couple_views(enum fp9__way way, __m512i *first, __m512i *second, __m512i *signs)
{
    const __m512i word = *first;
    *second = word;
    if (way == FP9__WAY_FP9) {
        *second = _mm512_xor_si512(word, *signs);
        *signs = _mm512_add_epi32(*signs, *signs);
    } else if (way == FP9__WAY_SMALL) {
        const __m256i low = _mm512_castsi512_si256(word), high = _mm512_extracti64x4_epi64(word, 1), no = low;
        *first = _mm512_inserti64x4(_mm512_castsi256_si512(fp9__first_view(way, low)),
                                    fp9__first_view(way, high), 1);
        *second = _mm512_inserti64x4(_mm512_castsi256_si512(fp9__second_view(way, low, no)),
                                     fp9__second_view(way, high, no), 1);
    }
}

/* Input k of a word out of its views. */
FP9__INLINE __m512 fp9__couple_weight(enum fp9__way way, __m512i first, __m512i second, unsigned k)
{
    if (way == FP9__WAY_FP9) return fp9__couple_fp9(first, second, k);
    if (way == FP9__WAY_E4M3) return fp9__couple_e4m3(first, k);
    const __m512i view = k < 2 ? first : second, mask = _mm512_set1_epi32((int)0x8ff00000);
    return _mm512_castsi512_ps(_mm512_and_si512(k % 2 ? _mm512_slli_epi32(view, 16) : view, mask));
}

/* An activation in all lanes. */
FP9__INLINE __m512 fp9__couple_x(enum fp9__way way, const float *x)
{
    return _mm512_set1_ps(way == FP9__WAY_SMALL ? *x * (FP9_W_SCALE / FP9_E4M3_SCALE) : *x);
}

extern const struct fp9_down_ops fp9__avx512_down;

#endif
