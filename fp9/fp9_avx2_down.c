/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * Two loads of memory want opposite loop orders: a decode step reads every expert's panels once, in order, so
 * slices are the inner loop; a prefill step has hundreds of tokens whose sums must stay in L1, so slices are
 * the outer one. Both are one nest over chunks of slices: as many slices at a time as the sums' memory
 * allows. A tile is decoded into eight registers and used for all tokens of its expert. */
#include "fp9/fp9_avx2_tile.h"
#include "fp9/fp9_down.h"

enum {
    CELLS = 2048,    // of 8 sums: 64 KiB of stack for slice sums and waiting nodes of the tree
    HOT_CELLS = 384, // slice sums kept at a time: 12 KiB, leaves room in L1 for weights and activations
    PANELS_FEW = 4,  // row panels at a time: few tokens: long reads of each expert's panels
    PANELS_MANY = 2, // many tokens: their sums fill L1, two panels still share the activations
    TOKENS_MANY = 32,
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

/* One tile of an expert, all its tokens of the pass. */
FP9__INLINE void tile_tokens(const __m256 w[8], __m256 scale, const float *hs, const uint32_t *token,
                             size_t first_token, size_t pairs, __m256 *sums)
{
    for (size_t q = 0; q < pairs; q++, hs += 8) {
        __m256 blk = _mm256_setzero_ps();
        for (unsigned k = 0; k < 8; k++) blk = _mm256_fmadd_ps(w[k], _mm256_broadcast_ss(hs + k), blk);
        __m256 *sum = sums + (token[q] - first_token);
        *sum = _mm256_fmadd_ps(scale, blk, *sum);
    }
}

/* Adds expert e's part to the sums of slices [first, first + count). `next` is what will be read after it. */
static void expert_slices(const struct nest *n, const struct fp9_down_expert *e, size_t first, size_t count,
                          const struct fp9_down_expert *next)
{
    const struct fp9_down *d = n->d;
    size_t from = first_pair(d, e, n->token), to = first_pair(d, e, n->token + n->tokens);
    if (from == to) return;
    for (size_t p = 0; p < n->panels; p++) {
        size_t row = n->panel + p;
        const uint8_t *panel = e->panels + row * n->panel_bytes;
        const char *ahead = (const char *)next->panels + row * n->panel_bytes;
        const float *scales = e->scales + 8 * row / FP9_BLOCK * d->scale_stride;
        for (size_t s = first; s < first + count; s++) {
            __m256 w[8];
            __m256 scale = _mm256_broadcast_ss(scales + (e->column + 8 * s) / FP9_BLOCK);
            size_t body = fp9__body_offset(s);
            _mm_prefetch(ahead + body, _MM_HINT_T0);
            if (s % 8 == 0) _mm_prefetch(ahead + fp9__sign_offset(n->tiles, s), _MM_HINT_T0);
            fp9__tile(panel + body, panel + fp9__sign_offset(n->tiles, s), w);
            __m256 *sums = n->sums + (s - first) * n->width + p * n->tokens;
            tile_tokens(w, scale, d->hs + s * d->hs_stride + 8 * from, d->token + from, n->token, to - from,
                        sums);
        }
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
    size_t panels = d->tokens < TOKENS_MANY ? PANELS_FEW : PANELS_MANY;
    size_t most = CELLS / (panels * (levels + 1));
    size_t parts = (d->tokens + most - 1) / most;
    struct nest n = {.d = d, .tiles = d->slices, .panel_bytes = fp9_panel_bytes(8 * d->slices)};
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
