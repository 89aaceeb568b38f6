/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * Two loads of memory want opposite loop orders: a decode step reads every expert's panels once, in order, so
 * slices are the inner loop; a prefill step has hundreds of tokens whose sums must stay in L1, so slices are
 * the outer one. Both are one nest over chunks of slices: as many slices at a time as the sums' memory
 * allows. A tile is decoded into eight registers and used for all tokens of its expert. */
#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    CELLS = 4096,    // of 8 sums: 128 KiB of stack for slice sums and waiting nodes of the tree
    HOT_CELLS = 384, // slice sums kept at a time: 12 KiB, leaves room in L1 for weights and activations
    PANELS = 4, // row panels of a pass: long reads of each expert's panels; activations are read once for all
    PAIRS = 4,  // x 2 panels: eight chains cover the FMA's latency
};

struct nest {
    const struct fp9_down *d;
    size_t tiles, panel_bytes;
    size_t panel, panels; // row panels of this pass
    size_t token, tokens; // tokens of this pass
    size_t width;         // cells of one slice: panels * tokens
    __m256 *sums;         // (slices of a chunk, panels, tokens)
    __m256 *waiting;      // (levels, panels, tokens): left children of the tree
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

/* One pair, one slice of `panels` row panels: products straight from the registers the weights are made in.
 */
FP9__INLINE void one_pair(const uint8_t *body, const uint8_t *sign, size_t panel_bytes, unsigned panels,
                          const float *hs, const __m256 scale[], size_t tokens, __m256 *sums)
{
    __m256i signs[2];
    __m256 blk[2];
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) {
        signs[p] = fp9__signs(sign + p * panel_bytes);
        blk[p] = _mm256_setzero_ps();
    }
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        __m256i b[2];
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++)
            b[p] = _mm256_load_si256((const __m256i *)(body + p * panel_bytes + 32 * half));
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++) {
            __m256 h = _mm256_broadcast_ss(hs + 4 * half + k);
            FP9__UNROLL
            for (unsigned p = 0; p < panels; p++) {
                blk[p] = _mm256_fmadd_ps(fp9__weight(b[p], signs[p], k), h, blk[p]);
                signs[p] = _mm256_add_epi32(signs[p], signs[p]);
            }
        }
    }
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++)
        sums[p * tokens] = _mm256_fmadd_ps(scale[p], blk[p], sums[p * tokens]);
}

/* `tokens` neighbouring pairs with the decoded tiles of `panels` row panels. */
FP9__INLINE void some_pairs(const float *w, unsigned panels, const __m256 scale[], const float *hs,
                            unsigned pairs, const uint32_t *token, size_t first_token, size_t tokens,
                            __m256 *sums)
{
    __m256 blk[2][PAIRS];
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) blk[p][q] = _mm256_setzero_ps();
    FP9__UNROLL
    for (unsigned k = 0; k < 8; k++) {
        __m256 wk[2];
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) wk[p] = _mm256_load_ps(w + 64 * p + 8 * k);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) {
            __m256 h = _mm256_broadcast_ss(hs + 8 * q + k);
            FP9__UNROLL
            for (unsigned p = 0; p < panels; p++) blk[p][q] = _mm256_fmadd_ps(wk[p], h, blk[p][q]);
        }
    }
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) {
        __m256 *sum = sums + p * tokens + (token[q] - first_token);
        *sum = _mm256_fmadd_ps(scale[p], blk[p][q], *sum);
    }
}

/* All pairs of an expert with one slice's decoded tiles; a function of its own, or the compiler keeps the
 * tiles in registers that the sums need. */
#define PAIRS_FUNCTION(P)                                                                                    \
    static __attribute__((noinline)) void all_pairs_##P(                                                     \
        const float *w, const float *scales, const float *hs, size_t pairs, const uint32_t *token,           \
        size_t first_token, size_t tokens, __m256 *sums)                                                     \
    {                                                                                                        \
        const __m256 scale[2] = {_mm256_broadcast_ss(scales), _mm256_broadcast_ss(scales + 1)};              \
        size_t q = 0;                                                                                        \
        for (; q + PAIRS <= pairs; q += PAIRS)                                                               \
            some_pairs(w, P, scale, hs + 8 * q, PAIRS, token + q, first_token, tokens, sums);                \
        switch (pairs - q) {                                                                                 \
        case 3:                                                                                              \
            some_pairs(w, P, scale, hs + 8 * q, 3, token + q, first_token, tokens, sums);                    \
            break;                                                                                           \
        case 2:                                                                                              \
            some_pairs(w, P, scale, hs + 8 * q, 2, token + q, first_token, tokens, sums);                    \
            break;                                                                                           \
        case 1:                                                                                              \
            some_pairs(w, P, scale, hs + 8 * q, 1, token + q, first_token, tokens, sums);                    \
            break;                                                                                           \
        default:                                                                                             \
            break;                                                                                           \
        }                                                                                                    \
    }
