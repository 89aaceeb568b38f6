/* fp9_avx512_down.c: what an expert adds to a quad's sums, with AVX-512: the nest of fp9_avx2_down.c and the
 * bits of fp9_scalar.c.
 *
 * A quad is two couples, hence two chains a pair and slice; a slice's are short enough for the next slice's
 * to run beside them. Eight pairs are sixteen chains, which hide most of what decoding takes: so weights go
 * straight into the products of eight pairs at a time, and are decoded again for more. */
#include "fp9/fp9_avx2_down.h"
#include "fp9/fp9_avx512_couple.h"

enum {
    PAIRS = FP9__FEW,       // most at a time
    FIRST = 16 << 10,       // bytes that are fetched before a task begins
    COUPLES = FP9_QUAD / 2, // of a quad
};

/* The words of panel p of a quad: those of a couple lie `slot` bytes apart. */
FP9__INLINE __m512i load(const uint8_t *at, size_t slot, unsigned couple)
{
    return fp9__load_couple(at + 2 * couple * slot, at + (2 * couple + 1) * slot);
}

/* One slice of all pairs: blk = its products. */
FP9__INLINE void tile(enum fp9__way way, const uint8_t *words, size_t slot, __m512i signs[COUPLES],
                      const float *hs, unsigned pairs, __m512 blk[PAIRS][COUPLES])
{
    FP9__UNROLL
    for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
    for (unsigned c = 0; c < COUPLES; c++) blk[q][c] = _mm512_setzero_ps();
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        __m512i first[COUPLES], second[COUPLES];
        FP9__UNROLL
        for (unsigned c = 0; c < COUPLES; c++) {
            first[c] = load(words + (size_t)FP9__VECTOR * half, slot, c);
            fp9__couple_views(way, &first[c], &second[c], &signs[c]);
        }
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++) FP9__UNROLL
        for (unsigned c = 0; c < COUPLES; c++) {
            const __m512 w = fp9__couple_weight(way, first[c], second[c], k);
            FP9__UNROLL
            for (unsigned q = 0; q < pairs; q++)
                blk[q][c] =
                    _mm512_fmadd_ps(w, fp9__couple_x(way, hs + FP9__PAIR * q + 4 * half + k), blk[q][c]);
        }
    }
}

/* Slices [s, stop) of one strip. */
FP9__INLINE void slices(enum fp9_format f, const struct share *h, unsigned pairs, size_t slot, size_t s,
                        size_t stop, __m256 *const sums[])
{
    const struct nest *n = h->nest;
    const uint8_t *strip = h->quad + s / FP9__STRIP_TILES * fp9__quad_strip(f);
    const float *hs = n->d->hs + fp9_down_hs(n->d->pairs, h->pair, s);
    struct ahead ahead = fp9__ahead(f, h, s);
    __m512i signs[COUPLES];
    if (fp9__head(f)) fp9__fetch(&ahead, FP9__STRIP_TILES, true); // what the signs take
    FP9__UNROLL
    for (unsigned c = 0; c < COUPLES; c++)
        signs[c] = f == FP9_FP9 ? _mm512_sll_epi32(load(strip, slot, c),
                                                   _mm_cvtsi32_si128(2 * (int)(s % FP9__STRIP_TILES)))
                                : _mm512_setzero_si512();
    for (size_t at = 0; s < stop; s++, at += FP9_QUAD, hs += 8) {
        __m512 blk[PAIRS][COUPLES];
        fp9__fetch(&ahead, 0, true);
        ahead.at += ahead.line;
        const uint8_t *words = strip + fp9__head(f) + s % FP9__STRIP_TILES * FP9__TILE_BYTES;
        if (fp9__way_at(f, h, s) == FP9__WAY_SMALL)
            tile(FP9__WAY_SMALL, words, slot, signs, hs, pairs, blk);
        else
            tile(fp9__way_of(f, 0, 0), words, slot, signs, hs, pairs, blk);
        const __m512 scale = _mm512_set1_ps(h->scales[(h->column + 8 * s) / FP9_BLOCK]);
        FP9__UNROLL
        for (unsigned q = 0; q < pairs; q++) FP9__UNROLL
        for (unsigned c = 0; c < COUPLES; c++) {
            float *sum = (float *)(sums[q] + at + 2 * (size_t)c);
            _mm512_storeu_ps(sum, _mm512_fmadd_ps(scale, blk[q][c], _mm512_loadu_ps(sum)));
        }
    }
}

