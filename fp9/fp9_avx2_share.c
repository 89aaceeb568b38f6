/* fp9_avx2_share.c: what an expert with one or two pairs adds to a visit's sums, of e4m3, with AVX2 + FMA;
 * and which of the files here has which number of pairs.
 *
 * The four panels of a quad are four chains of products a pair, made of weights on their way out of the
 * registers they were decoded in. */
#include "fp9/fp9_avx2_down.h"

enum { FEW = 2 }; // pairs

/* Four inputs of a tile, at `word` in panel 0 and `slot` bytes later in the next one. Inputs are the outer
 * loop, so that neighbouring instructions belong to different chains. */
FP9__INLINE void half_tile(enum fp9__way way, const uint8_t *at, size_t slot, const float *const hs[],
                           unsigned pairs, __m256 blk[][FP9_QUAD])
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
            if (k == 2) view[p] = fp9__second_view(way, fp9__load(at + p * slot), _mm256_setzero_si256());
            __m256 w = fp9__weight(way, view[p], k);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_fmadd_ps(w, x[q], blk[q][p]);
        }
    }
}

/* One slice. */
FP9__INLINE void few_tile(enum fp9__way way, const uint8_t *words, size_t slot, const float *hs,
                          const float *hs1, unsigned pairs, __m256 blk[][FP9_QUAD])
{
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const float *x[FEW] = {hs + 4 * (size_t)half, hs1 + 4 * (size_t)half};
        half_tile(way, words + (size_t)FP9__VECTOR * half, slot, x, pairs, blk);
    }
}

/* What is read next goes into L2, as of fp9 (fp9_avx2_share_direct.c), unless a visit is one quad, or there
 * is one token, which so takes 0.96 of the time. */
static inline bool fetches_near(const struct nest *n)
{
    return n->quads == 1 || n->d->tokens == 1;
}

/* Slices [s, stop) of one strip, whose panels lie `slot` bytes apart. */
FP9__INLINE void few_slices(enum fp9_format f, const struct share *h, unsigned pairs, size_t slot, size_t s,
                            size_t stop, __m256 *const sums[])
{
    const struct nest *n = h->nest;
    const uint8_t *strip = h->quad + s / FP9__STRIP_TILES * fp9__quad_strip(f);
    const float *hs = n->d->hs + fp9_down_hs(n->d->pairs, h->pair, s), *hs1 = hs + FP9__PAIR;
    struct ahead ahead = fp9__ahead(f, h, s);
    size_t at = 0;
    for (; s < stop; s++, at += FP9_QUAD, hs += 8, hs1 += 8) {
        const uint8_t *words = strip + s % FP9__STRIP_TILES * FP9__TILE_BYTES;
        __m256 blk[FEW][FP9_QUAD];
        fp9__fetch(&ahead, 0, fetches_near(n));
        ahead.at += ahead.line;
        FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++) FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) blk[q][p] = _mm256_setzero_ps();
        if (fp9__way_at(f, h, s) == FP9__WAY_SMALL)
            few_tile(FP9__WAY_SMALL, words, slot, hs, hs1, pairs, blk);
        else
            few_tile(FP9__WAY_E4M3, words, slot, hs, hs1, pairs, blk);
        __m256 scale = _mm256_broadcast_ss(h->scales + (h->column + 8 * s) / FP9_BLOCK);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
        for (unsigned p = 0; p < FP9_QUAD; p++)
            sums[q][at + p] = _mm256_fmadd_ps(scale, blk[q][p], sums[q][at + p]);
    }
}

/* Functions of their own, so that the compiler gives each all registers. */
static __attribute__((noinline)) void share_1(struct share *h)
{
    do fp9__strips(FP9_E4M3, h, 1, few_slices);
    while (fp9__next_quad(h));
}

static __attribute__((noinline)) void share_2(struct share *h)
{
    do fp9__strips(FP9_E4M3, h, 2, few_slices);
    while (fp9__next_quad(h));
}

fp9__share_fn *fp9__avx2_share_of(enum fp9_format f, size_t pairs)
{
    enum { DIRECT = 5 };
    static fp9__share_fn *const of[DIRECT] = {fp9__share_1, fp9__share_2, fp9__share_3, fp9__share_4,
                                              fp9__share_5};
    static fp9__share_fn *const of_e4m3[FEW] = {share_1, share_2};
    if (f == FP9_E4M3) return pairs <= FEW ? of_e4m3[pairs - 1] : fp9__share_many;
    if (pairs <= DIRECT) return of[pairs - 1];
    return pairs <= 2 * DIRECT ? fp9__share_groups : fp9__share_many;
}
