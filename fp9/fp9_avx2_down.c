/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * By contract every slice has its own chain over the experts, so a token has as many sums of an output as the
 * run has slices: 1 KiB for 32 outputs and 8 slices. The nest is row panels, tokens, slices (a chunk of
 * them), experts, and inside an expert its pairs with all slices of the chunk: what an expert costs once, its
 * pairs' addresses and the branches on their number, is spread over all of them, and its weights are read in
 * one stream. Sums stay in the L2 cache, where each is fetched and put back once for eight multiply-adds;
 * kept in the L1 by fewer slices or tokens at a time, an expert would be visited that much more often, for
 * one or two pairs each. A quad of four row panels lies side by side in memory: with one or two pairs its
 * panels are 4 chains of products a pair, with more it is two couples of panels. */
#include <stdbool.h>

#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    CELLS = FP9_DOWN_CELLS / sizeof(__m256), // of 8 sums: slice sums and waiting nodes of the tree
    HOT_CELLS = 512,                         // slice sums of a pass with few tokens: 16 KiB of L1
    CHUNK = 8,                               // slices of a chunk with many tokens, a power of two
    MOST_VISIT = 20 << 10,                   // bytes of an expert that are read in one go: with those that
                                             // are fetched meanwhile they stay in L1
    MOST_CHUNK = 64,                         // slices: as many of the widest matrix
    FEW = 2,                                 // pairs up to which a quad's four panels are enough chains
    DECODE = 3,                              // what decoding weights costs beside one pair's products
    MOST_FETCHED = 8,                        // pairs whose activations are fetched ahead
    UNPACKED = 8,                            // slices that are unpacked at a time: 4 KiB
    PAGE = 4096,                             //
    STREAMS = 4,                             // parts of what is read next that are fetched side by side: from
                                             // DRAM one after the other takes a fifth longer
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

struct range {
    size_t from, to;
};

/* Bytes of the whole strips of a quad. */
static inline size_t quad_strip(enum fp9_format f)
{
    return FP9_QUAD * fp9__whole_strip(f);
}

/* The pairs of expert e that belong to this pass's tokens. Counted and not searched for: the branches of a
 * search would be guessed wrong for every expert. */
static struct range pairs_of(const struct nest *n, const struct fp9_down_expert *e)
{
    struct range r = {e->pair, (size_t)e->pair + e->pairs};
    if (n->tokens == n->d->tokens) return r;
    const uint32_t *token = n->d->token + e->pair, first = (uint32_t)n->token,
                   end = first + (uint32_t)n->tokens;
    uint32_t before = 0, beyond = 0;
    for (uint32_t i = 0; i < e->pairs; i++) {
        before += token[i] < first;
        beyond += token[i] >= end;
    }
    return (struct range){r.from + before, r.to - beyond};
}

/* What is fetched while something else is read: STREAMS lines at a time, the first one at `at`, `stream`
 * bytes from one to the next, `line` bytes to the next ones. */
struct ahead {
    const uint8_t *at;
    size_t line, stream;
};

/* What one expert adds to a quad: pairs [from, to), slices [first, first + count). */
struct share {
    const struct nest *nest;
    const uint8_t *quad;
    const uint8_t *ahead; // what is fetched meanwhile: struct ahead of the quad's first strip
    size_t line, stream;
    const float *scales;   // of the quad's rows
    const uint16_t *marks; // of the quad, if it is e4m3
    size_t column;         // of slice 0 in its scale block
    size_t first, count;
    size_t from, to; // pairs
    __m256 *sums;    // of the pass's first token, slice `first`
};

/* The sums that a pair adds to, from slice `first` on. */
static inline __m256 *sums_of(const struct share *h, size_t pair)
{
    return h->sums + (h->nest->d->token[pair] - h->nest->token) * h->nest->step;
}

/* What is fetched while slices from s on are read. */
FP9__INLINE struct ahead ahead_of(enum fp9_format f, const struct share *h, size_t s)
{
    size_t strip = s / FP9__STRIP_TILES - h->first / FP9__STRIP_TILES, t = s % FP9__STRIP_TILES;
    size_t done = strip * (fp9__whole_strip(f) * h->line / FP9__TILE_BYTES) + t * h->line;
    return (struct ahead){h->ahead + done, h->line, h->stream};
}

