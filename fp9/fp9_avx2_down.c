/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * Two loads of memory want opposite loop orders: a decode step reads every expert's panels once, in order, so
 * slices are the inner loop; a prefill step has hundreds of tokens whose sums must stay in L1, so slices are
 * the outer one. Both are one nest over chunks of slices: as many slices at a time as the sums' memory
 * allows. Products are made for groups of four row panels: four streams of weights with one token, 4 x 3
 * accumulators with more, where a tile is decoded into L1 once for all tokens of its expert. */
#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    CELLS = 4096,     // of 8 sums: 128 KiB of stack for slice sums and waiting nodes of the tree
    HOT_CELLS = 512,  // slice sums kept at a time: 16 KiB, leaves room in L1 for weights and activations
    GROUP = 4,        // row panels of a product
    MOST_PANELS = 32, // row panels of a pass: an expert's are read in one go
    PAIRS = 3,        // x GROUP = 12 accumulators, which with 3 activations and a weight fill the registers
    FEW = 2,          // pairs up to which decoding into L1 first costs more than it saves
    AHEAD = 1024,     // bytes of prefetch of one stream: half the dots' distance, since four streams run
};

struct nest {
    const struct fp9_down *d;
    size_t panel_bytes;
    size_t panel, panels; // row panels of this pass
    size_t token, tokens; // tokens of this pass
    size_t width;         // cells of one slice: tokens * panels
    __m256 *sums;         // (slices of a chunk, tokens, panels)
    __m256 *waiting;      // (levels, tokens, panels): left children of the tree
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

/* What one expert adds to a group of row panels: pairs [from, to), slices [first, first + count). */
struct share {
    const struct nest *nest;
    const uint8_t *panel; // of the group's first
    const uint8_t *ahead; // what is read about AHEAD bytes later
    const float *scales;  // of the group's row
    size_t row, step;     // few pairs: the group's row panels are row, row + step ...
    size_t column;        // of slice 0 in its scale block
    size_t first, count, from, to;
    __m256 *sums; // of slice `first`, the pass's first token, the group's first panel
};

/* The lines of tile s: a strip is four and a half lines, so its first tile asks for two. */
FP9__INLINE void prefetch(const uint8_t *panel, size_t s)
{
    if (s % FP9__STRIP_TILES == 0) _mm_prefetch((const char *)(panel + fp9__strip_offset(s)), _MM_HINT_T0);
    _mm_prefetch((const char *)(fp9__words(panel, s) + FP9__VECTOR), _MM_HINT_T0);
}

/* Four inputs of a tile of each panel with up to FEW pairs, into panels x pairs chains; `signs` as in the
 * dots (fp9_avx2.c). Inputs are the outer loop, so that neighbouring instructions belong to different chains.
 */
FP9__INLINE void half_tile(const uint8_t *const at[], size_t words, __m256i signs[], unsigned panels,
                           const float *const hs[], unsigned pairs, __m256 blk[][GROUP])
{
    __m256i word[GROUP];
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) word[p] = fp9__load(at[p] + words);
    FP9__UNROLL
    for (unsigned k = 0; k < 4; k++) {
        __m256 x[FEW];
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) x[q] = _mm256_broadcast_ss(hs[q] + k);
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) {
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

/* Where the group's panels are read, and what of a slice belongs to them. */
struct group {
    const uint8_t *at[GROUP]; // strip
    const float *scales[GROUP];
    __m256 *sums[FEW]; // of the slice at hand, one for each pair
    size_t step;
};

/* A tile with all pairs. */
FP9__INLINE void one_tile(const struct group *g, size_t words, __m256i signs[], unsigned panels,
                          const float *hs, unsigned pairs, size_t block)
{
    __m256 blk[FEW][GROUP];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) blk[q][p] = _mm256_setzero_ps();
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const float *x[FEW] = {hs + 4 * half, hs + 8 + 4 * half};
        half_tile(g->at, words + FP9__VECTOR * half, signs, panels, x, pairs, blk);
    }
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) {
        __m256 scale = _mm256_broadcast_ss(g->scales[p] + block);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) {
            __m256 *sum = g->sums[q] + p * g->step;
            *sum = _mm256_fmadd_ps(scale, blk[q][p], *sum);
        }
    }
}

