/* bpe.c: symbols are a linked list over an array; a queue holds the ranked pairs of neighbours.
 *
 * A queue entry is rank << 32 | position of the left symbol, so that one comparison orders by rank and then
 * by position. Entries are never removed when a neighbour changes: an entry counts only while the symbol at
 * its position still has that rank for its pair (a pair's text only grows, so an old rank never comes back).
 *
 * The queue is a sorted run and a heap for what comes in meanwhile; an exhausted run is replaced by the
 * sorted heap. Any piece takes O(n log n), and a piece that repeats itself, where entries come in order,
 * hardly more than O(n). */
#include "host/text/bpe.h"

#include <errno.h>
#include <stdlib.h>

#define NONE UINT32_MAX

struct bpe_symbol {
    int32_t id;
    uint32_t previous, next; // NONE at the ends
    uint32_t rank;           // of the pair (this, next); BPE_NO_RANK: none, or this symbol was merged away
    int32_t merged;          // what that pair becomes
};

int bpe_init(struct bpe *bpe, size_t merges)
{
    bpe->shift = 63;
    while (((size_t)1 << (64 - bpe->shift)) < 2 * merges) bpe->shift--;
    size_t count = (size_t)1 << (64 - bpe->shift);
    bpe->slots = malloc(count * sizeof *bpe->slots);
    if (!bpe->slots) return -ENOMEM;
    for (size_t i = 0; i < count; i++) bpe->slots[i].rank = BPE_NO_RANK;
    return 0;
}

void bpe_free(struct bpe *bpe)
{
    free(bpe->slots);
    bpe->slots = NULL;
}

/* The pair's slot, or the empty one where it belongs. */
static struct bpe_merge *find(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - bpe->shift)) - 1;
    size_t at = (size_t)(pair * 0x9e3779b97f4a7c15u >> bpe->shift);
    while (bpe->slots[at].rank != BPE_NO_RANK && bpe->slots[at].pair != pair) at = (at + 1) & mask;
    return &bpe->slots[at];
}

int bpe_add(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank)
{
    struct bpe_merge *slot = find(bpe, left, right);
    if (slot->rank != BPE_NO_RANK) return -EEXIST;
    *slot = (struct bpe_merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, merged};
    return 0;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->run);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

static int reserve(struct bpe_scratch *s, size_t length)
{
    if (length <= s->capacity) return 0;
    size_t capacity = length < 256 ? 256 : length;
    bpe_scratch_free(s);
    s->symbols = malloc(capacity * sizeof *s->symbols);
    // One entry per first pair, and every merge (fewer than length) takes one out and puts at most two in.
    s->run = malloc(2 * capacity * sizeof *s->run);
    s->heap = malloc(2 * capacity * sizeof *s->heap);
    if (!s->symbols || !s->run || !s->heap) {
        bpe_scratch_free(s);
        return -ENOMEM;
    }
    s->capacity = capacity;
    return 0;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t entry = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static void push(struct bpe_scratch *s, uint64_t entry)
{
    size_t at = s->heap_count++;
    while (at > 0 && s->heap[(at - 1) / 2] > entry) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = entry;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Makes the heap the run. */
static void renew_run(struct bpe_scratch *s)
{
    uint64_t *sorted = s->heap;
    size_t count = s->heap_count, ordered = 1;
    while (ordered < count && sorted[ordered - 1] <= sorted[ordered]) ordered++;
    if (ordered < count) qsort(sorted, count, sizeof *sorted, compare);
    s->heap = s->run;
    s->heap_count = 0;
    s->run = sorted;
    s->run_at = 0;
    s->run_count = count;
}

/* Takes out the smallest entry; false when there is none. */
static bool pop(struct bpe_scratch *s, uint64_t *entry)
{
    if (s->run_at == s->run_count) {
        renew_run(s);
        if (s->run_count == 0) return false;
    }
    if (s->heap_count == 0 || s->run[s->run_at] <= s->heap[0]) {
        *entry = s->run[s->run_at++];
        return true;
    }
    *entry = s->heap[0];
    s->heap[0] = s->heap[--s->heap_count];
    if (s->heap_count) sift_down(s->heap, s->heap_count, 0);
    return true;
}

/* Looks up the pair that begins at `at`; false when it is none to merge. */
static bool rank_pair(const struct bpe *bpe, struct bpe_symbol *symbols, uint32_t at)
{
    struct bpe_symbol *s = &symbols[at];
    s->rank = BPE_NO_RANK;
    if (s->next == NONE) return false;
    const struct bpe_merge *m = find(bpe, s->id, symbols[s->next].id);
    s->rank = m->rank;
    s->merged = m->merged;
    return s->rank != BPE_NO_RANK;
}

static void first_pairs(const struct bpe *bpe, struct bpe_scratch *s, const unsigned char *piece,
                        uint32_t length)
{
    for (uint32_t i = 0; i < length; i++) {
        s->symbols[i].id = bpe->byte_id[piece[i]];
        s->symbols[i].previous = i ? i - 1 : NONE;
        s->symbols[i].next = i + 1 < length ? i + 1 : NONE;
    }
    s->run_at = s->run_count = s->heap_count = 0;
    // Not yet a heap: the first pop() sorts it.
    for (uint32_t i = 0; i < length; i++)
        if (rank_pair(bpe, s->symbols, i)) s->heap[s->heap_count++] = (uint64_t)s->symbols[i].rank << 32 | i;
}

static void merge_pair(const struct bpe *bpe, struct bpe_scratch *s, uint32_t at)
{
    struct bpe_symbol *symbols = s->symbols, *left = &symbols[at], *right = &symbols[left->next];
    left->id = left->merged;
    left->next = right->next;
    right->rank = BPE_NO_RANK;
    if (left->next != NONE) symbols[left->next].previous = at;
    uint32_t before = left->previous;
    if (before != NONE && rank_pair(bpe, symbols, before))
        push(s, (uint64_t)symbols[before].rank << 32 | before);
    if (rank_pair(bpe, symbols, at)) push(s, (uint64_t)left->rank << 32 | at);
}

int bpe_encode(const struct bpe *bpe, struct bpe_scratch *s, const unsigned char *piece, size_t length,
               struct ids *out)
{
    if (length == 0) return 0;
    int rc = reserve(s, length);
    if (rc) return rc;
    first_pairs(bpe, s, piece, (uint32_t)length);
    for (uint64_t entry; pop(s, &entry);) {
        uint32_t at = (uint32_t)entry;
        if (s->symbols[at].rank == (uint32_t)(entry >> 32)) merge_pair(bpe, s, at);
    }
    for (uint32_t at = 0; at != NONE; at = s->symbols[at].next)
        if ((rc = ids_push(out, s->symbols[at].id))) return rc;
    return 0;
}
