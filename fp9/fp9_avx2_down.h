/* fp9_avx2_down.h: what the nest of the AVX2 down product (fp9_avx2_down.c) and its kernels
 * (fp9_avx2_share.c) tell each other. */
#ifndef FP9_FP9_AVX2_DOWN_H
#define FP9_FP9_AVX2_DOWN_H

#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    FP9__STREAMS = 4, // parts of what is read next that are fetched side by side: from DRAM one after the
                      // other takes a fifth longer
};

struct nest {
    const struct fp9_down *d;
    size_t quad_bytes, strips; // of a quad; strips that are whole
    size_t panel, quads;       // row panels of this pass
    size_t stored;             // of its row panels the matrix has
    size_t token, tokens;      // tokens of this pass
    size_t chunk;              // most slices at a time, a power of two
    size_t step;               // cells of a token: its slices' sums of a quad
    __m256 *sums;              // (quads, tokens, slices of a chunk, panels of a quad)
    __m256 *waiting;           // (levels, quads, tokens, panels of a quad): left children of the tree
};

/* Bytes of the whole strips of a quad. */
static inline size_t fp9__quad_strip(enum fp9_format f)
{
    return FP9_QUAD * fp9__whole_strip(f);
}

/* What one expert adds to a quad: pairs [pair, end), slices [first, first + count). */
struct share {
    const struct nest *nest;
    const uint8_t *quad;
    const uint8_t *ahead;  // what is fetched meanwhile, FP9__STREAMS lines at a time:
    size_t line, stream;   //   bytes to the next lines, and from a line to the next stream's
    const float *scales;   // of the quad's rows
    const uint16_t *marks; // of the quad, if it is e4m3
    size_t column;         // of slice 0 in its scale block
    size_t first, count;
    size_t from, bytes; // where these slices lie in a quad
    size_t pair, end;
    __m256 *sums; // of the pass's first token, slice `first`
};

/* Adds it to the sums. */
typedef void fp9__share_fn(const struct share *h);

/* For shares of `pairs` pairs, 1 or more. */
fp9__share_fn *fp9__share_of(enum fp9_format f, size_t pairs);

#endif
