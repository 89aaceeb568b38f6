/* fp9_avx2_share.c: what one expert adds to a quad's sums, with AVX2 + FMA.
 *
 * The four panels of the quad are four chains of products a pair, made of weights on their way out of the
 * registers they were decoded in (one or two pairs) or decoded into L1 before (more). */
#include "fp9/fp9_avx2_down.h"

enum {
    FEW = 2,                           // pairs up to which weights stay in registers
    PAIR = FP9_DOWN_STRIP * FP9_LANES, // floats from a pair's activations to the next one's
};

/* What is fetched while something else is read: FP9__STREAMS lines at a time, the first one at `at`, `stream`
 * bytes from one to the next, `line` bytes to the next ones. */
struct ahead {
    const uint8_t *at;
    size_t line, stream;
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
    for (size_t i = 0; i < FP9__STREAMS; i++)
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
    const uint8_t *strip = h->quad + s / FP9__STRIP_TILES * fp9__quad_strip(f);
    const float *hs = n->d->hs + fp9_down_hs(n->d->pairs, h->pair, s), *hs1 = hs + PAIR;
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
    for (unsigned q = 0; q < pairs; q++) sums[q] = sums_of(h, h->pair + q);
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

/* ---- more pairs: the tiles of some slices are decoded once into L1 and used for all pairs ---- */

/* Slices [first, first + count), of one strip: the weights of panel p and input i of a tile are vector
 * 4 i + p. */
struct decoded {
    __m256 w[FP9_DOWN_STRIP][FP9_TILE_INPUTS][FP9_QUAD];
    float scale[FP9_DOWN_STRIP];
    size_t first, count;
};

FP9__INLINE void decode_tile(enum fp9__way way, const uint8_t *strip, size_t slot, size_t t,
                             __m256 w[FP9_TILE_INPUTS][FP9_QUAD])
{
    const uint8_t *words = strip + fp9__head(fp9__format(way)) + t * FP9__TILE_BYTES;
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) {
        __m256i s = fp9__signs(way, strip + p * slot, t);
        FP9__UNROLL
        for (unsigned half = 0; half < 2; half++) {
            __m256i word = fp9__load(words + p * slot + half * FP9__VECTOR);
            __m256i first = fp9__first_view(way, word), second = fp9__second_view(way, word, s);
            FP9__UNROLL
            for (unsigned k = 0; k < 4; k++) w[4 * half + k][p] = fp9__weight(way, k < 2 ? first : second, k);
            s = fp9__next_signs(way, s);
        }
    }
}

FP9__INLINE void decode_slices(enum fp9_format f, const struct share *h, struct decoded *to)
{
    const struct nest *n = h->nest;
    const size_t strip = to->first / FP9__STRIP_TILES;
    const size_t slot =
        strip < n->strips ? fp9__whole_strip(f) : fp9__strip_bytes(f, 8 * n->d->slices, strip);
    const uint8_t *at = h->quad + strip * fp9__quad_strip(f);
    struct ahead ahead = ahead_of(f, h, to->first);
    if (fp9__head(f)) fetch(&ahead, FP9__STRIP_TILES);
    for (size_t i = 0; i < to->count; i++) {
        size_t s = to->first + i, t = s % FP9__STRIP_TILES;
        to->scale[i] = h->scales[(h->column + 8 * s) / FP9_BLOCK];
        fetch(&ahead, 0);
        ahead.at += ahead.line;
        if (way_of(f, h, s) == FP9__WAY_SMALL) {
            decode_tile(FP9__WAY_SMALL, at, slot, t, to->w[i]);
            to->scale[i] *= FP9_W_SCALE / FP9_E4M3_SCALE;
        } else {
            decode_tile(fp9__way_of(f, 0, 0), at, slot, t, to->w[i]);
        }
    }
}

static __attribute__((noinline)) void decode_fp9(const struct share *h, struct decoded *to)
{
    decode_slices(FP9_FP9, h, to);
}

static __attribute__((noinline)) void decode_e4m3(const struct share *h, struct decoded *to)
{
    decode_slices(FP9_E4M3, h, to);
}

/* Products, written down as they shall run: the compiler would load a vector of weights for each of its uses
 * and put accumulators into memory. Pair Q and panel P have accumulator 4 Q + P; activations of input K are
 * in registers 12 to 14, its weight in 15. The first product replaces an accumulator: where +0 plus it would
 * be +0 it may be -0, which no sum shows, as none of them is -0. */
#define ACTIVATION(K, Q, X) "vbroadcastss 4*" #K "+128*" #Q "(%[x]), %%ymm" #X "\n\t"
#define WEIGHT(K, P) "vmovaps 128*" #K "+32*" #P "(%[w]), %%ymm15\n\t"
#define PRODUCT(OP, X, A) #OP " %%ymm15, %%ymm" #X ", %%ymm" #A "\n\t"
#define PANEL_OF_3(OP, K, P, A, B, C) WEIGHT(K, P) PRODUCT(OP, 12, A) PRODUCT(OP, 13, B) PRODUCT(OP, 14, C)
#define INPUT_OF_3(OP, K)                                                                                    \
    ACTIVATION(K, 0, 12)                                                                                     \
    ACTIVATION(K, 1, 13)                                                                                     \
    ACTIVATION(K, 2, 14)                                                                                     \
    PANEL_OF_3(OP, K, 0, 0, 4, 8)                                                                            \
    PANEL_OF_3(OP, K, 1, 1, 5, 9)                                                                            \
    PANEL_OF_3(OP, K, 2, 2, 6, 10)                                                                           \
    PANEL_OF_3(OP, K, 3, 3, 7, 11)

