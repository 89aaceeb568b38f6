/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * Two loads of memory want opposite loop orders: a decode step reads every expert's panels once, in order, so
 * slices are the inner loop; a prefill step has hundreds of tokens whose sums must stay in L1, so slices are
 * the outer one. Both are one nest over chunks of slices: as many slices at a time as the sums' memory
 * allows. Products are made quad by quad, four row panels that lie side by side in memory: one stream of
 * weights, 4 chains of products for each pair of a few, 4 x 3 accumulators with more, where a tile is decoded
 * into L1 once for all tokens of its expert. */
#include <stdbool.h>

#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    CELLS = 4096,     // of 8 sums: 128 KiB of stack for slice sums and waiting nodes of the tree
    HOT_CELLS = 512,  // slice sums kept at a time: 16 KiB, leaves room in L1 for weights and activations
    MOST_PANELS = 64, // row panels of a pass: an expert's are read in one go
    FEW = 2,          // pairs up to which decoding into L1 first costs more than it saves
    PAIRS = 3,    // x FP9_QUAD = 12 accumulators, which with 3 activations and a weight fill the registers
    DECODE = 3,   // what decoding weights costs beside one pair's products
    AHEAD = 4096, // bytes of prefetch: one stream, so twice the distance of the dots' (fp9_avx2.c)
    QUAD_STRIP = FP9_QUAD * FP9__STRIP_BYTES,
};

struct nest {
    const struct fp9_down *d;
    size_t quad_bytes, strips; // of a quad; strips that are whole
    size_t panel, panels;      // row panels of this pass, in whole quads
    size_t stored;             // of these the matrix has
    size_t token, tokens;      // tokens of this pass
    size_t width;              // cells of one slice: tokens * panels
    __m256 *sums;              // (slices of a chunk, tokens, panels)
    __m256 *waiting;           // (levels, tokens, panels): left children of the tree
};

/* Pairs of expert e that belong to this pass's tokens. */
static size_t first_pair(const struct fp9_down *d, const struct fp9_down_expert *e, size_t token)
{
    size_t low = e->pair, high = low + e->pairs;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->token[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What one expert adds to a quad: pairs [from, to), slices [first, first + count). */
struct share {
    const struct nest *nest;
    const uint8_t *quad;
    const uint8_t *ahead; // what is read about AHEAD bytes later
    const float *scales;  // of the quad's rows
    size_t column;        // of slice 0 in its scale block
    size_t first, count, from, to;
    __m256 *sums; // of slice `first`, the pass's first token, the quad's first panel
};

/* ---- few pairs: products straight from the registers the weights are made in ---- */

/* Four inputs of a tile, at `word` in panel 0 and `slot` bytes later in the next one; `signs` as in the dots.
 * Inputs are the outer loop, so that neighbouring instructions belong to different chains. */
FP9__INLINE void half_tile(const uint8_t *at, size_t slot, __m256i signs[], const float *const hs[],
                           unsigned pairs, __m256 blk[][FP9_QUAD])
{
    __m256i word[FP9_QUAD];
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) word[p] = fp9__load(at + p * slot);
    FP9__UNROLL
    for (unsigned k = 0; k < 4; k++) {
        __m256 x[FEW];
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) x[q] = _mm256_broadcast_ss(hs[q] + k);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) {
            if (k == 2) {
                word[p] = _mm256_xor_si256(word[p], signs[p]);
                signs[p] = _mm256_add_epi32(signs[p], signs[p]);
            }
            __m256 w = fp9__weight(word[p], word[p], k);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_fmadd_ps(w, x[q], blk[q][p]);
        }
    }
}

