/* fp9_avx2_down.c: the down product with AVX2 + FMA.
 *
 * By contract every slice has its own chain over the experts, so a token has as many sums of an output as the
 * run has slices: 1 KiB for 32 outputs and 8 slices. The nest is row panels, tokens, slices (a chunk of
 * them), experts, and inside an expert, in one visit, the quads and slices of the pass with all its pairs:
 * what an expert costs once, its unpacked weights, a call and the branches on its number of pairs, which are
 * guessed wrong as often as not, is spread over much work. So all tokens take part in a pass, with as many
 * quads, and then slices, as let their sums stay in the L2 cache, where each is fetched and put back once for
 * eight multiply-adds; kept in the L1 an expert would be visited more often, for a few hundred cycles each.
 */
#include "fp9/fp9_avx2_down.h"

enum {
    CELLS = FP9_DOWN_CELLS / sizeof(__m256),   // of 8 sums: slice sums and waiting nodes of the tree
    HOT_CELLS = FP9_DOWN_HOT / sizeof(__m256), // of slice sums
    GAP = 2,                                   // cells between tokens with several quads: else all of them
                                               // would share a few sets of the L1
    CHUNK = FP9_DOWN_STRIP,                    // slices of a chunk at least, a power of two
    MOST_VISIT = 20 << 10,                     // bytes of an expert that are read in one go: they stay in L1,
                                               // with those that are fetched into it meanwhile
    ADDED = 8,                                 // slices that are added up in registers
    LATER = 4,                                 // tokens from an output that is stored to one that is fetched
    DECODE = 3,                                // what decoding weights costs beside one pair's products
    PAGE = 4096,                               // streams in one would hinder each other
};

/* The pairs of expert e that belong to this pass's tokens. Counted and not searched for: the branches of a
 * search would be guessed wrong for every expert. */
static void find_pairs(struct share *h, const struct fp9_down_expert *e)
{
    const struct nest *n = h->nest;
    h->pair = e->pair;
    h->end = (size_t)e->pair + e->pairs;
    if (n->tokens == n->d->tokens) return;
    const uint32_t *token = n->d->token + e->pair, first = (uint32_t)n->token,
                   end = first + (uint32_t)n->tokens;
    uint32_t before = 0, beyond = 0;
    for (uint32_t i = 0; i < e->pairs; i++) {
        before += token[i] < first;
        beyond += token[i] >= end;
    }
    h->pair += before;
    h->end -= beyond;
}

/* Quad q of this pass. */
static const uint8_t *quad_of(const struct nest *n, const struct fp9_down_expert *e, size_t q)
{
    return e->panels + (n->panel / FP9_QUAD + q) * n->quad_bytes;
}

/* What all experts' shares of slices [first, first + count) have in common. */
static struct share share_of_slices(const struct nest *n, size_t first, size_t count)
{
    const size_t strip = fp9__quad_strip(n->d->format), from = first / FP9__STRIP_TILES * strip;
    size_t bytes = (count + FP9__STRIP_TILES - 1) / FP9__STRIP_TILES * strip;
    if (bytes > n->quad_bytes - from) bytes = n->quad_bytes - from;
    struct share h = {.nest = n,
                      .from = from,
                      .bytes = bytes,
                      .line = FP9__TILE_BYTES,
                      .stream = n->quads * bytes / FP9__STREAMS,
                      .first = first,
                      .count = count};
    if (h.stream < PAGE) {
        h.line = (size_t)FP9__STREAMS * FP9__TILE_BYTES;
        h.stream = FP9__TILE_BYTES;
    }
    return h;
}

/* Adds the part of expert e and its pairs [pair, end) to the sums of the slices. `next`: the quads that are
 * fetched meanwhile. */
