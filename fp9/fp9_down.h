/* fp9_down.h: the down product of a step over one run of slices, and the complete subtrees it is added into.
 *
 * Experts in ascending id, each with the (expert, token) pairs that chose it; pairs of an expert are
 * neighbours, ascending by token. For every output row and token: per slice one chain over the experts, then
 * the aligned tree over each complete subtree of the run (arithmetic: fp9/fp9.h). Rows are independent, so
 * any cut of the row panels over cores gives the same bits. Nothing here allocates. */
#ifndef FP9_FP9_DOWN_H
#define FP9_FP9_DOWN_H

#include "fp9/fp9.h"

struct fp9_down_expert {
    const uint8_t *panels; // row panels in quads of fp9_quad_bytes(.., 8 * slices)
    const float *scales;   // packed: row 8p / 128, scale_stride apart
    const uint16_t *marks; // e4m3: quad q's slices 16 i .. 16 i + 15: + q * fp9_down_marks(slices) + i
    uint32_t column;       // slice s uses the scale (column + 8 s) / 128 of its row
    uint32_t pair, pairs;  // its pairs: [pair, pair + pairs)
};

struct fp9_down {
    const struct fp9_down_expert *expert; // (experts), ascending id
    size_t experts;
    size_t first_slice, slices; // the run
    enum fp9_format format;
    size_t scale_stride;
    size_t tokens;
    const uint32_t *token; // (pairs) the token of each pair
    size_t pairs;
    const float *hs; // pair q, slice s of the run: 8 floats at + fp9_down_hs(pairs, q, s), 32-byte aligned
    float *out;      // subtree i of the run, token t, row r: + i * out_subtree + t * out_token + r
    size_t out_subtree, out_token;
};

/* The slices of a strip lie side by side, and then all its pairs: whoever goes through the pairs strip by
 * strip, which keeps their sums near, reads one stream. */
#define FP9_DOWN_STRIP 4u
static inline size_t fp9_down_hs(size_t pairs, size_t pair, size_t slice)
{
    return 8 * ((slice / FP9_DOWN_STRIP * pairs + pair) * FP9_DOWN_STRIP + slice % FP9_DOWN_STRIP);
}

/* Floats of all of them. */
static inline size_t fp9_down_hs_floats(size_t pairs, size_t slices)
{
    return fp9_down_hs(pairs, 0, (slices + FP9_DOWN_STRIP - 1) / FP9_DOWN_STRIP * FP9_DOWN_STRIP);
}

/* Marks of a quad. */
static inline size_t fp9_down_marks(size_t slices)
{
    return (slices + 15) / 16;
}

/* Quads of a pass: as many as let the sums of all slices and tokens, 8 floats for each row panel, take no
 * more than FP9_DOWN_HOT bytes of the L2. Rows are best cut into multiples of them. */
#define FP9_DOWN_HOT ((size_t)256 << 10)
static inline size_t fp9_down_quads(size_t slices, size_t tokens)
{
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a run has slices, a step tokens
    size_t quads = FP9_DOWN_HOT / (8 * sizeof(float) * FP9_QUAD * slices * tokens);
    return quads < 1 ? 1 : quads;
}

/* How far a product has come that is made in pieces. The caller sets the first line and clears the rest. */
struct fp9_down_walk {
    size_t first, count; // row panels
    void *cells;         // FP9_DOWN_CELLS bytes, 32-byte aligned: sums on their way
    size_t panel, part, slice, expert, subtree, begin;
};
#define FP9_DOWN_CELLS ((size_t)320 << 10)

struct fp9_down_ops {
    /* Row panels [first, first + count) of the output, all tokens; first a multiple of FP9_QUAD. */
    void (*rows)(const struct fp9_down *d, size_t first, size_t count);
    /* The same in pieces of about *work multiply-adds, decoding a weight counted as three; takes off what was
     * done. 1: it is done. */
    int (*some_rows)(const struct fp9_down *d, struct fp9_down_walk *at, size_t *work);
};

/* Level of the largest complete subtree that begins at slice `first` and stays within `slices` slices. */
static inline unsigned fp9_subtree_level(size_t first, size_t slices)
{
    unsigned level = 0;
    while ((size_t)2 << level <= slices && !(first >> level & 1)) level++;
    return level;
}

#endif
