/* indexer.h: which cached positions a row attends to when there are more than top-k.
 *
 * score(row, key) = sum over heads, ascending, of weight_h x relu(q_h . key); each dot product is one chain
 * of fused multiply-adds over ascending dimensions, so a score's bits depend on its row and key alone. The
 * selection takes the largest scores, among equal ones (-0 is 0) the lowest positions. */
#ifndef DUCKD_HOST_BACKEND_CPU_INDEXER_H
#define DUCKD_HOST_BACKEND_CPU_INDEXER_H

#include <stddef.h>
#include <stdint.h>

#include "host/backend/cpu/kv.h"

#define INDEXER_ROWS 16u // rows that share one pass over the keys

struct indexer_rows {
    size_t heads, dim;
    struct kv_layer keys;
    uint32_t position, rows; // of row 0; row r scores positions 0 .. position + r
    const float *q;          // (rows, heads, dim) roped
    size_t q_stride;
    const float *weights; // (rows, heads) with head and dimension scales
    size_t weights_stride;
    float *scores; // (rows, score_stride), room for positions rounded up to 16
    size_t score_stride;
};

/* Scores of key tiles [first, first + count), count even or up to the last tile; scratch: (2 x 8 x dim). */
void indexer_score(const struct indexer_rows *a, uint32_t first, uint32_t count, float *scratch);

/* Positions of the k best of scores[n], ascending, into out; all n when k >= n. Returns how many. `scores`
 * can be read up to n rounded up to 8. */
uint32_t indexer_select(const float *scores, uint32_t n, uint32_t k, int32_t *out);

#endif