/* Slices [s, stop) of one strip, whose panels lie `slot` bytes apart. */
FP9__INLINE void few_slices(const struct share *h, unsigned pairs, size_t slot, size_t s, size_t stop,
                            __m256 *const sums[])
{
    const struct nest *n = h->nest;
    const size_t width = n->width, hs_stride = n->d->hs_stride, from = s / FP9__STRIP_TILES * QUAD_STRIP;
    const uint8_t *strip = h->quad + from, *ahead = h->ahead + from;
    const float *hs = n->d->hs + s * hs_stride + 8 * h->from;
    const __m128i shift = _mm_cvtsi32_si128((int)(2 * (s % FP9__STRIP_TILES)));
    size_t at = 0;
    __m256i signs[FP9_QUAD];
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) signs[p] = _mm256_sll_epi32(fp9__load(strip + p * slot), shift);
    _mm_prefetch((const char *)(ahead + 4 * FP9_QUAD * FP9__TILE_BYTES), _MM_HINT_T0);
    _mm_prefetch((const char *)(ahead + 4 * FP9_QUAD * FP9__TILE_BYTES + 64), _MM_HINT_T0);
    for (; s < stop; s++, at += width, hs += hs_stride) {
        const size_t t = s % FP9__STRIP_TILES;
        const uint8_t *words = strip + FP9__VECTOR + t * FP9__TILE_BYTES;
        __m256 blk[FEW][FP9_QUAD];
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) {
            _mm_prefetch((const char *)(ahead + (FP9_QUAD * t + p) * FP9__TILE_BYTES), _MM_HINT_T0);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_setzero_ps();
        }
        FP9__UNROLL
        for (unsigned half = 0; half < 2; half++) {
            const float *x[FEW] = {hs + 4 * (size_t)half, hs + 8 + 4 * (size_t)half};
            half_tile(words + (size_t)FP9__VECTOR * half, slot, signs, x, pairs, blk);
        }
        __m256 scale = _mm256_broadcast_ss(h->scales + (h->column + 8 * s) / FP9_BLOCK);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++)
            sums[q][at + p] = _mm256_fmadd_ps(scale, blk[q][p], sums[q][at + p]);
    }
}

FP9__INLINE void share_few(const struct share *h, unsigned pairs)
{
    const struct nest *n = h->nest;
    const size_t end = h->first + h->count;
    __m256 *sums[FEW];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++)
        sums[q] = h->sums + (n->d->token[h->from + q] - n->token) * n->panels;
    for (size_t s = h->first, stop; s < end; s = stop) {
        size_t strip = s / FP9__STRIP_TILES, next = FP9__STRIP_TILES * (strip + 1);
        stop = next < end ? next : end;
        if (strip < n->strips)
            few_slices(h, pairs, FP9__STRIP_BYTES, s, stop, sums);
        else
            few_slices(h, pairs, fp9__strip_bytes(8 * n->d->slices, strip), s, stop, sums);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) sums[q] += (stop - s) * n->width;
    }
}

/* Functions of their own, here and below, so that the compiler gives each all registers. */
static __attribute__((noinline)) void share_1(const struct share *h)
{
    share_few(h, 1);
}

static __attribute__((noinline)) void share_2(const struct share *h)
{
    share_few(h, 2);
}

/* ---- more pairs ---- */

/* Neighbouring pairs of one expert and slice. */
struct batch {
    const float *w;        // the quad's decoded tiles: (8 inputs, panels)
    const float *hs;       // of the first pair, 8 floats each
    const uint32_t *token; // of each pair
    __m256 *sums;          // of token `first`, `panels` each
    size_t first, panels;
    float scale;
};

static inline __m256 *sums_of(const struct batch *b, uint32_t token)
{
    return b->sums + (token - b->first) * b->panels;
}

/* The first `pairs` of a batch. */
FP9__INLINE void some_pairs(const struct batch *b, unsigned pairs)
{
    const float *w = b->w, *hs = b->hs;
    __m256 blk[PAIRS][FP9_QUAD];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) blk[q][p] = _mm256_setzero_ps();
    FP9__UNROLL
    for (unsigned k = 0; k < 8; k++) {
        __m256 h[PAIRS];
        __asm__ volatile("" ::: "memory"); // no load before its turn: all registers are taken
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) h[q] = _mm256_broadcast_ss(hs + 8 * q + k);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) {
            __m256 wk = _mm256_load_ps(w + 8 * (FP9_QUAD * k + p));
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_fmadd_ps(wk, h[q], blk[q][p]);
        }
    }
    __m256 s = _mm256_set1_ps(b->scale);
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) {
        __m256 *sum = sums_of(b, b->token[q]);
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) sum[p] = _mm256_fmadd_ps(s, blk[q][p], sum[p]);
    }
}

#define PAIRS_FUNCTION(Q)                                                                                    \
    static __attribute__((noinline)) void pairs_##Q(const struct batch *b)                                   \
    {                                                                                                        \
        some_pairs(b, Q);                                                                                    \
    }
