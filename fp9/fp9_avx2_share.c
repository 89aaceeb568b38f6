/* fp9_avx2_share.c: what one expert adds to a quad's sums, with AVX2 + FMA.
 *
 * The four panels of the quad are four chains of products a pair, made of weights on their way out of the
 * registers they were decoded in (one or two pairs) or unpacked into L1 before (more). */
#include "fp9/fp9_avx2_down.h"

enum {
    FEW = 2,      // pairs up to which weights are not unpacked
    UNPACKED = 8, // slices that are unpacked at a time: 4 KiB
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
    const float *hs = n->d->hs + h->pair * n->d->hs_stride + 8 * s, *hs1 = hs + n->d->hs_stride;
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
        const uint8_t *at = h->quad + strip * fp9__quad_strip(f);
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
    two_pairs(h, u, h->pair, true);
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
        size_t pair = h->pair + 2;
        first_pairs_2(h, &u);
        for (; pair + 1 < h->end; pair += 2) pairs_2(h, &u, pair);
        if (pair < h->end) pairs_1(h, &u, pair);
    }
}

fp9__share_fn *fp9__share_of(enum fp9_format f, size_t pairs)
{
    static fp9__share_fn *const few[FP9_FORMATS][FEW] = {{share_FP9_FP9_1, share_FP9_FP9_2},
                                                         {share_FP9_E4M3_1, share_FP9_E4M3_2}};
    return pairs <= FEW ? few[f][pairs - 1] : share_many;
}
