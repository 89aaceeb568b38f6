/* kat.h: the known-answer test: a small layer made from a seed, one step of it, the hash of its bits.
 *
 * Host and ducks run the same function; a duck whose memory, caches or vector units are unsound answers
 * something else. Exercises loading, both dot products, silu, the down product and the tree. */
#ifndef DUCK_KAT_H
#define DUCK_KAT_H

#include <stddef.h>
#include <stdint.h>

#include "duck/duck_core.h"

#define KAT_CORE ((size_t)512 << 10) // 64-byte aligned, as all of these
#define KAT_SCRATCH ((size_t)512 << 10)
#define KAT_MEMORY (KAT_CORE + KAT_SCRATCH)

/* The same of every format. */
uint64_t kat_hash(const struct fp9_kernels *k, enum fp9_format format, void *memory, uint64_t seed);

/* The same in two parts, for whoever computes the step in his own way: every task of every phase of the work
 * that kat_begin() returns (in `scratch`), then kat_end(). */
struct duck_work *kat_begin(const struct fp9_kernels *k, enum fp9_format format, void *core, void *scratch,
                            uint64_t seed);
uint64_t kat_end(const struct duck_work *w);

#endif
