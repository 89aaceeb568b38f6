/* random.h: the same numbers in every run. */
#ifndef DUCKD_TESTS_BACKEND_RANDOM_H
#define DUCKD_TESTS_BACKEND_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static inline uint32_t random_word(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* (-1, 1) */
static inline float random_float(uint64_t *state)
{
    return (float)((int32_t)random_word(state) >> 8) * 0x1p-23f;
}

/* 64-byte aligned, to be freed. */
static inline float *random_floats(uint64_t *state, size_t n)
{
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) & ~(size_t)63);
    for (size_t i = 0; i < n; i++) p[i] = random_float(state);
    return p;
}

#endif
