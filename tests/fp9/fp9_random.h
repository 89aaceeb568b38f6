/* fp9_random.h: reproducible random weights and activations for tests of fp9 and the duck core. */
#ifndef DUCKD_TESTS_FP9_FP9_RANDOM_H
#define DUCKD_TESTS_FP9_FP9_RANDOM_H

#include <stdlib.h>
#include <string.h>

#include "fp9/fp9.h"

static inline uint64_t random_next(uint64_t *state) // splitmix64
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((random_next(state) >> 32) * n >> 32);
}

static inline float random_unit(uint64_t *state) // -1 .. 1
{
    return (float)((double)(random_next(state) >> 11) * 0x1p-52 - 1.0);
}

/* Any valid code; a quarter of them zero or the largest and smallest. */
static inline uint16_t random_code(uint64_t *state)
{
    static const uint8_t rare[4] = {0, 8, 0xf7, 0};
    uint32_t r = (uint32_t)random_next(state);
    uint32_t body = r & 3 ? 8 + (r >> 8) % 240 : rare[r >> 8 & 3];
    return (uint16_t)((r >> 2 & 1) << 8 | body);
}

static inline uint8_t random_e4m3(uint64_t *state)
{
    uint8_t r = (uint8_t)random_next(state);
    return (r & 0x7f) == 0x7f ? 0x30 : r;
}

/* Exactly `bytes` bytes, 64-byte aligned, so that a sanitizer sees the first byte beyond. */
static inline void *aligned_bytes(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1)) abort();
    memset(p, 0xcd, bytes);
    return p;
}

#endif
