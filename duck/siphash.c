/* siphash.c: SipHash-2-4 after Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012). */
#include "duck/siphash.h"

#include <string.h>

static inline uint64_t rotate(uint64_t x, unsigned by)
{
    return x << by | x >> (64 - by);
}

static inline uint64_t word_at(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static inline void sip_round(struct siphash *s)
{
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static inline void absorb(struct siphash *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    sip_round(s);
    s->v0 ^= word;
}

struct siphash_key siphash_key(const uint8_t bytes[16])
{
    return (struct siphash_key){word_at(bytes), word_at(bytes + 8)};
}

void siphash_begin(struct siphash *s, const struct siphash_key *key)
{
    // "somepseudorandomlygeneratedbytes", as the paper has it
    *s = (struct siphash){key->k0 ^ 0x736f6d6570736575u, key->k1 ^ 0x646f72616e646f6du,
                          key->k0 ^ 0x6c7967656e657261u, key->k1 ^ 0x7465646279746573u, 0};
}

void siphash_words(struct siphash *state, const void *data, size_t words)
{
    const uint8_t *p = data;
    struct siphash s = *state; // in registers
    for (size_t i = 0; i < words; i++) absorb(&s, word_at(p + 8 * i));
    s.total += 8 * words;
    *state = s;
}

uint64_t siphash_end(struct siphash *state, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    siphash_words(state, p, bytes / 8);
    struct siphash s = *state;
    uint64_t last = (s.total + bytes % 8) << 56;
    for (size_t i = 0; i < bytes % 8; i++) last |= (uint64_t)p[bytes / 8 * 8 + i] << (8 * i);
    absorb(&s, last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

uint64_t siphash(const struct siphash_key *key, const void *data, size_t bytes)
{
    struct siphash s;
    siphash_begin(&s, key);
    return siphash_end(&s, data, bytes);
}