PAIRS_FUNCTION(1)
PAIRS_FUNCTION(2)

/* What one expert adds to two row panels (or one, the last): pairs [from, to), slices [first, first + count).
 */
struct share {
    const struct nest *nest;
    const uint8_t *panel;   // of the first of the two
    const char *ahead;      // the same panel of the expert that is read next
    const float *scales[2]; // of the two panels' rows
    size_t column;          // of slice 0 in its scale block
    size_t first, count, from, to;
    __m256 *sums; // of the first panel and slice `first`
};

FP9__INLINE void prefetch(const struct share *h, unsigned panels, size_t body, size_t sign)
{
    for (unsigned p = 0; p < panels; p++) {
        _mm_prefetch(h->ahead + p * h->nest->panel_bytes + body, _MM_HINT_T0);
        if (sign % 64 == 0) _mm_prefetch(h->ahead + p * h->nest->panel_bytes + sign, _MM_HINT_T0);
    }
}

FP9__INLINE void share_one(const struct share *h, unsigned panels)
{
    const struct nest *n = h->nest;
    const float *hs = n->d->hs + h->first * n->d->hs_stride + 8 * h->from;
    __m256 *sums = h->sums + (n->d->token[h->from] - n->token);
    for (size_t s = h->first; s < h->first + h->count; s++, hs += n->d->hs_stride, sums += n->width) {
        size_t body = fp9__body_offset(s), sign = fp9__sign_offset(n->tiles, s),
               block = (h->column + 8 * s) / FP9_BLOCK;
        __m256 scale[2];
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) scale[p] = _mm256_broadcast_ss(h->scales[p] + block);
        prefetch(h, panels, body, sign);
        one_pair(h->panel + body, h->panel + sign, n->panel_bytes, panels, hs, scale, n->tokens, sums);
    }
}

FP9__INLINE void share_many(const struct share *h, unsigned panels)
{
    const struct nest *n = h->nest;
    const uint32_t *token = n->d->token + h->from;
    float w[2 * 64] __attribute__((aligned(64))), scale[2] = {0, 0};
    for (size_t s = h->first; s < h->first + h->count; s++) {
        size_t body = fp9__body_offset(s), sign = fp9__sign_offset(n->tiles, s),
               block = (h->column + 8 * s) / FP9_BLOCK;
        prefetch(h, panels, body, sign);
        for (unsigned p = 0; p < panels; p++) {
            __m256 tile[8];
            scale[p] = h->scales[p][block];
            fp9__tile(h->panel + p * n->panel_bytes + body, h->panel + p * n->panel_bytes + sign, tile);
            FP9__UNROLL
            for (unsigned k = 0; k < 8; k++) _mm256_store_ps(w + 64 * p + 8 * k, tile[k]);
        }
        (panels > 1 ? all_pairs_2 : all_pairs_1)(w, scale, n->d->hs + s * n->d->hs_stride + 8 * h->from,
                                                 h->to - h->from, token, n->token, n->tokens,
                                                 h->sums + (s - h->first) * n->width);
    }
}

/* Functions of their own, so that the compiler gives each all registers. */
static __attribute__((noinline)) void share_one_1(const struct share *h)
{
    share_one(h, 1);
}

static __attribute__((noinline)) void share_one_2(const struct share *h)
{
    share_one(h, 2);
}

static __attribute__((noinline)) void share_many_1(const struct share *h)
{
    share_many(h, 1);
}

static __attribute__((noinline)) void share_many_2(const struct share *h)
{
    share_many(h, 2);
}

