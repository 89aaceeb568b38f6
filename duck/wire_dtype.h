/* wire_dtype.h: the number formats of activations and results on their way, and their rounding.
 *
 * Freestanding, shared by all transports and by ducks: the local transport rounds as if values had travelled,
 * with the same functions that make frames. bf16: round to nearest even. fp8: runs of 128 values share one
 * fp32 scale = largest magnitude / 448 (one fp32 division); a value is x / scale (one fp32 division) rounded
 * to the nearest e4m3, ties to even, saturating at +-448, times scale (one fp32 product). A run whose largest
 * magnitude is below FP9_X_TINY, which arithmetic counts as zero, has scale 0 and is all zero. NaN stays NaN.
 */
#ifndef DUCK_WIRE_DTYPE_H
#define DUCK_WIRE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "fp9/fp9.h"

enum wire_dtype { WIRE_F32, WIRE_BF16, WIRE_FP8, WIRE_DTYPES };

#define WIRE_FP8_RUN 128u
#define WIRE_FP8_MAX 448.0f

uint16_t wire_bf16(float x);
float wire_bf16_to_float(uint16_t bits);
uint8_t wire_e4m3(float x); // x already divided by the scale

/* out[i] = what arrives of x[i]; n values of one token. In place if out == x. */
void wire_round(enum wire_dtype dtype, const float *x, size_t n, float *out);

/* Bytes of `tokens` vectors of `n` values, and how many of them are the fp8 scales in front. */
size_t wire_packed_bytes(enum wire_dtype dtype, size_t tokens, size_t n);
size_t wire_scale_bytes(enum wire_dtype dtype, size_t tokens, size_t n);
/* As they travel: fp8 has the scales of all tokens (tokens, ceil(n / 128)) in front, then the e4m3 codes.
 * Unpacking gives what wire_round() gives. No alignment is asked of `packed`. */
void wire_pack(enum wire_dtype dtype, const float *x, size_t tokens, size_t n, uint8_t *packed);
void wire_unpack(enum wire_dtype dtype, const uint8_t *packed, size_t tokens, size_t n, float *x);
/* One of them into x[n]: bounded work for a core that must look at its NIC again soon. */
void wire_unpack_token(enum wire_dtype dtype, const uint8_t *packed, size_t tokens, size_t n, size_t token,
                       float *x);

#endif
