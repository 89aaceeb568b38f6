/* norm.c: four accumulators hide the latency of the sums; they are added in one fixed order. */
#include "host/backend/cpu/norm.h"

#include <math.h>

#include "host/backend/cpu/simd.h"

static float sum_of_squares(const float *x, __m256 mean, size_t n)
{
    __m256 a[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 4; k++) {
            __m256 v = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * k), mean);
            a[k] = _mm256_fmadd_ps(v, v, a[k]);
        }
    for (; i < n; i += 8) {
        __m256 v = _mm256_sub_ps(_mm256_loadu_ps(x + i), mean);
        a[0] = _mm256_fmadd_ps(v, v, a[0]);
    }
    return simd_sum(_mm256_add_ps(_mm256_add_ps(a[0], a[1]), _mm256_add_ps(a[2], a[3])));
}

bool norm_rms(const float *x, const float *weight, float eps, size_t n, float *y)
{
    float ss = sum_of_squares(x, _mm256_setzero_ps(), n);
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(ss / (float)n + eps));
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(
            y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale), _mm256_loadu_ps(weight + i)));
    return isfinite(ss);
}

bool norm_layer(const float *x, const float *weight, const float *bias, float eps, size_t n, float *y)
{
    __m256 sum = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) sum = _mm256_add_ps(sum, _mm256_loadu_ps(x + i));
    __m256 mean = _mm256_set1_ps(simd_sum(sum) / (float)n);
    float ss = sum_of_squares(x, mean, n);
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(ss / (float)n + eps));
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), mean), scale);
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(v, _mm256_loadu_ps(weight + i), _mm256_loadu_ps(bias + i)));
    }
    return isfinite(ss);
}

void norm_add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
}