/* Adds expert e's part to the sums of slices [first, first + count). `next` is the expert read after it. */
static void expert_slices(const struct nest *n, const struct fp9_down_expert *e, size_t first, size_t count,
                          const struct fp9_down_expert *next)
{
    struct share h = {.nest = n, .column = e->column, .first = first, .count = count};
    h.from = first_pair(n->d, e, n->token);
    h.to = first_pair(n->d, e, n->token + n->tokens);
    if (h.from == h.to) return;
    for (size_t p = 0; p < n->panels; p += 2) {
        size_t row = n->panel + p;
        unsigned panels = n->panels - p > 1 ? 2 : 1;
        h.panel = e->panels + row * n->panel_bytes;
        h.ahead = (const char *)next->panels + row * n->panel_bytes;
        h.sums = n->sums + p * n->tokens;
        for (unsigned i = 0; i < panels; i++)
            h.scales[i] = e->scales + 8 * (row + i) / FP9_BLOCK * n->d->scale_stride;
        if (h.to - h.from == 1)
            (panels == 2 ? share_one_2 : share_one_1)(&h);
        else
            (panels == 2 ? share_many_2 : share_many_1)(&h);
    }
}

/* Slice `index` of its subtree is complete: adds up all nodes that are complete with it. Returns the level of
 * the node that `sum` now holds. */
static unsigned add_nodes(const struct nest *n, size_t index, __m256 *sum)
{
    unsigned level = 0;
    for (; index >> level & 1; level++) {
        const __m256 *left = n->waiting + level * n->width;
        for (size_t i = 0; i < n->width; i++) sum[i] = _mm256_add_ps(left[i], sum[i]);
    }
    return level;
}

static void store_subtree(const struct nest *n, size_t subtree, const __m256 *sum)
{
    float *out = n->d->out + subtree * n->d->out_subtree + n->token * n->d->out_token + 8 * n->panel;
    for (size_t p = 0; p < n->panels; p++)
        for (size_t t = 0; t < n->tokens; t++)
            _mm256_storeu_ps(out + t * n->d->out_token + 8 * p, sum[p * n->tokens + t]);
}

static void pass(const struct nest *n, size_t chunk)
{
    const struct fp9_down *d = n->d;
    size_t subtree = 0, begin = 0; // the subtree that slice s belongs to, its first slice
    for (size_t first = 0; first < d->slices; first += chunk) {
        size_t count = d->slices - first < chunk ? d->slices - first : chunk;
        for (size_t i = 0; i < count * n->width; i++) n->sums[i] = _mm256_setzero_ps();
        for (size_t e = 0; e < d->experts; e++)
            expert_slices(n, &d->expert[e], first, count, &d->expert[e + 1 < d->experts ? e + 1 : e]);
        for (size_t s = first; s < first + count; s++) {
            __m256 *sum = n->sums + (s - first) * n->width;
            unsigned level = add_nodes(n, s - begin, sum);
            if (level == fp9_subtree_level(d->first_slice + begin, d->slices - begin)) {
                store_subtree(n, subtree++, sum);
                begin = s + 1;
            } else {
                __m256 *left = n->waiting + level * n->width;
                for (size_t i = 0; i < n->width; i++) left[i] = sum[i];
            }
        }
    }
}

static void rows(const struct fp9_down *d, size_t first, size_t count)
{
    __m256 cells[CELLS];
    size_t levels = 0;
    while (d->slices >> levels) levels++; // more than any subtree has waiting nodes
    size_t most = CELLS / (PANELS * (levels + 1));
    size_t parts = (d->tokens + most - 1) / most;
    struct nest n = {.d = d, .tiles = d->slices, .panel_bytes = fp9_panel_bytes(8 * d->slices)};
    for (size_t p = 0; p < count; p += PANELS) {
        n.panel = first + p;
        n.panels = count - p < PANELS ? count - p : PANELS;
        for (size_t part = 0; part < parts; part++) {
            n.token = d->tokens * part / parts;
            n.tokens = d->tokens * (part + 1) / parts - n.token;
            n.width = n.panels * n.tokens;
            n.waiting = cells;
            n.sums = cells + levels * n.width;
            size_t chunk = HOT_CELLS / n.width, room = CELLS / n.width - levels;
            chunk = chunk < 1 ? 1 : chunk > room ? room : chunk;
            pass(&n, chunk < d->slices ? chunk : d->slices);
        }
    }
}

const struct fp9_down_ops fp9__avx2_down = {rows};
