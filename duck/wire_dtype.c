/* wire_dtype.c: rounding to bf16 and to scaled e4m3. */
#include "duck/wire_dtype.h"

#include <float.h>
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

static float magnitude(float x)
{
    return float_of(bits_of(x) & 0x7fffffffu);
}

static int is_nan(float x)
{
    return x != x;
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
    float a = magnitude(x);
    if (is_nan(x)) return (uint8_t)(sign | 0x7fu);
    if (a >= WIRE_FP8_MAX) return (uint8_t)(sign | 0x7eu);
    if (a < 0x1p-6f) { // subnormal: multiples of 2^-9; 8 of them are the smallest normal number's code
        return (uint8_t)(sign | (uint8_t)(a * 0x1p9f + 0x1p23f - 0x1p23f)); // the sum rounds to whole numbers
    }
    uint32_t u = bits_of(a);
    u += 0x7ffffu + (u >> 20 & 1u); // to 3 bits of mantissa; a carry goes into the exponent
    uint32_t code = (u >> 20) - (120u << 3);
    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}

static float scale_of_run(const float *x, size_t n)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        float a = magnitude(x[i]);
        if (a > largest) largest = a;
    }
    if (largest < FP9_X_TINY) return 0;
    return (largest < FLT_MAX ? largest : FLT_MAX) / WIRE_FP8_MAX;
}

static size_t run_length(size_t n, size_t at)
{
    return n - at < WIRE_FP8_RUN ? n - at : WIRE_FP8_RUN;
}

static void round_fp8_run(const float *x, size_t n, float *out)
{
    float scale = scale_of_run(x, n);
    for (size_t i = 0; i < n; i++) {
        if (scale == 0 && !is_nan(x[i])) {
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
        for (size_t i = 0; i < n; i += WIRE_FP8_RUN) round_fp8_run(x + i, run_length(n, i), out + i);
        return;
    case WIRE_DTYPES:
        return;
    }
}

size_t wire_scale_bytes(enum wire_dtype dtype, size_t tokens, size_t n)
{
    return dtype == WIRE_FP8 ? tokens * ((n + WIRE_FP8_RUN - 1) / WIRE_FP8_RUN) * sizeof(float) : 0;
}

size_t wire_packed_bytes(enum wire_dtype dtype, size_t tokens, size_t n)
{
    size_t each = dtype == WIRE_F32 ? 4 : dtype == WIRE_BF16 ? 2 : 1;
    return wire_scale_bytes(dtype, tokens, n) + tokens * n * each;
}

static void pack_fp8(const float *x, size_t tokens, size_t n, uint8_t *packed)
{
    uint8_t *code = packed + wire_scale_bytes(WIRE_FP8, tokens, n);
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < n; i += WIRE_FP8_RUN) {
            const float *run = x + t * n + i;
            size_t length = run_length(n, i);
            float scale = scale_of_run(run, length);
            memcpy(packed, &scale, sizeof scale);
            packed += sizeof scale;
            for (size_t k = 0; k < length; k++)
                *code++ = scale == 0 && !is_nan(run[k]) ? 0 : wire_e4m3(run[k] / scale);
        }
}

static void unpack_fp8(const uint8_t *scales, const uint8_t *code, size_t n, float *x)
{
    float value[256]; // made anew in the time of two hundred values: a step has thousands
    for (unsigned i = 0; i < 256; i++) value[i] = fp9_e4m3_to_float((uint8_t)i);
    for (size_t i = 0; i < n; i += WIRE_FP8_RUN) {
        float scale;
        memcpy(&scale, scales, sizeof scale);
        scales += sizeof scale;
        for (size_t k = run_length(n, i); k; k--) *x++ = value[*code++] * scale;
    }
}

void wire_pack(enum wire_dtype dtype, const float *x, size_t tokens, size_t n, uint8_t *packed)
{
    if (dtype == WIRE_F32) {
        memcpy(packed, x, tokens * n * sizeof *x);
    } else if (dtype == WIRE_BF16) {
        for (size_t i = 0; i < tokens * n; i++) {
            uint16_t bits = wire_bf16(x[i]);
            memcpy(packed + 2 * i, &bits, sizeof bits);
        }
    } else {
        pack_fp8(x, tokens, n, packed);
    }
}

void wire_unpack_token(enum wire_dtype dtype, const uint8_t *packed, size_t tokens, size_t n, size_t token,
                       float *x)
{
    if (dtype == WIRE_F32) {
        memcpy(x, packed + token * n * sizeof *x, n * sizeof *x);
    } else if (dtype == WIRE_BF16) {
        packed += 2 * token * n;
        for (size_t i = 0; i < n; i++) {
            uint16_t bits;
            memcpy(&bits, packed + 2 * i, sizeof bits);
            x[i] = wire_bf16_to_float(bits);
        }
    } else {
        size_t scales = wire_scale_bytes(WIRE_FP8, tokens, n), mine = wire_scale_bytes(WIRE_FP8, 1, n);
        unpack_fp8(packed + token * mine, packed + scales + token * n, n, x);
    }
}

void wire_unpack(enum wire_dtype dtype, const uint8_t *packed, size_t tokens, size_t n, float *x)
{
    for (size_t t = 0; t < tokens; t++) wire_unpack_token(dtype, packed, tokens, n, t, x + t * n);
}
