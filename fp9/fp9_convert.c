/* fp9_convert.c: single codes to and from fp8 e4m3 and fp32. */
#include "fp9/fp9.h"

#include "fp9/fp9_bits.h"

enum {
    EXPONENT_MAX = 30,
    BODY_MAX = EXPONENT_MAX << 3 | 7, // 61440
    BODY_MIN = 1 << 3,                // 2^-14
    BIAS_STEP = 127 - 15,             // from the exponent bias of fp9 to that of fp32
    NAN_BITS = 0x7fc00000,
};

float fp9_to_float(uint16_t code)
{
    uint32_t sign = (uint32_t)(code >> 8 & 1) << 31, body = code & 0xffu;
    return fp9__float(body ? sign | ((body + (BIAS_STEP << 3)) << 20) : sign);
}

int fp9_check(uint16_t code)
{
    uint32_t body = code & 0xffu;
    return code < 512 && (body == 0 || (body >= BODY_MIN && body <= BODY_MAX)) ? 0 : -1;
}

int fp9_from_e4m3(uint8_t e4m3, uint16_t *code)
{
    uint32_t sign = (uint32_t)(e4m3 >> 7) << 8, exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
    if (exponent == 15 && mantissa == 7) return -1;
    if (exponent == 0 && mantissa != 0) { // subnormal: mantissa x 2^-9, a normal number here
        uint32_t high = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
        exponent = high + 6;
        mantissa = (mantissa << (3 - high)) & 7;
    } else if (exponent != 0) {
        exponent += 15 - 7;
    }
    *code = (uint16_t)(sign | exponent << 3 | mantissa);
    return 0;
}

int fp9_from_float(float x, uint16_t *code)
{
    uint32_t bits = fp9__bits(x), sign = bits >> 31 << 8, magnitude = bits & 0x7fffffffu, body;
    if (magnitude > 0x7f800000u) return -1;
    if (magnitude < fp9__bits(FP9_MIN)) {
        body = magnitude > fp9__bits(FP9_MIN / 2) ? BODY_MIN : 0;
    } else {
        uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20;
        body = rounded - (BIAS_STEP << 3);
        if (body > BODY_MAX) body = BODY_MAX;
    }
    *code = (uint16_t)(sign | body);
    return 0;
}

float fp9_e4m3_to_float(uint8_t e4m3)
{
    uint16_t code;
    return fp9_from_e4m3(e4m3, &code) ? fp9__float(NAN_BITS) : fp9_to_float(code);
}
