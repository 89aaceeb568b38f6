/* prefix_cache.h: KV of texts that ended, for texts that begin alike.
 *
 * Keeps the sequences of ended generations within a budget of bytes and begins a new one as a fork of the
 * longest common prefix, so that a conversation's branches do not fight over one sequence. What was continued
 * once (a conversation) is given up only after everything that was not, unless it fills most of the budget:
 * small requests on the side do not push it out. What is kept also holds sequences and memory of the backend:
 * where these run out it makes way for what begins, the text that is continued last of all. Engine thread
 * only. */
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

/* Opens a sequence as sequence_open() does and sets how far it is. *reused: positions that came from here,
 * fewer than the sequence's tokens, since the last one has to give logits; with MTP also fewer than the
 * common prefix, whose last token is run again for the hidden state that the MTP layer needs. */
int prefix_cache_begin(struct prefix_cache *c, struct sequence *s, struct backend *b,
                       const struct sequence_start *start, enum prefix_reuse how, uint32_t *reused,
                       struct error *err);

/* Takes a sequence that nobody runs any more: kept or closed, *s is empty afterwards. `continued`: it began
 * with positions from here. */
void prefix_cache_keep(struct prefix_cache *c, struct sequence *s, bool continued);

/* After `rc` of an attempt to open a sequence: gives up the entry that is worth least if the backend may have
 * room then. False: it is no want of room, or nothing is left. */
bool prefix_cache_makes_way(struct prefix_cache *c, int rc);

/* How many positions prefix_cache_begin() would give. */
uint32_t prefix_cache_match(const struct prefix_cache *c, const int32_t *ids, uint32_t count,
                            enum prefix_reuse how);
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
