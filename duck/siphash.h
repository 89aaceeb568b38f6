/* siphash.h: SipHash-2-4, the keyed 64-bit tag of every datagram and the hash of weights at rest.
 *
 * Freestanding, no state but the caller's. Chosen because a 1500-byte frame costs about half a microsecond
 * of plain integer code: no instruction set that a firmware would have to switch on. */
#ifndef DUCK_SIPHASH_H
#define DUCK_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
    uint64_t k0, k1; // of the 16 key bytes, little-endian
};

struct siphash {
    uint64_t v0, v1, v2, v3, total;
};

struct siphash_key siphash_key(const uint8_t bytes[16]);
void siphash_begin(struct siphash *s, const struct siphash_key *key);
/* `words` 8-byte words; any number of calls. */
void siphash_words(struct siphash *s, const void *data, size_t words);
/* The rest, any number of bytes. */
uint64_t siphash_end(struct siphash *s, const void *data, size_t bytes);

uint64_t siphash(const struct siphash_key *key, const void *data, size_t bytes);

#endif