/* As many lines as a tile has in a quad, those of the tile that is `later` tiles later. */
FP9__INLINE void fetch(const struct ahead *a, size_t later)
{
    FP9__UNROLL
    for (size_t i = 0; i < STREAMS; i++)
        _mm_prefetch((const char *)(a->at + later * a->line + i * a->stream), _MM_HINT_T0);
}

/* How the tile of slice s is decoded. */
FP9__INLINE enum fp9__way way_of(enum fp9_format f, const struct share *h, size_t s)
{
    return fp9__way_of(f, f == FP9_E4M3 ? h->marks[s / 16] : 0, s % 16);
}

/* ---- few pairs: products straight from the registers the weights are made in ---- */

/* Four inputs of a tile, at `word` in panel 0 and `slot` bytes later in the next one; `signs` as in the dots.
 * Inputs are the outer loop, so that neighbouring instructions belong to different chains. */
FP9__INLINE void half_tile(enum fp9__way way, const uint8_t *at, size_t slot, __m256i signs[],
                           const float *const hs[], unsigned pairs, __m256 blk[][FP9_QUAD])
{
    __m256i view[FP9_QUAD];
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) view[p] = fp9__first_view(way, fp9__load(at + p * slot));
    FP9__UNROLL
    for (unsigned k = 0; k < 4; k++) {
        __m256 x[FEW];
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) x[q] = fp9__x(way, hs[q] + k);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) {
            if (k == 2) {
                __m256i word = way == FP9__WAY_FP9 ? view[p] : fp9__load(at + p * slot);
                view[p] = fp9__second_view(way, word, signs[p]);
                signs[p] = fp9__next_signs(way, signs[p]);
            }
            __m256 w = fp9__weight(way, view[p], k);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_fmadd_ps(w, x[q], blk[q][p]);
        }
    }
}

/* One slice. */
FP9__INLINE void few_tile(enum fp9__way way, const uint8_t *words, size_t slot, __m256i signs[],
                          const float *hs, const float *hs1, unsigned pairs, __m256 blk[][FP9_QUAD])
{
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const float *x[FEW] = {hs + 4 * (size_t)half, hs1 + 4 * (size_t)half};
        half_tile(way, words + (size_t)FP9__VECTOR * half, slot, signs, x, pairs, blk);
    }
}

/* Slices [s, stop) of one strip, whose panels lie `slot` bytes apart. */
FP9__INLINE void few_slices(enum fp9_format f, const struct share *h, unsigned pairs, size_t slot, size_t s,
                            size_t stop, __m256 *const sums[])
{
    const struct nest *n = h->nest;
    const uint8_t *strip = h->quad + s / FP9__STRIP_TILES * quad_strip(f);
    const float *hs = n->d->hs + h->from * n->d->hs_stride + 8 * s, *hs1 = hs + n->d->hs_stride;
    struct ahead ahead = ahead_of(f, h, s);
    size_t at = 0;
    __m256i signs[FP9_QUAD];
    if (fp9__head(f)) fetch(&ahead, FP9__STRIP_TILES); // what the signs take
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD && f == FP9_FP9; p++)
        signs[p] = fp9__signs(FP9__WAY_FP9, strip + p * slot, s % FP9__STRIP_TILES);
    for (; s < stop; s++, at += FP9_QUAD, hs += 8, hs1 += 8) {
        const size_t t = s % FP9__STRIP_TILES;
        const uint8_t *words = strip + fp9__head(f) + t * FP9__TILE_BYTES;
        __m256 blk[FEW][FP9_QUAD];
        fetch(&ahead, 0);
        ahead.at += ahead.line;
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_setzero_ps();
        if (way_of(f, h, s) == FP9__WAY_SMALL)
            few_tile(FP9__WAY_SMALL, words, slot, signs, hs, hs1, pairs, blk);
        else
            few_tile(fp9__way_of(f, 0, 0), words, slot, signs, hs, hs1, pairs, blk);
        __m256 scale = _mm256_broadcast_ss(h->scales + (h->column + 8 * s) / FP9_BLOCK);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++)
            sums[q][at + p] = _mm256_fmadd_ps(scale, blk[q][p], sums[q][at + p]);
    }
}

