/* wire_dtype.c: rounding to bf16 and to scaled e4m3. */
#include "host/flock/wire_dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t wire_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); // stays a NaN without its low half
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float wire_bf16_to_float(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint8_t wire_e4m3(float x)
{
    uint8_t sign = (uint8_t)(bits_of(x) >> 31 << 7);
    float a = fabsf(x);
    if (isnan(x)) return (uint8_t)(sign | 0x7fu);
    if (a >= WIRE_FP8_MAX) return (uint8_t)(sign | 0x7eu);
    if (a < 0x1p-6f) { // subnormal: multiples of 2^-9; 8 of them are the smallest normal number's code
        return (uint8_t)(sign | (uint8_t)lrintf(a * 0x1p9f));
    }
    uint32_t u = bits_of(a);
    u += 0x7ffffu + (u >> 20 & 1u); // to 3 bits of mantissa; a carry goes into the exponent
    uint32_t code = (u >> 20) - (120u << 3);
    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}

float wire_fp8_scale(const float *x, size_t n)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (a > largest) largest = a;
    }
    if (largest < FP9_X_TINY) return 0;
    return fminf(largest, FLT_MAX) / WIRE_FP8_MAX;
}

static void round_fp8_run(const float *x, size_t n, float *out)
{
    float scale = wire_fp8_scale(x, n);
    for (size_t i = 0; i < n; i++) {
        if (scale == 0 && !isnan(x[i])) {
            out[i] = 0;
        } else {
            out[i] = fp9_e4m3_to_float(wire_e4m3(x[i] / scale)) * scale;
        }
    }
}

void wire_round(enum wire_dtype dtype, const float *x, size_t n, float *out)
{
    switch (dtype) {
    case WIRE_F32:
        if (out != x) memcpy(out, x, n * sizeof *out);
        return;
    case WIRE_BF16:
        for (size_t i = 0; i < n; i++) out[i] = wire_bf16_to_float(wire_bf16(x[i]));
        return;
    case WIRE_FP8:
        for (size_t i = 0; i < n; i += WIRE_FP8_RUN) {
            round_fp8_run(x + i, n - i < WIRE_FP8_RUN ? n - i : WIRE_FP8_RUN, out + i);
        }
        return;
    }
}
