/* bench_limits_512.c: the FMA peak of 512-bit vectors. Compiled with -mavx512f. */
#include "tools/bench_limits.h"

#include <immintrin.h>

int limits_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

float limits_fma512(size_t rounds)
{
    __m512 acc[12];
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (size_t k = 0; k < 12; k++) acc[k] = _mm512_set1_ps((float)k);
    for (size_t r = 0; r < 16 * rounds; r++)
#pragma GCC unroll 12
        for (size_t k = 0; k < 12; k++) acc[k] = _mm512_fmadd_ps(acc[k], a, b);
    for (size_t k = 1; k < 12; k++) acc[0] = _mm512_add_ps(acc[0], acc[k]);
    return _mm512_cvtss_f32(acc[0]);
}