FP9__INLINE void share_few(enum fp9_format f, const struct share *h, unsigned pairs)
{
    const struct nest *n = h->nest;
    const size_t end = h->first + h->count;
    __m256 *sums[FEW];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) sums[q] = sums_of(h, h->from + q);
    for (size_t s = h->first, stop; s < end; s = stop) {
        size_t strip = s / FP9__STRIP_TILES, next = FP9__STRIP_TILES * (strip + 1);
        stop = next < end ? next : end;
        if (strip < n->strips)
            few_slices(f, h, pairs, fp9__whole_strip(f), s, stop, sums);
        else
            few_slices(f, h, pairs, fp9__strip_bytes(f, 8 * n->d->slices, strip), s, stop, sums);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) sums[q] += (stop - s) * FP9_QUAD;
    }
}

/* Functions of their own, here and below, so that the compiler gives each all registers. */
#define SHARE_FUNCTION(F, Q)                                                                                 \
    static __attribute__((noinline)) void share_##F##_##Q(const struct share *h)                             \
    {                                                                                                        \
        share_few(F, h, Q);                                                                                  \
    }
SHARE_FUNCTION(FP9_FP9, 1)
SHARE_FUNCTION(FP9_FP9, 2)
SHARE_FUNCTION(FP9_E4M3, 1)
SHARE_FUNCTION(FP9_E4M3, 2)

/* ---- more pairs: the tiles of some slices are unpacked once into L1 and used for all pairs ---- */

/* Slices [first, first + count), count <= UNPACKED. Vector 4 i + p of a tile is inputs 2 i and 2 i + 1 of
 * panel p. */
struct unpacked {
    __m256i w[UNPACKED][FP9_TILE_INPUTS / 2 * FP9_QUAD];
    float scale[UNPACKED];
    size_t first, count;
};

FP9__INLINE void unpack_quad(enum fp9__way way, const uint8_t *strip, size_t slot, size_t t, __m256i *w)
{
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) fp9__unpack(way, strip + p * slot, t, w + p, FP9_QUAD);
}

FP9__INLINE void unpack_slices(enum fp9_format f, const struct share *h, struct unpacked *u)
{
    const struct nest *n = h->nest;
    for (size_t i = 0; i < u->count; i++) {
        size_t s = u->first + i, strip = s / FP9__STRIP_TILES, t = s % FP9__STRIP_TILES;
        size_t slot = strip < n->strips ? fp9__whole_strip(f) : fp9__strip_bytes(f, 8 * n->d->slices, strip);
        const uint8_t *at = h->quad + strip * quad_strip(f);
        u->scale[i] = h->scales[(h->column + 8 * s) / FP9_BLOCK];
        if (way_of(f, h, s) == FP9__WAY_SMALL) {
            unpack_quad(FP9__WAY_SMALL, at, slot, t, u->w[i]);
            u->scale[i] *= FP9_W_SCALE / FP9_E4M3_SCALE;
        } else {
            unpack_quad(fp9__way_of(f, 0, 0), at, slot, t, u->w[i]);
        }
    }
}

static __attribute__((noinline)) void unpack_fp9(const struct share *h, struct unpacked *u)
{
    unpack_slices(FP9_FP9, h, u);
}

static __attribute__((noinline)) void unpack_e4m3(const struct share *h, struct unpacked *u)
{
    unpack_slices(FP9_E4M3, h, u);
}

/* Two inputs of a panel, two pairs. Written down as it shall run: the compiler would load a vector of weights
 * for each of its uses. */
FP9__INLINE void two_inputs(const __m256i *w, __m256i upper, const __m256 x[2], const __m256 x1[2],
                            __m256 *blk, __m256 *blk1)
{
    __m256i even, odd;
    __asm__ volatile("vmovdqa %4, %3\n\tvpand %5, %3, %2\n\tvpslld $16, %3, %3\n\t"
                     "vfmadd231ps %2, %6, %0\n\tvfmadd231ps %2, %7, %1\n\t"
                     "vfmadd231ps %3, %8, %0\n\tvfmadd231ps %3, %9, %1"
                     : "+x"(*blk), "+x"(*blk1), "=&x"(even), "=&x"(odd)
                     : "m"(*w), "x"(upper), "x"(x[0]), "x"(x1[0]), "x"(x[1]), "x"(x1[1]));
}

