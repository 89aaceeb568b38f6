/* fp9_bits.h: fp32 <-> its bits, shared by the files of fp9/ (nobody else includes this). */
#ifndef FP9_FP9_BITS_H
#define FP9_FP9_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t fp9__bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float fp9__float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The constants of fp9_silu(): exp(-a) = 2^n x exp(r), n = round(-a / ln 2), |r| <= ln(2) / 2. */
#define FP9__SILU_CUT 87.0f             // exp(-87) is the last comfortable normal number
#define FP9__LOG2E 0x1.715476p+0f       // 1 / ln 2
#define FP9__LN2_HIGH 0x1.62e430p-1f    // ln 2 rounded to fp32, and what is missing
#define FP9__LN2_LOW (-0x1.05c610p-29f) //
#define FP9__ROUND 0x1.8p23f            // adding this rounds to an integer that stands in the low bits
#define FP9__EXP7 0x1.a01a02p-13f       // 1/7!, 1/6!, ... 1/2!
#define FP9__EXP6 0x1.6c16c2p-10f
#define FP9__EXP5 0x1.111112p-7f
#define FP9__EXP4 0x1.555556p-5f
#define FP9__EXP3 0x1.555556p-3f
#define FP9__EXP2 0x1p-1f

#endif
