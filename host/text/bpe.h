/* bpe.h: byte-pair merges of one piece of text.
 *
 * Owns the merge table: (left id, right id) -> rank and merged id. The pair of lowest rank is merged first,
 * the leftmost one among equals, until no pair of neighbours has a rank: O(n log n) for a piece of n bytes,
 * however long. Immutable once filled; the scratch belongs to one caller. */
#ifndef DUCKD_HOST_TEXT_BPE_H
#define DUCKD_HOST_TEXT_BPE_H

#include "host/text/tokenizer.h"

struct bpe_merge {
    uint64_t pair; // left << 32 | right
    uint32_t rank; // position in the list of merges; BPE_NO_RANK: an empty slot
    int32_t merged;
};
#define BPE_NO_RANK UINT32_MAX

struct bpe {
    struct bpe_merge *slots; // open addressing, at most half full
    unsigned shift;          // 64 - log2(slots)
    int32_t byte_id[256];    // the token of each single byte
};

int bpe_init(struct bpe *bpe, size_t merges); // 0 or -ENOMEM; byte_id is the caller's to fill
void bpe_free(struct bpe *bpe);
/* 0, or -EEXIST when the pair already has a rank. At most `merges` calls. */
int bpe_add(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank);

/* Working memory for one piece, grown as needed; zero-initialise. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *run, *heap; // the queue of pairs
    size_t run_at, run_count, heap_count;
    size_t capacity; // bytes of a piece
};
void bpe_scratch_free(struct bpe_scratch *s);

/* Appends the ids of piece[0..length), length < 2^31. 0 or -ENOMEM. */
int bpe_encode(const struct bpe *bpe, struct bpe_scratch *s, const unsigned char *piece, size_t length,
               struct ids *out);

#endif