/* Eight chains of products: two pairs with the four panels. More would not be faster: their sums would all be
 * stored at once, and nothing else runs meanwhile. `fetching`: what is read next, a part for each slice. */
FP9__INLINE void two_pairs(const struct share *h, const struct unpacked *u, size_t pair, bool fetching)
{
    const enum fp9_format f = h->nest->d->format;
    struct ahead ahead = {0};
    if (fetching) ahead = ahead_of(f, h, u->first);
    const struct fp9_down *d = h->nest->d;
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    const float *hs = d->hs + pair * d->hs_stride + 8 * u->first, *hs1 = hs + d->hs_stride;
    __m256 *sum = sums_of(h, pair) + (u->first - h->first) * FP9_QUAD;
    __m256 *sum1 = sums_of(h, pair + 1) + (u->first - h->first) * FP9_QUAD;
    for (size_t i = 0; i < u->count; i++, hs += 8, hs1 += 8, sum += FP9_QUAD, sum1 += FP9_QUAD) {
        const __m256i *w = u->w[i];
        __m256 blk[FP9_QUAD], blk1[FP9_QUAD];
        if (fetching) {
            fetch(&ahead, 0);
            ahead.at += ahead.line;
            if ((u->first + i) % FP9__STRIP_TILES == FP9__STRIP_TILES - 1 && fp9__head(f)) {
                fetch(&ahead, 0);
                ahead.at += ahead.line * FP9__VECTOR / FP9__TILE_BYTES;
            }
        }
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) blk[p] = blk1[p] = _mm256_setzero_ps();
        FP9__UNROLL
        for (unsigned k = 0; k < FP9_TILE_INPUTS; k += 2) {
            __m256 x[2] = {_mm256_broadcast_ss(hs + k), _mm256_broadcast_ss(hs + k + 1)};
            __m256 x1[2] = {_mm256_broadcast_ss(hs1 + k), _mm256_broadcast_ss(hs1 + k + 1)};
            FP9__UNROLL
            for (unsigned p = 0; p < FP9_QUAD; p++)
                two_inputs(w + FP9_QUAD / 2 * k + p, upper, x, x1, &blk[p], &blk1[p]);
        }
        __m256 scale = _mm256_broadcast_ss(u->scale + i);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) sum[p] = _mm256_fmadd_ps(scale, blk[p], sum[p]);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) sum1[p] = _mm256_fmadd_ps(scale, blk1[p], sum1[p]);
    }
}

static __attribute__((noinline)) void pairs_2(const struct share *h, const struct unpacked *u, size_t pair)
{
    two_pairs(h, u, pair, false);
}

static __attribute__((noinline)) void first_pairs_2(const struct share *h, const struct unpacked *u)
{
    two_pairs(h, u, h->from, true);
}

static __attribute__((noinline)) void pairs_1(const struct share *h, const struct unpacked *u, size_t pair)
{
    const struct fp9_down *d = h->nest->d;
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    const float *hs = d->hs + pair * d->hs_stride + 8 * u->first;
    __m256 *sum = sums_of(h, pair) + (u->first - h->first) * FP9_QUAD;
    for (size_t i = 0; i < u->count; i++, hs += 8, sum += FP9_QUAD) {
        __m256 blk[FP9_QUAD];
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) blk[p] = _mm256_setzero_ps();
        FP9__UNROLL
        for (unsigned k = 0; k < FP9_TILE_INPUTS; k += 2) {
            __m256 even = _mm256_broadcast_ss(hs + k), odd = _mm256_broadcast_ss(hs + k + 1);
            FP9__UNROLL
            for (unsigned p = 0; p < FP9_QUAD; p++) {
                __m256i w = u->w[i][FP9_QUAD / 2 * k + p];
                blk[p] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(w, upper)), even, blk[p]);
                blk[p] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), odd, blk[p]);
            }
        }
        __m256 scale = _mm256_broadcast_ss(u->scale + i);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) sum[p] = _mm256_fmadd_ps(scale, blk[p], sum[p]);
    }
}

