/* rng.h: the random number of a position: a pure function of (seed, position), no state.
 *
 * Two rounds of a 64-bit mixer: the seed is mixed first so that neighbouring seeds do not give shifted
 * copies of one stream. */
#ifndef DUCKD_HOST_ENGINE_RNG_H
#define DUCKD_HOST_ENGINE_RNG_H

#include <stdint.h>

static inline uint64_t rng_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, 1), 53 random bits. */
static inline double rng_uniform(uint64_t seed, uint64_t position)
{
    uint64_t key = rng_mix(seed + 0x9e3779b97f4a7c15u);
    uint64_t bits = rng_mix(key + (position + 1) * 0x9e3779b97f4a7c15u);
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