/* Few pairs: products straight from the registers the weights are made in. */
FP9__INLINE void share_few(const struct share *h, unsigned panels, unsigned pairs)
{
    const struct nest *n = h->nest;
    const size_t bytes = h->step * n->panel_bytes, width = n->width, hs_stride = n->d->hs_stride;
    const float *hs = n->d->hs + h->first * hs_stride + 8 * h->from;
    const uint8_t *ahead = h->ahead + fp9__strip_offset(h->first);
    const size_t end = h->first + h->count, column = h->column;
    struct group g = {.step = h->step};
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++)
        g.sums[q] = h->sums + (n->d->token[h->from + q] - n->token) * n->panels;
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) {
        g.at[p] = h->panel + p * bytes + fp9__strip_offset(h->first);
        g.scales[p] = h->scales + 8 * (h->row + p * h->step) / FP9_BLOCK * n->d->scale_stride;
    }
    for (size_t s = h->first; s < end;) {
        size_t t = s % FP9__STRIP_TILES;
        size_t stop = end - s < FP9__STRIP_TILES - t ? t + end - s : FP9__STRIP_TILES;
        __m128i shift = _mm_cvtsi32_si128((int)(2 * t));
        __m256i signs[GROUP];
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) {
            signs[p] = _mm256_sll_epi32(fp9__load(g.at[p]), shift);
            _mm_prefetch((const char *)(ahead + p * bytes), _MM_HINT_T0);
        }
        for (; t < stop; t++, s++) {
            size_t words = FP9__VECTOR + t * FP9__TILE_BYTES;
            FP9__UNROLL
            for (unsigned p = 0; p < panels; p++)
                _mm_prefetch((const char *)(ahead + p * bytes + words + FP9__VECTOR), _MM_HINT_T0);
            one_tile(&g, words, signs, panels, hs, pairs, (column + 8 * s) / FP9_BLOCK);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) g.sums[q] += width;
            hs += hs_stride;
        }
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) g.at[p] += FP9__STRIP_BYTES;
        ahead += FP9__STRIP_BYTES;
    }
}

/* `pairs` neighbouring pairs with the decoded tiles of `panels` row panels: w (8 inputs, panels). */
FP9__INLINE void some_pairs(const float *w, unsigned panels, float scale, const float *hs, unsigned pairs,
                            __m256 *const sums[])
{
    __m256 blk[PAIRS][GROUP];
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) blk[q][p] = _mm256_setzero_ps();
    _Pragma("GCC unroll 1") // unrolled, more would be live than there are registers
        for (unsigned k = 0; k < 8; k++)
    {
        __m256 h[PAIRS];
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) h[q] = _mm256_broadcast_ss(hs + 8 * q + k);
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) {
            __m256 wk = _mm256_load_ps(w + 8 * (panels * k + p));
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_fmadd_ps(wk, h[q], blk[q][p]);
        }
    }
    __m256 s = _mm256_set1_ps(scale);
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) sums[q][p] = _mm256_fmadd_ps(s, blk[q][p], sums[q][p]);
}

/* Functions of their own, so that the compiler gives each all registers. */
#define PAIRS_FUNCTION(Q, P)                                                                                 \
    static __attribute__((noinline)) void pairs_##Q##_##P(const float *w, float scale, const float *hs,      \
                                                          __m256 *const *sums)                               \
    {                                                                                                        \
        some_pairs(w, P, scale, hs, Q, sums);                                                                \
    }