static void share_many(const struct share *h)
{
    struct unpacked u;
    const size_t end = h->first + h->count;
    for (u.first = h->first; u.first < end; u.first += u.count) {
        u.count = end - u.first < UNPACKED ? end - u.first : UNPACKED;
        if (h->nest->d->format == FP9_FP9)
            unpack_fp9(h, &u);
        else
            unpack_e4m3(h, &u);
        size_t pair = h->from + 2;
        first_pairs_2(h, &u);
        for (; pair + 1 < h->to; pair += 2) pairs_2(h, &u, pair);
        if (pair < h->to) pairs_1(h, &u, pair);
    }
}

/* ---- the nest ---- */

/* Quad q of this pass. */
static const uint8_t *quad_of(const struct nest *n, const struct fp9_down_expert *e, size_t q)
{
    return e->panels + (n->panel / FP9_QUAD + q) * n->quad_bytes;
}

/* Activations of the first pairs of an expert, slices [first, first + count): read from the L3 cache when its
 * turn comes they would stop its first products. */
static void fetch_pairs(const struct fp9_down *d, struct range r, size_t first, size_t count)
{
    size_t end = r.to - r.from > MOST_FETCHED ? r.from + MOST_FETCHED : r.to;
    for (size_t q = r.from; q < end; q++)
        for (size_t i = 0; i < 8 * count; i += 16)
            _mm_prefetch((const char *)(d->hs + q * d->hs_stride + 8 * first + i), _MM_HINT_T0);
}

/* Adds the part of expert e and its pairs r to the sums of slices [first, first + count). `next`: the quads
 * that are fetched meanwhile. */
static void expert_slices(const struct nest *n, const struct fp9_down_expert *e, struct range r, size_t first,
                          size_t count, const uint8_t *next)
{
    struct share h = {
        .nest = n, .column = e->column, .first = first, .count = count, .from = r.from, .to = r.to};
    size_t pairs = r.to - r.from, strips = (count + FP9__STRIP_TILES - 1) / FP9__STRIP_TILES;
    size_t from = first / FP9__STRIP_TILES * quad_strip(n->d->format),
           bytes = strips * quad_strip(n->d->format);
    static void (*const few[FP9_FORMATS][FEW])(const struct share *) = {{share_FP9_FP9_1, share_FP9_FP9_2},
                                                                        {share_FP9_E4M3_1, share_FP9_E4M3_2}};
    void (*share)(const struct share *) =
        pairs > 0 && pairs <= FEW ? few[n->d->format][pairs - 1] : share_many;
    const size_t marks = fp9_down_marks(n->d->slices);
    if (bytes > n->quad_bytes - from) bytes = n->quad_bytes - from;
    h.line = FP9__TILE_BYTES;
    h.stream = n->quads * bytes / STREAMS;
    if (h.stream < PAGE) { // one stream: several in a page would hinder each other
        h.line = (size_t)STREAMS * FP9__TILE_BYTES;
        h.stream = FP9__TILE_BYTES;
    }
    for (size_t i = 0; i < n->quads && pairs > 0; i++) {
        size_t row = n->panel + FP9_QUAD * i;
        h.quad = quad_of(n, e, i);
        h.marks = e->marks ? e->marks + row / FP9_QUAD * marks : NULL;
        h.ahead = next + from + i * (bytes * h.line / (STREAMS * FP9__TILE_BYTES));
        h.sums = n->sums + i * n->tokens * n->step;
        h.scales = e->scales + 8 * row / FP9_BLOCK * n->d->scale_stride;
        share(&h);
    }
}

static void add(__m256 *sum, const __m256 *left, const __m256 *right)
{
    for (size_t p = 0; p < FP9_QUAD; p++) sum[p] = _mm256_add_ps(left[p], right[p]);
}

/* The complete subtree over 1, 2, 4 or 8 slices whose quads' sums lie side by side. The slices' sums
 * are put back to zero for the next chunk, while they are in L1. */
