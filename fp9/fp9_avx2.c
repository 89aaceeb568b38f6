/* fp9_avx2.c: dots, preparation and SiLU with AVX2 + FMA; the bits of fp9_scalar.c. */
#include "fp9/fp9_bits.h"

#define FP9__FETCH "prefetcht0"
#define FP9__FETCH_HINT _MM_HINT_T0
#define FP9__FETCH_AHEAD FP9__AHEAD
#include "fp9/fp9_avx2_few.h"

/* ---- activations ---- */

void fp9__avx2_prepare(const float *x, size_t n, float *xs)
{
    const __m256 scale = _mm256_set1_ps(FP9_X_SCALE);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(xs + i, _mm256_mul_ps(fp9__tiny_to_zero(_mm256_loadu_ps(x + i)), scale));
    if (i == n) return;
    float rest[8] = {0};
    for (size_t j = 0; i + j < n; j++) rest[j] = x[i + j];
    _mm256_storeu_ps(xs + i, _mm256_mul_ps(fp9__tiny_to_zero(_mm256_loadu_ps(rest)), scale));
}

static __m256 exp_minus(__m256 a)
{
    const __m256 round = _mm256_set1_ps(FP9__ROUND);
    __m256 shifted = _mm256_fmadd_ps(a, _mm256_set1_ps(-FP9__LOG2E), round);
    __m256 n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fmsub_ps(n, _mm256_set1_ps(-FP9__LN2_HIGH), a);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-FP9__LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(FP9__EXP7), r, _mm256_set1_ps(FP9__EXP6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FP9__EXP5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FP9__EXP4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FP9__EXP3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FP9__EXP2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

static __m256 silu(__m256 given)
{
    const __m256 cut = _mm256_set1_ps(FP9__SILU_CUT), sign = _mm256_set1_ps(-0.0f);
    __m256 x = fp9__tiny_to_zero(given);
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 a = _mm256_andnot_ps(sign, x);
    __m256 beyond = _mm256_cmp_ps(a, cut, _CMP_GT_OQ);
    __m256 z = _mm256_andnot_ps(beyond, exp_minus(_mm256_min_ps(a, cut)));
    __m256 bounded = _mm256_blendv_ps(x, sign, beyond); // only looked at where x is negative
    __m256 numerator = _mm256_blendv_ps(x, _mm256_mul_ps(bounded, z), x);
    __m256 y = _mm256_div_ps(numerator, _mm256_add_ps(_mm256_set1_ps(1.0f), z));
    return _mm256_blendv_ps(y, x, nan);
}

void fp9__avx2_expert(const float *g, const float *u, float weight, size_t n, float *hs)
{
    const __m256 scale = _mm256_set1_ps(FP9_X_SCALE), w = fp9__tiny_to_zero(_mm256_set1_ps(weight));
    for (size_t i = 0; i < n; i += 8) {
        __m256 p = _mm256_mul_ps(fp9__tiny_to_zero(silu(_mm256_loadu_ps(g + i))),
                                 fp9__tiny_to_zero(_mm256_loadu_ps(u + i)));
        __m256 h = _mm256_mul_ps(fp9__tiny_to_zero(p), w);
        _mm256_storeu_ps(hs + i, _mm256_mul_ps(fp9__tiny_to_zero(h), scale));
    }
}

const struct fp9_kernels fp9_avx2 = {.name = "avx2",
                                     .prepare = fp9__avx2_prepare,
                                     .dot = dot,
                                     .dot2 = dot2,
                                     .expert = fp9__avx2_expert,
                                     .down = &fp9__avx2_down};