PAIRS_FUNCTION(1, 1)
PAIRS_FUNCTION(2, 1)
PAIRS_FUNCTION(3, 1)
PAIRS_FUNCTION(1, 4)
PAIRS_FUNCTION(2, 4)
PAIRS_FUNCTION(3, 4)

typedef void pairs_fn(const float *w, float scale, const float *hs, __m256 *const *sums);

/* Pairs in parts of three, the last of two; a single one only where there is no more. */
static void share_many(const struct share *h, unsigned panels)
{
    static pairs_fn *const one[PAIRS] = {pairs_1_1, pairs_2_1, pairs_3_1};
    static pairs_fn *const group[PAIRS] = {pairs_1_4, pairs_2_4, pairs_3_4};
    pairs_fn *const *size = panels == 1 ? one : group;
    const struct nest *n = h->nest;
    const uint32_t *token = n->d->token;
    float w[GROUP * 64] __attribute__((aligned(64)));
    for (size_t s = h->first; s < h->first + h->count; s++) {
        const float *hs = n->d->hs + s * n->d->hs_stride;
        __m256 *first = h->sums + (s - h->first) * n->width;
        float scale = h->scales[(h->column + 8 * s) / FP9_BLOCK];
        for (unsigned p = 0; p < panels; p++) {
            prefetch(h->ahead + p * n->panel_bytes, s);
            fp9__tile(h->panel + p * n->panel_bytes, s, w + 8 * p, 8 * panels);
        }
        for (size_t q = h->from; q < h->to;) {
            size_t left = h->to - q, part = left == 2 || left == 4 ? 2 : left < PAIRS ? left : PAIRS;
            __m256 *sums[PAIRS];
            for (size_t i = 0; i < part; i++) sums[i] = first + (token[q + i] - n->token) * n->panels;
            size[part - 1](w, scale, hs + 8 * q, sums);
            q += part;
        }
    }
}

#define FEW_FUNCTION(P, Q)                                                                                   \
    static __attribute__((noinline)) void share_##P##_##Q(const struct share *h)                             \
    {                                                                                                        \
        share_few(h, P, Q);                                                                                  \
    }
FEW_FUNCTION(1, 1)
FEW_FUNCTION(1, 2)
FEW_FUNCTION(4, 1)
FEW_FUNCTION(4, 2)

typedef void share_fn(const struct share *h);

static const uint8_t *panel_of(const struct nest *n, const struct fp9_down_expert *e, size_t p)
{
    return e->panels + (n->panel + p) * n->panel_bytes;
}

/* Few pairs: four streams of panels / GROUP neighbouring panels each, long enough for the memory's own
 * prefetch to follow them; software reaches ahead to where that has not begun, the next expert's. */
static void expert_few(const struct nest *n, struct share *h, const struct fp9_down_expert *e,
                       const struct fp9_down_expert *next)
{
    static share_fn *const few[2][FEW] = {{share_1_1, share_1_2}, {share_4_1, share_4_2}};
    size_t step = n->panels / GROUP, distance = (AHEAD + n->panel_bytes - 1) / n->panel_bytes;
    for (size_t p = 0; p < n->panels; p++) {
        size_t wide = p < step, later = p + distance;
        if (p == step) p = step * GROUP; // what is left over
        if (p == n->panels) break;
        h->panel = panel_of(n, e, p);
        h->ahead =
            later < step ? panel_of(n, e, later) : panel_of(n, next, later - step < step ? later - step : 0);
        h->sums = n->sums + p;
        h->row = n->panel + p;
        h->step = step;
        few[wide][h->to - h->from - 1](h);
    }
}

static void expert_many(const struct nest *n, struct share *h, const struct fp9_down_expert *e,
                        const struct fp9_down_expert *next)
{
    for (size_t p = 0; p < n->panels;) {
        size_t row = n->panel + p; // the panels of a whole group share their scales only where aligned
        size_t group = n->panels - p >= GROUP && row % GROUP == 0 ? GROUP : 1;
        h->panel = panel_of(n, e, p);
        h->ahead = panel_of(n, next, p);
        h->sums = n->sums + p;
        h->scales = e->scales + 8 * row / FP9_BLOCK * n->d->scale_stride;
        share_many(h, (unsigned)group);
        p += group;
    }
}