FP9__INLINE void add_slices(__m256 *sum, unsigned slices, __m256 node[FP9_QUAD])
{
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) {
        __m256 s[CHUNK];
        FP9__UNROLL
        for (unsigned i = 0; i < slices; i++) {
            s[i] = sum[FP9_QUAD * i + p];
            sum[FP9_QUAD * i + p] = _mm256_setzero_ps();
        }
        FP9__UNROLL
        for (unsigned n = slices; n > 1; n /= 2) FP9__UNROLL
        for (unsigned i = 0; i < n / 2; i++) s[i] = _mm256_add_ps(s[2 * i], s[2 * i + 1]);
        node[p] = s[0];
    }
}

/* The same for any level: eight slices at a time, then their nodes. */
static void add_subtree(__m256 *sum, unsigned level, __m256 node[FP9_QUAD])
{
    switch (level) {
    case 0:
        add_slices(sum, 1, node);
        return;
    case 1:
        add_slices(sum, 2, node);
        return;
    case 2:
        add_slices(sum, 4, node);
        return;
    case 3:
        add_slices(sum, 8, node);
        return;
    default:
        break;
    }
    __m256 right[FP9_QUAD];
    add_subtree(sum, level - 1, node);
    add_subtree(sum + ((size_t)FP9_QUAD << (level - 1)), level - 1, right);
    add(node, node, right);
}

static void zero(__m256 *to, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = _mm256_setzero_ps();
}

/* Row i of the cells: (quads, tokens). */
static void store_subtree(const struct nest *n, size_t subtree, size_t i, const __m256 *sum)
{
    size_t quad = i / n->tokens, token = n->token + i % n->tokens;
    float *out =
        n->d->out + subtree * n->d->out_subtree + token * n->d->out_token + 8 * (n->panel + FP9_QUAD * quad);
    size_t left = n->stored - FP9_QUAD * quad, panels = left < FP9_QUAD ? left : FP9_QUAD;
    for (size_t p = 0; p < panels; p++) _mm256_storeu_ps(out + 8 * p, sum[p]);
}

/* All slices of [first, first + count) have all their experts: adds up the nodes that are complete with them
 * and stores the subtrees among these; the last node waits for its sibling if it has one to come. */
static void add_nodes(const struct nest *n, struct fp9_down_walk *w, size_t first, size_t count)
{
    const struct fp9_down *d = n->d;
    const size_t cells = n->quads * n->tokens;
    for (size_t s = 0; s < count;) {
        unsigned top = fp9_subtree_level(d->first_slice + w->begin, d->slices - w->begin), base = top, up = 0;
        while ((size_t)1 << base > n->chunk) base--;
        for (size_t index = (first + s - w->begin) >> base; index & 1; index >>= 1) up++;
        for (size_t i = 0; i < cells; i++) {
            __m256 node[FP9_QUAD];
            add_subtree(n->sums + i * n->step + FP9_QUAD * s, base, node);
            for (unsigned level = 0; level < up; level++)
                add(node, n->waiting + FP9_QUAD * (level * cells + i), node);
            if (base + up == top)
                store_subtree(n, w->subtree, i, node);
            else
                for (size_t p = 0; p < FP9_QUAD; p++) n->waiting[FP9_QUAD * (up * cells + i) + p] = node[p];
        }
        s += (size_t)1 << base;
        if (base + up < top) continue;
        w->subtree++;
        w->begin = first + s;
    }
}

/* Quads that are read when expert e is over, some time before they are needed: with one quad a visit is too
 * short to fetch the very next one. After the last expert come the first ones of the next panels. */
static const uint8_t *quads_after(const struct nest *n, size_t e)
{
    size_t then = e + (n->quads > 1 ? 1 : 2), experts = n->d->experts;
    if (then < experts) return quad_of(n, &n->d->expert[then], 0);
    then -= experts;
    return quad_of(n, &n->d->expert[then < experts ? then : 0], n->quads);
}

