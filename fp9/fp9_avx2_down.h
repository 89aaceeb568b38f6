/* fp9_avx2_down.h: what the nest of the down product (fp9_avx2_down.c) and its kernels tell each other:
 * fp9_avx2_share_direct.c for few pairs of fp9, fp9_avx2_share.c for one or two of e4m3,
 * fp9_avx2_share_many.c for more; fp9_avx512_down.c for all. */
#ifndef FP9_FP9_AVX2_DOWN_H
#define FP9_FP9_AVX2_DOWN_H

#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    FP9__PAIR = FP9_DOWN_STRIP * FP9_LANES, // floats from a pair's activations to the next one's
    FP9__MOST_CHUNK = 64,                   // slices of a chunk: as many of the widest matrix
    FP9__FEW = 8,                           // most pairs whose products are made together by a compiler
    FP9__STREAMS = 4, // parts of what is read next that are fetched side by side: from DRAM one after the
                      // other takes a fifth longer
};

struct share;
/* Adds it to the sums. */
typedef void fp9__share_fn(struct share *h);
/* The one for shares of `pairs` pairs, 1 or more. */
typedef fp9__share_fn *fp9__share_of_fn(enum fp9_format f, size_t pairs);

struct nest {
    const struct fp9_down *d;
    fp9__share_of_fn *share_of;
    size_t quad_bytes, strips; // of a quad; strips that are whole
    size_t panel, quads;       // row panels of this pass
    size_t stored;             // of its row panels the matrix has
    size_t token, tokens;      // tokens of this pass
    size_t chunk;              // most slices at a time, a power of two
    size_t step;               // cells from a token's sums to the next one's
    __m256 *sums;              // (tokens, quads, slices of a chunk, panels of a quad)
    __m256 *waiting;           // (levels, tokens, quads, panels of a quad): left children of the tree
};

/* Bytes of the whole strips of a quad. */
static inline size_t fp9__quad_strip(enum fp9_format f)
{
    return FP9_QUAD * fp9__whole_strip(f);
}

/* A visit: what one expert adds to the quads of a pass, one after the other: its pairs [pair, end), slices
 * [first, first + count). */
struct share {
    const struct nest *nest;
    const struct fp9_down_expert *expert;
    size_t index; // of the quad
    const uint8_t *quad;
    const uint8_t *ahead;  // what is fetched meanwhile, FP9__STREAMS lines at a time:
    size_t line, stream;   //   bytes to the next lines, and from a line to the next stream's
    const float *scales;   // of the quad's rows
    const uint16_t *marks; // of the quad, if it is e4m3
    size_t column;         // of slice 0 in its scale block
    size_t first, count;
    size_t from, bytes; // where these slices lie in a quad
    size_t pair, end;
};

/* What of it belongs to the quad it stands at. */
static inline void fp9__at_quad(struct share *h)
{
    const struct nest *n = h->nest;
    const size_t row = n->panel + FP9_QUAD * h->index, quad = row / FP9_QUAD;
    h->quad = h->expert->panels + quad * n->quad_bytes;
    h->marks = h->expert->marks ? h->expert->marks + quad * fp9_down_marks(n->d->slices) : NULL;
    h->scales = h->expert->scales + 8 * row / FP9_BLOCK * n->d->scale_stride;
}

/* On to the next quad. false: there is none. */
static inline bool fp9__next_quad(struct share *h)
{
    if (++h->index == h->nest->quads) return false;
    h->ahead += h->bytes * h->line / (FP9__STREAMS * FP9__TILE_BYTES);
    fp9__at_quad(h);
    return true;
}

/* What is fetched while something else is read: FP9__STREAMS lines at a time, the first one at `at`, `stream`
 * bytes from one to the next, `line` bytes to the next ones. */
struct ahead {
    const uint8_t *at;
    size_t line, stream;
};

/* While slices from s on are read. */
FP9__INLINE struct ahead fp9__ahead(enum fp9_format f, const struct share *h, size_t s)
{
    size_t strip = s / FP9__STRIP_TILES - h->first / FP9__STRIP_TILES, t = s % FP9__STRIP_TILES;
    size_t done = strip * (fp9__whole_strip(f) * h->line / FP9__TILE_BYTES) + t * h->line;
    return (struct ahead){h->ahead + done, h->line, h->stream};
}

