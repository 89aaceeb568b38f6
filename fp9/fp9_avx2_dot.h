/* fp9_avx2_dot.h: panels of a dot as the AVX2 files read them (nobody else includes this). */
#ifndef FP9_FP9_AVX2_DOT_H
#define FP9_FP9_AVX2_DOT_H

#include "fp9/fp9_avx2_tile.h"

enum {
    FP9__TOKENS = 6,  // x 2 panels = 12 accumulators: as many as registers allow
    FP9__PANELS = 16, // most panels of a call below
};

/* One panel of a dot: where it is read, what is read after it, its row of scales, its marks if it is e4m3,
 * where its 8 outputs go (token t at + t * stride). */
struct fp9__stream {
    const uint8_t *panel, *next;
    const float *scales;
    const uint16_t *marks;
    float *y;
};

/* Tiles of block `block` that are marked in any of n panels. */
FP9__INLINE uint32_t fp9__marked_in(enum fp9_format f, const struct fp9__stream s[], unsigned n, size_t block)
{
    uint32_t marked = 0;
    for (unsigned i = 0; i < n && f == FP9_E4M3; i++) marked |= s[i].marks[block];
    return marked;
}

/* Adds the products of n panels with three tokens or more to y. */
void fp9__avx2_many(enum fp9_format f, const struct fp9__stream *s, size_t n, size_t inputs,
                    const struct fp9_rows *rows, size_t y_stride);

#endif
