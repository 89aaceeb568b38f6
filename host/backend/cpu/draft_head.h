/* draft_head.h: which token the MTP layer's head likes best, found with 4-bit weights.
 *
 * A draft is verified whatever it comes from, so its logits need not be exact. Each row of the head is
 * rounded to 4 bits with a scale of its own, activations to 8: a quarter of what bf16 reads, and no logits
 * are written. The best tokens of a search are scored again from the checkpoint's row. Rows lie in blocks of
 * 32 tokens: (inputs / 8, 32, 4) bytes, the low half of a byte for the first four inputs, the high one for
 * the others. */
#ifndef DUCKD_HOST_BACKEND_CPU_DRAFT_HEAD_H
#define DUCKD_HOST_BACKEND_CPU_DRAFT_HEAD_H

#include <stddef.h>
#include <stdint.h>

#include "host/model/checkpoint.h"
#include "host/util/error.h"
#include "host/util/pool.h"

#define DRAFT_HEAD_TOKENS 32u // of a block
#define DRAFT_HEAD_TASKS 64u  // at most, of a search

struct draft_head {
    struct weight exact;
    uint32_t tokens, blocks; // the last block's missing tokens repeat the last one
    size_t inputs;           // a multiple of 8
    uint8_t *weights;        // 8 + the rounded value, -7 to 7
    float *scales;           // (blocks, 32)
    int8_t *rounded;         // (inputs) activations of the search under way
    float *row;              // (threads, inputs) of a candidate
    const float *x;
    int32_t zero;         // what the weights' 8 add to a sum, negated
    uint32_t task_blocks; // of the search under way
    struct draft_candidate {
        float score;
        uint32_t token;
    } best[DRAFT_HEAD_TASKS];
};

/* Values must be finite; the checkpoint must outlive it. */
int draft_head_load(struct draft_head *d, const struct weight *w, struct pool *pool, struct error *err);
void draft_head_free(struct draft_head *d);
uint64_t draft_head_bytes(const struct draft_head *d);

/* The token for activations x[inputs]. One search at a time. */
int32_t draft_head_best(struct draft_head *d, const float *x, struct pool *pool);

#endif