static void expert_slices(struct share *h, const struct fp9_down_expert *e, const uint8_t *next)
{
    const struct nest *n = h->nest;
    if (h->pair == h->end) return;
    h->column = e->column;
    h->expert = e;
    h->ahead = next + h->from;
    h->index = 0;
    fp9__at_quad(h);
    n->share_of(n->d->format, h->end - h->pair)(h);
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
        __m256 s[ADDED];
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

/* Of a quad of the pass and one of its tokens. Tokens' outputs are far from each other, often at a multiple
 * of a page: each is fetched while those before it are made. */
static void store_subtree(const struct nest *n, size_t subtree, size_t token, size_t quad, const __m256 *sum)
{
    float *out = n->d->out + subtree * n->d->out_subtree + (n->token + token) * n->d->out_token +
                 8 * (n->panel + FP9_QUAD * quad);
    size_t left = n->stored - FP9_QUAD * quad, panels = left < FP9_QUAD ? left : FP9_QUAD;
    const char *then = (const char *)(out + (token + LATER < n->tokens ? LATER * n->d->out_token : 0));
    _mm_prefetch(then, _MM_HINT_T0);
    _mm_prefetch(then + FP9__TILE_BYTES, _MM_HINT_T0);
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
        size_t token = 0, quad = 0;
        for (size_t i = 0; i < cells; i++, quad++) {
            if (quad == n->quads) token++, quad = 0;
            __m256 node[FP9_QUAD];
            add_subtree(n->sums + token * n->step + (quad * n->chunk + s) * FP9_QUAD, base, node);
            for (unsigned level = 0; level < up; level++)
                add(node, n->waiting + FP9_QUAD * (level * cells + i), node);
            if (base + up == top)
                store_subtree(n, w->subtree, token, quad, node);
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
    struct share h = share_of_slices(n, w->slice, count);
    for (; w->expert < d->experts; w->expert++) {
        const struct fp9_down_expert *e = &d->expert[w->expert];
        if (*work == 0) return 0;
        find_pairs(&h, e);
        expert_slices(&h, e, quads_after(n, w->expert));
        size_t pairs = h.end - h.pair, tiles = n->quads * FP9_QUAD * count;
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
        if (w->expert == 0 && w->slice == 0) zero(n->sums, n->tokens * n->step);
        if (!experts(n, count, w, work)) return 0;
        add_nodes(n, w, w->slice, count);
        w->slice += count;
        w->expert = 0;
    }
    return 1;
}

/* As many quads as let the sums of all slices stay in L2. */
static size_t quads_of_pass(const struct fp9_down *d)
{
    size_t quads = fp9_down_quads(d->slices, d->tokens);
    size_t most = MOST_VISIT / fp9_quad_bytes(d->format, 8 * d->slices);
    if (quads > most) quads = most;
    return quads < 1 ? 1 : quads;
}

/* All slices, or as many as let the sums of a quad take half of what several may (alone with many tokens a
 * quad is better off with less), but CHUNK of them in any case. */
static size_t slices_of_chunk(const struct fp9_down *d)
{
    size_t chunk = 1;
    while (chunk < d->slices && chunk < FP9__MOST_CHUNK &&
           (chunk < CHUNK || 2 * chunk * FP9_QUAD * d->tokens <= HOT_CELLS / 2))
        chunk *= 2;
    return chunk;
}

int fp9__down_some_rows(const struct fp9_down *d, struct fp9_down_walk *w, size_t *work,
                        fp9__share_of_fn *share_of)
{
    struct nest n = {.d = d,
                     .share_of = share_of,
                     .quad_bytes = fp9_quad_bytes(d->format, 8 * d->slices),
                     .strips = d->slices / FP9__STRIP_TILES,
                     .chunk = slices_of_chunk(d),
                     .waiting = w->cells};
    size_t levels = 0, quads = quads_of_pass(d);
    while (d->slices >> levels > n.chunk) levels++; // as many as the largest subtree has waiting nodes
    const size_t gap = quads > 1 ? GAP : 0, most = CELLS / (FP9_QUAD * quads * (n.chunk + levels) + gap);
    const size_t parts = (d->tokens + most - 1) / most;
    for (; w->panel < w->count; w->panel += FP9_QUAD * quads, w->part = 0) {
        size_t left = w->count - w->panel;
        n.panel = w->first + w->panel;
        n.stored = left < FP9_QUAD * quads ? left : FP9_QUAD * quads;
        n.quads = (n.stored + FP9_QUAD - 1) / FP9_QUAD;
        n.step = FP9_QUAD * n.chunk * n.quads + gap;
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

void fp9__down_rows(const struct fp9_down *d, size_t first, size_t count, fp9__share_of_fn *share_of)
{
    __m256 cells[CELLS];
    size_t work = SIZE_MAX;
    struct fp9_down_walk w = {.first = first, .count = count, .cells = cells};
    fp9__down_some_rows(d, &w, &work, share_of);
}

static void rows(const struct fp9_down *d, size_t first, size_t count)
{
    fp9__down_rows(d, first, count, fp9__avx2_share_of);
}

static int some_rows(const struct fp9_down *d, struct fp9_down_walk *at, size_t *work)
{
    return fp9__down_some_rows(d, at, work, fp9__avx2_share_of);
}

const struct fp9_down_ops fp9__avx2_down = {rows, some_rows};