PAIRS_FUNCTION(1)
PAIRS_FUNCTION(2)
PAIRS_FUNCTION(3)

/* One slice: pairs in parts of three, the last of two; a single one only where there is no more. */
static void slice_many(const struct share *h, size_t s, const float *w, __m256 *sums)
{
    static void (*const size[PAIRS])(const struct batch *) = {pairs_1, pairs_2, pairs_3};
    const struct nest *n = h->nest;
    struct batch b = {.w = w,
                      .hs = n->d->hs + s * n->d->hs_stride + 8 * h->from,
                      .token = n->d->token + h->from,
                      .sums = sums,
                      .first = n->token,
                      .panels = n->panels,
                      .scale = h->scales[(h->column + 8 * s) / FP9_BLOCK]};
    for (size_t left = h->to - h->from, part; left > 0; left -= part) {
        part = left == 2 || left == 4 ? 2 : left < PAIRS ? left : PAIRS;
        size[part - 1](&b);
        b.hs += 8 * part;
        b.token += part;
    }
}

static void share_many(const struct share *h)
{
    const struct nest *n = h->nest;
    float w[FP9_QUAD * 64] __attribute__((aligned(64)));
    for (size_t s = h->first; s < h->first + h->count; s++) {
        size_t strip = s / FP9__STRIP_TILES, t = s % FP9__STRIP_TILES, at = strip * QUAD_STRIP;
        size_t slot = fp9__strip_bytes(8 * n->d->slices, strip);
        for (unsigned p = 0; p < FP9_QUAD; p++) {
            const uint8_t *ahead = h->ahead + at + p * slot;
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)(ahead + FP9__VECTOR + t * FP9__TILE_BYTES), _MM_HINT_T0);
            fp9__tile(h->quad + at + p * slot, t, w + FP9_LANES * p, FP9_LANES * FP9_QUAD);
        }
        slice_many(h, s, w, h->sums + (s - h->first) * n->width);
    }
}

/* ---- the nest ---- */

static const uint8_t *quad_of(const struct nest *n, const struct fp9_down_expert *e, size_t p)
{
    return e->panels + (n->panel + p) / FP9_QUAD * n->quad_bytes;
}

/* Adds expert e's part to the sums of slices [first, first + count). `next`: the quads read after it. Returns
 * its pairs. */
static size_t expert_slices(const struct nest *n, const struct fp9_down_expert *e, size_t first, size_t count,
                            const uint8_t *next)
{
    struct share h = {.nest = n, .column = e->column, .first = first, .count = count};
    h.from = n->tokens == n->d->tokens ? e->pair : first_pair(n->d, e, n->token);
    h.to = n->tokens == n->d->tokens ? (size_t)e->pair + e->pairs : first_pair(n->d, e, n->token + n->tokens);
    if (h.from == h.to) return 0;
    size_t pairs = h.to - h.from, end = n->panels / FP9_QUAD, distance = AHEAD / n->quad_bytes + 1;
    void (*share)(const struct share *) = pairs == 1 ? share_1 : pairs == 2 ? share_2 : share_many;
    for (size_t i = 0; i < end; i++) {
        size_t row = n->panel + FP9_QUAD * i, later = i + distance;
        h.quad = quad_of(n, e, FP9_QUAD * i);
        h.ahead = later < end ? h.quad + distance * n->quad_bytes
                              : next + (later - end < end ? later - end : 0) * n->quad_bytes;
        h.sums = n->sums + FP9_QUAD * i;
        h.scales = e->scales + 8 * row / FP9_BLOCK * n->d->scale_stride;
        share(&h);
    }
    return pairs;
}

/* Loops over cells: counts and pointers in registers, which the compiler cannot assume of a struct's. */
static void zero(__m256 *to, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = _mm256_setzero_ps();
}