/* Adds expert e's part to the sums of slices [first, first + count). `next` is the expert read after it. */
static void expert_slices(const struct nest *n, const struct fp9_down_expert *e, size_t first, size_t count,
                          const struct fp9_down_expert *next)
{
    struct share h = {.nest = n, .scales = e->scales, .column = e->column, .first = first, .count = count};
    h.from = n->tokens == n->d->tokens ? e->pair : first_pair(n->d, e, n->token);
    h.to = n->tokens == n->d->tokens ? (size_t)e->pair + e->pairs : first_pair(n->d, e, n->token + n->tokens);
    if (h.from == h.to) return;
    (h.to - h.from <= FEW ? expert_few : expert_many)(n, &h, e, next);
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

static void add(__m256 *sum, const __m256 *left, size_t n)
{
    for (size_t i = 0; i < n; i++) sum[i] = _mm256_add_ps(left[i], sum[i]);
}

/* Slice `index` of its subtree is complete: adds up all nodes that are complete with it. Returns the level of
 * the node that `sum` now holds. */
static unsigned add_nodes(const struct nest *n, size_t index, __m256 *sum)
{
    unsigned level = 0;
    for (; index >> level & 1; level++) add(sum, n->waiting + level * n->width, n->width);
    return level;
}

static void store_subtree(const struct nest *n, size_t subtree, const __m256 *sum)
{
    float *out = n->d->out + subtree * n->d->out_subtree + n->token * n->d->out_token + 8 * n->panel;
    for (size_t t = 0; t < n->tokens; t++)
        for (size_t p = 0; p < n->panels; p++)
            _mm256_storeu_ps(out + t * n->d->out_token + 8 * p, sum[t * n->panels + p]);
}

static void pass(const struct nest *n, size_t chunk)
{
    const struct fp9_down *d = n->d;
    size_t subtree = 0, begin = 0; // the subtree that slice s belongs to, its first slice
    for (size_t first = 0; first < d->slices; first += chunk) {
        size_t count = d->slices - first < chunk ? d->slices - first : chunk;
        zero(n->sums, count * n->width);
        for (size_t e = 0; e < d->experts; e++)
            expert_slices(n, &d->expert[e], first, count, &d->expert[e + 1 < d->experts ? e + 1 : e]);
        for (size_t s = first; s < first + count; s++) {
            __m256 *sum = n->sums + (s - first) * n->width;
            unsigned level = add_nodes(n, s - begin, sum);
            if (level == fp9_subtree_level(d->first_slice + begin, d->slices - begin)) {
                store_subtree(n, subtree++, sum);
                begin = s + 1;
            } else {
                copy(n->waiting + level * n->width, sum, n->width);
            }
        }
    }
}

/* As many row panels as let the sums of all slices stay in L1, in whole groups. */
static size_t panels_of_pass(const struct fp9_down *d)
{
    size_t panels = HOT_CELLS / (d->slices * d->tokens) / GROUP * GROUP;
    return panels < GROUP ? GROUP : panels > MOST_PANELS ? MOST_PANELS : panels;
}

static void rows(const struct fp9_down *d, size_t first, size_t count)
{
    __m256 cells[CELLS];
    size_t levels = 0, panels = panels_of_pass(d);
    while (d->slices >> levels > 1) levels++; // as many as the largest subtree has waiting nodes
    size_t most = CELLS / (panels * (levels + 1));
    size_t parts = (d->tokens + most - 1) / most;
    struct nest n = {.d = d, .panel_bytes = fp9_panel_bytes(8 * d->slices)};
    for (size_t p = 0; p < count; p += panels) {
        n.panel = first + p;
        n.panels = count - p < panels ? count - p : panels;
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
