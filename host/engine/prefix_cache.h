/* prefix_cache.h: KV of texts that ended, for texts that begin alike.
 *
 * Keeps the sequences of ended generations within a budget of bytes and gives the longest common prefix to a
 * new one by copying positions, so that a conversation's branches do not fight over one sequence. What was
 * continued once (a conversation) is given up only after everything that was not, unless it fills most of the
 * budget: small requests on the side do not push it out. Engine thread only. */
#ifndef DUCKD_HOST_ENGINE_PREFIX_CACHE_H
#define DUCKD_HOST_ENGINE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/engine/sequence.h"

struct prefix_cache;
/* NULL: no memory. */
struct prefix_cache *prefix_cache_open(uint64_t budget_bytes, uint64_t bytes_per_position);
void prefix_cache_close(struct prefix_cache *c);

enum prefix_reuse {
    PREFIX_MAIN,   // the main model's positions
    PREFIX_ALL,    // only those that the MTP layer has too
    PREFIX_EITHER, // the main model's, and the MTP layer's where it has them up to there
};

/* Fills a fresh sequence's KV and sets how far it is. Returns how many positions were reused: fewer than the
 * sequence's tokens, since the last one has to give logits; with MTP also fewer than the common prefix, whose
 * last token is run again for the hidden state that the MTP layer needs. */
uint32_t prefix_cache_reuse(struct prefix_cache *c, struct sequence *s, enum prefix_reuse how);

/* Takes a sequence that nobody runs any more: kept or closed, *s is empty afterwards. `continued`: it began
 * with positions from here. */
void prefix_cache_keep(struct prefix_cache *c, struct sequence *s, bool continued);

/* Gives up the entry that is worth least, so that the backend has room for another sequence. False: there is
 * none. */
bool prefix_cache_give_up(struct prefix_cache *c);

/* How many positions prefix_cache_reuse() would give. */
uint32_t prefix_cache_match(const struct prefix_cache *c, const struct sequence *s, enum prefix_reuse how);
/* Is told of sequences that are given up for want of room, and of all that are left when the cache is closed
 * (`closing`), the least recently used first. */
typedef void prefix_cache_drop_fn(void *ctx, const struct sequence *s, bool conversation, bool closing);
void prefix_cache_on_drop(struct prefix_cache *c, prefix_cache_drop_fn *fn, void *ctx);

/* The latest sequence that has been there since `before_ns` (clock_ns()) and that this was not told of yet;
 * NULL: none. *later: there are some to come. */
const struct sequence *prefix_cache_unsaved(struct prefix_cache *c, uint64_t before_ns, bool *conversation,
                                            bool *later);

uint64_t prefix_cache_bytes(const struct prefix_cache *c);

#endif