/* Experts from where the walk stands. 0: *work is used up before the last. */
static int experts(const struct nest *n, size_t count, struct fp9_down_walk *w, size_t *work)
{
    const struct fp9_down *d = n->d;
    if (w->expert == d->experts) return 1;
    struct range r = pairs_of(n, &d->expert[w->expert]), next;
    for (; w->expert < d->experts; w->expert++, r = next) {
        if (*work == 0) return 0;
        next = pairs_of(n, &d->expert[w->expert + 1 < d->experts ? w->expert + 1 : 0]);
        fetch_pairs(d, next, w->slice, count);
        expert_slices(n, &d->expert[w->expert], r, w->slice, count, quads_after(n, w->expert));
        size_t pairs = r.to - r.from, tiles = n->quads * FP9_QUAD * count;
        size_t cost = pairs ? (pairs + DECODE) * tiles * FP9_LANES * FP9_LANES : 1;
        *work = *work > cost ? *work - cost : 0;
    }
    return 1;
}

/* Goes on until *work is used up. 1: the pass is over. */
static int pass(const struct nest *n, struct fp9_down_walk *w, size_t *work)
{
    const struct fp9_down *d = n->d;
    while (w->slice < d->slices) {
        size_t left = d->slices - w->slice, count = n->chunk - (d->first_slice + w->slice) % n->chunk;
        if (count > left) count = left;
        if (w->expert == 0 && w->slice == 0) zero(n->sums, n->quads * n->tokens * n->step);
        if (!experts(n, count, w, work)) return 0;
        add_nodes(n, w, w->slice, count);
        w->slice += count;
        w->expert = 0;
    }
    return 1;
}

/* As many quads as let the sums of all slices stay in L1. */
static size_t quads_of_pass(const struct fp9_down *d)
{
    size_t quads = HOT_CELLS / (d->slices * d->tokens) / FP9_QUAD;
    size_t most = MOST_VISIT / fp9_quad_bytes(d->format, 8 * d->slices);
    if (quads > most) quads = most;
    return quads < 1 ? 1 : quads;
}

/* All slices, or as many as let the sums of a quad stay in L1, but CHUNK of them in any case. */
static size_t slices_of_chunk(const struct fp9_down *d)
{
    size_t chunk = 1;
    while (chunk < d->slices && chunk < MOST_CHUNK &&
           (chunk < CHUNK || 2 * chunk * FP9_QUAD * d->tokens <= HOT_CELLS))
        chunk *= 2;
    return chunk;
}

static int some_rows(const struct fp9_down *d, struct fp9_down_walk *w, size_t *work)
{
    struct nest n = {.d = d,
                     .quad_bytes = fp9_quad_bytes(d->format, 8 * d->slices),
                     .strips = d->slices / FP9__STRIP_TILES,
                     .chunk = slices_of_chunk(d),
                     .waiting = w->cells};
    size_t levels = 0, quads = quads_of_pass(d);
    while (d->slices >> levels > n.chunk) levels++; // as many as the largest subtree has waiting nodes
    size_t most = CELLS / (FP9_QUAD * quads * (n.chunk + levels)), parts = (d->tokens + most - 1) / most;
    n.step = FP9_QUAD * n.chunk;
    for (; w->panel < w->count; w->panel += FP9_QUAD * quads, w->part = 0) {
        size_t left = w->count - w->panel;
        n.panel = w->first + w->panel;
        n.stored = left < FP9_QUAD * quads ? left : FP9_QUAD * quads;
        n.quads = (n.stored + FP9_QUAD - 1) / FP9_QUAD;
        for (; w->part < parts; w->part++) {
            n.token = d->tokens * w->part / parts;
            n.tokens = d->tokens * (w->part + 1) / parts - n.token;
            n.sums = n.waiting + levels * n.quads * n.tokens * FP9_QUAD;
            if (!pass(&n, w, work)) return 0;
            w->slice = w->expert = w->subtree = w->begin = 0;
        }
    }
    return 1;
}

static void rows(const struct fp9_down *d, size_t first, size_t count)
{
    __m256 cells[CELLS];
    size_t work = SIZE_MAX;
    struct fp9_down_walk w = {.first = first, .count = count, .cells = cells};
    some_rows(d, &w, &work);
}

const struct fp9_down_ops fp9__avx2_down = {rows, some_rows};