#define PANEL_OF_2(OP, K, P, A, B) WEIGHT(K, P) PRODUCT(OP, 12, A) PRODUCT(OP, 13, B)
#define INPUT_OF_2(OP, K)                                                                                    \
    ACTIVATION(K, 0, 12)                                                                                     \
    ACTIVATION(K, 1, 13)                                                                                     \
    PANEL_OF_2(OP, K, 0, 0, 4)                                                                               \
    PANEL_OF_2(OP, K, 1, 1, 5)                                                                               \
    PANEL_OF_2(OP, K, 2, 2, 6)                                                                               \
    PANEL_OF_2(OP, K, 3, 3, 7)

#define SLICE(INPUT)                                                                                         \
    INPUT(vmulps, 0)                                                                                         \
    INPUT(vfmadd231ps, 1)                                                                                    \
    INPUT(vfmadd231ps, 2)                                                                                    \
    INPUT(vfmadd231ps, 3)                                                                                    \
    INPUT(vfmadd231ps, 4)                                                                                    \
    INPUT(vfmadd231ps, 5)                                                                                    \
    INPUT(vfmadd231ps, 6)                                                                                    \
    INPUT(vfmadd231ps, 7)                                                                                    \
    "vbroadcastss %[scale], %%ymm12\n\t"

#define SUM(S, P, A)                                                                                         \
    "vfmadd213ps 32*" #P "(%[" #S "]), %%ymm12, %%ymm" #A "\n\t"                                             \
    "vmovaps %%ymm" #A ", 32*" #P "(%[" #S "])\n\t"
#define SUMS(S, A, B, C, D) SUM(S, 0, A) SUM(S, 1, B) SUM(S, 2, C) SUM(S, 3, D)

#define ALL_REGISTERS                                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm12", "xmm13", "xmm14", "xmm15"

/* Where the products of one call lie. */
struct products {
    const uint32_t *token;
    const float *hs, *scale, *end;
    __m256 *sums; // of token 0
    size_t step;
};

FP9__INLINE struct products products_of(const struct share *h, const struct decoded *d, size_t pair)
{
    const struct nest *n = h->nest;
    return (struct products){.token = n->d->token + pair,
                             .hs = n->d->hs + fp9_down_hs(n->d->pairs, pair, d->first),
                             .scale = d->scale,
                             .end = d->scale + d->count,
                             .sums = h->sums + (d->first - h->first) * FP9_QUAD - n->token * n->step,
                             .step = n->step};
}

/* `groups` times three pairs. */
static __attribute__((noinline)) void threes(const struct share *h, const struct decoded *d, size_t pair,
                                             size_t groups)
{
    struct products p = products_of(h, d, pair);
    for (const uint32_t *last = p.token + 3 * groups; p.token < last; p.token += 3, p.hs += 3 * PAIR) {
        const float *x = p.hs, *scale = p.scale;
        const __m256 *w = d->w[0][0];
        __m256 *s0 = p.sums + p.token[0] * p.step, *s1 = p.sums + p.token[1] * p.step,
               *s2 = p.sums + p.token[2] * p.step;
        for (; scale < p.end; scale++, x += 8, w += FP9_TILE_INPUTS * FP9_QUAD, s0 += 4, s1 += 4, s2 += 4)
            __asm__ volatile(
                SLICE(INPUT_OF_3) SUMS(s0, 0, 1, 2, 3) SUMS(s1, 4, 5, 6, 7) SUMS(s2, 8, 9, 10, 11)
                :
                : [x] "r"(x), [w] "r"(w), [s0] "r"(s0), [s1] "r"(s1), [s2] "r"(s2), [scale] "m"(*scale)
                : "memory", ALL_REGISTERS);
    }
}

static __attribute__((noinline)) void two(const struct share *h, const struct decoded *d, size_t pair)
{
    struct products p = products_of(h, d, pair);
    const __m256 *w = d->w[0][0];
    __m256 *s0 = p.sums + p.token[0] * p.step, *s1 = p.sums + p.token[1] * p.step;
    for (; p.scale < p.end; p.scale++, p.hs += 8, w += FP9_TILE_INPUTS * FP9_QUAD, s0 += 4, s1 += 4)
        __asm__ volatile(SLICE(INPUT_OF_2) SUMS(s0, 0, 1, 2, 3) SUMS(s1, 4, 5, 6, 7)
                         :
                         : [x] "r"(p.hs), [w] "r"(w), [s0] "r"(s0), [s1] "r"(s1), [scale] "m"(*p.scale)
                         : "memory", ALL_REGISTERS);
}

static void share_many(const struct share *h)
{
    struct decoded d;
    const size_t end = h->first + h->count, pairs = h->end - h->pair;
    const size_t twos = (3 - pairs % 3) % 3, groups = (pairs - 2 * twos) / 3; // 7 are 3 + 2 + 2
    for (d.first = h->first; d.first < end; d.first += d.count) {
        size_t strip = FP9__STRIP_TILES - d.first % FP9__STRIP_TILES;
        d.count = end - d.first < strip ? end - d.first : strip;
        if (h->nest->d->format == FP9_FP9)
            decode_fp9(h, &d);
        else
            decode_e4m3(h, &d);
        threes(h, &d, h->pair, groups);
        for (size_t pair = h->pair + 3 * groups; pair < h->end; pair += 2) two(h, &d, pair);
    }
}

fp9__share_fn *fp9__share_of(enum fp9_format f, size_t pairs)
{
    static fp9__share_fn *const few[FP9_FORMATS][FEW] = {{share_FP9_FP9_1, share_FP9_FP9_2},
                                                         {share_FP9_E4M3_1, share_FP9_E4M3_2}};
    return pairs <= FEW ? few[f][pairs - 1] : share_many;
}
