/* norm.h: RMSNorm and LayerNorm of one row. Stateless; n is a multiple of 8. */
#ifndef DUCKD_HOST_BACKEND_CPU_NORM_H
#define DUCKD_HOST_BACKEND_CPU_NORM_H

#include <stdbool.h>
#include <stddef.h>

/* y = x / sqrt(mean(x^2) + eps) * weight; y may be x. false: x holds an infinity or a NaN (or overflows when
 * squared), which makes y worthless; the caller names the layer. */
bool norm_rms(const float *x, const float *weight, float eps, size_t n, float *y);

/* y = (x - mean) / sqrt(variance + eps) * weight + bias; y may be x. false: as above. */
bool norm_layer(const float *x, const float *weight, const float *bias, float eps, size_t n, float *y);

/* x += y */
void norm_add(float *x, const float *y, size_t n);

#endif
