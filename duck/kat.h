/* kat.h: the known-answer test: a small layer made from a seed, one step of it, the hash of its bits.
 *
 * Host and ducks run the same function; a duck whose memory, caches or vector units are unsound answers
 * something else. Exercises loading, both dot products, silu, the down product and the tree. */
#ifndef DUCK_KAT_H
#define DUCK_KAT_H

#include <stddef.h>
#include <stdint.h>

#include "fp9/fp9.h"

#define KAT_MEMORY ((size_t)1 << 20) // 64-byte aligned

uint64_t kat_hash(const struct fp9_kernels *k, void *memory, uint64_t seed);

#endif