static void copy(__m256 *to, const __m256 *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

static void add(__m256 *sum, const __m256 *left, const __m256 *right, size_t n)
{
    for (size_t i = 0; i < n; i++) sum[i] = _mm256_add_ps(left[i], right[i]);
}

static void store_subtree(const struct nest *n, size_t subtree, const __m256 *sum)
{
    float *out = n->d->out + subtree * n->d->out_subtree + n->token * n->d->out_token + 8 * n->panel;
    for (size_t t = 0; t < n->tokens; t++)
        for (size_t p = 0; p < n->stored; p++)
            _mm256_storeu_ps(out + t * n->d->out_token + 8 * p, sum[t * n->panels + p]);
}

/* Slice `index` of its subtree is complete in `sum`: adds up all nodes that are complete with it and leaves
 * the last one where it waits for its sibling. Returns its level; at `top` it is left in `sum`. */
static unsigned add_nodes(const struct nest *n, size_t index, unsigned top, __m256 *sum)
{
    unsigned level = 0;
    while (index >> level & 1) {
        const __m256 *left = n->waiting + level * n->width;
        level++;
        bool stays = index >> level & 1 || level == top;
        add(stays ? sum : n->waiting + level * n->width, left, sum, n->width);
    }
    if (level == 0 && top > 0) copy(n->waiting, sum, n->width);
    return level;
}

/* Experts from where the walk stands. 0: *work is used up before the last. */
static int experts(const struct nest *n, size_t count, struct fp9_down_walk *w, size_t *work)
{
    const struct fp9_down *d = n->d;
    for (; w->expert < d->experts; w->expert++) {
        if (*work == 0) return 0;
        bool more = w->expert + 1 < d->experts;
        const uint8_t *next = quad_of(n, &d->expert[more ? w->expert + 1 : 0], more ? 0 : n->panels);
        size_t pairs = expert_slices(n, &d->expert[w->expert], w->slice, count, next);
        size_t cost = pairs ? (pairs + DECODE) * n->panels * count * FP9_LANES * FP9_LANES : 1;
        *work = *work > cost ? *work - cost : 0;
    }
    return 1;
}

/* Goes on until *work is used up. 1: the pass is over. */
static int pass(const struct nest *n, size_t chunk, struct fp9_down_walk *w, size_t *work)
{
    const struct fp9_down *d = n->d;
    unsigned top = fp9_subtree_level(d->first_slice + w->begin, d->slices - w->begin);
    for (; w->slice < d->slices; w->slice += chunk, w->expert = 0) {
        size_t first = w->slice, count = d->slices - first < chunk ? d->slices - first : chunk;
        if (w->expert == 0) zero(n->sums, count * n->width);
        if (!experts(n, count, w, work)) return 0;
        for (size_t s = first; s < first + count; s++) {
            __m256 *sum = n->sums + (s - first) * n->width;
            if (add_nodes(n, s - w->begin, top, sum) < top) continue;
            store_subtree(n, w->subtree++, sum);
            w->begin = s + 1;
            top = fp9_subtree_level(d->first_slice + w->begin, d->slices - w->begin);
        }
    }
    return 1;
}

/* As many row panels as let the sums of all slices stay in L1, in whole quads. */
static size_t panels_of_pass(const struct fp9_down *d)
{
    size_t panels = HOT_CELLS / (d->slices * d->tokens) / FP9_QUAD * FP9_QUAD;
    return panels < FP9_QUAD ? FP9_QUAD : panels > MOST_PANELS ? MOST_PANELS : panels;
}

static int some_rows(const struct fp9_down *d, struct fp9_down_walk *w, size_t *work)
{
    size_t levels = 0, panels = panels_of_pass(d);
    while (d->slices >> levels > 1) levels++; // as many as the largest subtree has waiting nodes
    size_t most = CELLS / (panels * (levels + 1));
    size_t parts = (d->tokens + most - 1) / most;
    struct nest n = {.d = d,
                     .quad_bytes = fp9_quad_bytes(8 * d->slices),
                     .strips = d->slices / FP9__STRIP_TILES,
                     .waiting = w->cells};
    for (; w->panel < w->count; w->panel += panels, w->part = 0) {
        n.panel = w->first + w->panel;
        n.stored = w->count - w->panel < panels ? w->count - w->panel : panels;
        n.panels = (n.stored + FP9_QUAD - 1) / FP9_QUAD * FP9_QUAD;
        for (; w->part < parts; w->part++) {
            n.token = d->tokens * w->part / parts;
            n.tokens = d->tokens * (w->part + 1) / parts - n.token;
            n.width = n.panels * n.tokens;
            n.sums = n.waiting + levels * n.width;
            size_t chunk = HOT_CELLS / n.width, room = CELLS / n.width - levels;
            chunk = chunk < 1 ? 1 : chunk > room ? room : chunk;
            if (!pass(&n, chunk < d->slices ? chunk : d->slices, w, work)) return 0;
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