/* A line: into L1, or, if not `near`, into L2. */
FP9__INLINE void fp9__fetch_line(const uint8_t *line, bool near)
{
    if (near)
        _mm_prefetch((const char *)line, _MM_HINT_T0);
    else
        _mm_prefetch((const char *)line, _MM_HINT_T1);
}

/* As many lines as a tile has in a quad, those of the tile that is `later` tiles later. */
FP9__INLINE void fp9__fetch(const struct ahead *a, size_t later, bool near)
{
    if (near) { // one branch, not one a line
        FP9__UNROLL
        for (size_t i = 0; i < FP9__STREAMS; i++)
            fp9__fetch_line(a->at + later * a->line + i * a->stream, true);
    } else {
        FP9__UNROLL
        for (size_t i = 0; i < FP9__STREAMS; i++)
            fp9__fetch_line(a->at + later * a->line + i * a->stream, false);
    }
}

/* How the tile of slice s is decoded. */
FP9__INLINE enum fp9__way fp9__way_at(enum fp9_format f, const struct share *h, size_t s)
{
    return fp9__way_of(f, f == FP9_E4M3 ? h->marks[s / FP9__GROUP_TILES] : 0, s % FP9__GROUP_TILES);
}

/* Bytes from a panel to the next one in a strip of a quad. */
static inline size_t fp9__slot(enum fp9_format f, const struct nest *n, size_t strip)
{
    return strip < n->strips ? fp9__whole_strip(f) : fp9__strip_bytes(f, 8 * n->d->slices, strip);
}

/* The sums of the pass's first token, from slice s on. */
static inline __m256 *fp9__sums_of(const struct share *h, size_t s)
{
    return h->nest->sums + (h->index * h->nest->chunk + s - h->first) * FP9_QUAD;
}

/* Adds slices [s, stop), of one strip, whose panels lie `slot` bytes apart; pair q's to sums[q]. */
typedef void fp9__strip_fn(enum fp9_format f, const struct share *h, unsigned pairs, size_t slot, size_t s,
                           size_t stop, __m256 *const sums[]);

/* All strips of the quad it stands at, for `pairs` pairs. To be inlined with constants: whole strips get a
 * code of their own. */
FP9__INLINE void fp9__strips(enum fp9_format f, const struct share *h, unsigned pairs, fp9__strip_fn *slices)
{
    const struct nest *n = h->nest;
    const size_t end = h->first + h->count;
    __m256 *sums[FP9__FEW];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++)
        sums[q] = fp9__sums_of(h, h->first) + (n->d->token[h->pair + q] - n->token) * n->step;
    for (size_t s = h->first, stop; s < end; s = stop) {
        size_t strip = s / FP9__STRIP_TILES, next = FP9__STRIP_TILES * (strip + 1);
        stop = next < end ? next : end;
        if (strip < n->strips)
            slices(f, h, pairs, fp9__whole_strip(f), s, stop, sums);
        else
            slices(f, h, pairs, fp9__strip_bytes(f, 8 * n->d->slices, strip), s, stop, sums);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) sums[q] += (stop - s) * FP9_QUAD;
    }
}

/* fp9_down_ops' functions with the kernels that `share_of` chooses. */
void fp9__down_rows(const struct fp9_down *d, size_t first, size_t count, fp9__share_of_fn *share_of);
int fp9__down_some_rows(const struct fp9_down *d, struct fp9_down_walk *at, size_t *work,
                        fp9__share_of_fn *share_of);

fp9__share_of_fn fp9__avx2_share_of;
/* Of fp9, without another pass over the weights. */
fp9__share_fn fp9__share_1, fp9__share_2, fp9__share_3, fp9__share_4, fp9__share_5;
/* Of fp9, six to ten pairs: as two of these, if the visit is long. */
fp9__share_fn fp9__share_groups;
/* Three pairs or more. */
fp9__share_fn fp9__share_many;

#endif