#define SHARE_FUNCTION(F, Q)                                                                                 \
    static __attribute__((noinline)) void share_##F##_##Q(struct share *h)                                   \
    {                                                                                                        \
        do fp9__strips(F, h, Q, slices);                                                                     \
        while (fp9__next_quad(h));                                                                           \
    }
#define SHARE_FUNCTIONS(F)                                                                                   \
    SHARE_FUNCTION(F, 1)                                                                                     \
    SHARE_FUNCTION(F, 2)                                                                                     \
    SHARE_FUNCTION(F, 3)                                                                                     \
    SHARE_FUNCTION(F, 4)                                                                                     \
    SHARE_FUNCTION(F, 5)                                                                                     \
    SHARE_FUNCTION(F, 6)                                                                                     \
    SHARE_FUNCTION(F, 7)                                                                                     \
    SHARE_FUNCTION(F, 8)
SHARE_FUNCTIONS(FP9_FP9)
SHARE_FUNCTIONS(FP9_E4M3)
#define SHARE_TABLE(F)                                                                                       \
    {                                                                                                        \
        share_##F##_1, share_##F##_2, share_##F##_3, share_##F##_4, share_##F##_5, share_##F##_6,            \
            share_##F##_7, share_##F##_8                                                                     \
    }

static fp9__share_of_fn share_of;

/* More of them, in nearly equal parts. */
static void share_many(struct share *h)
{
    const size_t pairs = h->end - h->pair, parts = (pairs + PAIRS - 1) / PAIRS;
    for (size_t i = 0; i < parts; i++) {
        struct share part = *h; // each goes through all quads
        part.pair = h->pair + pairs * i / parts;
        part.end = h->pair + pairs * (i + 1) / parts;
        share_of(h->nest->d->format, part.end - part.pair)(&part);
    }
}

static fp9__share_fn *share_of(enum fp9_format f, size_t pairs)
{
    static fp9__share_fn *const share[FP9_FORMATS][PAIRS] = {SHARE_TABLE(FP9_FP9), SHARE_TABLE(FP9_E4M3)};
    return pairs <= PAIRS ? share[f][pairs - 1] : share_many;
}

/* The first expert's quads, which no expert before it fetches. */
static void fetch_first(const struct fp9_down *d, size_t first, size_t count)
{
    const size_t quad = fp9_quad_bytes(d->format, 8 * d->slices);
    size_t bytes = (count + FP9_QUAD - 1) / FP9_QUAD * quad;
    if (bytes > FIRST) bytes = FIRST;
    const size_t stream = bytes / FP9__STREAMS / FP9__TILE_BYTES * FP9__TILE_BYTES;
    const uint8_t *at = d->expert->panels + first / FP9_QUAD * quad;
    for (size_t i = 0; i < stream; i += FP9__TILE_BYTES)
        for (size_t s = 0; s < FP9__STREAMS; s++)
            _mm_prefetch((const char *)(at + s * stream + i), _MM_HINT_T0);
}

static void rows(const struct fp9_down *d, size_t first, size_t count)
{
    if (d->experts) fetch_first(d, first, count);
    fp9__down_rows(d, first, count, share_of);
}

static int some_rows(const struct fp9_down *d, struct fp9_down_walk *at, size_t *work)
{
    return fp9__down_some_rows(d, at, work, share_of);
}

const struct fp9_down_ops fp9__avx512_down = {rows, some_rows};
