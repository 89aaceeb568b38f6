/* fp9_avx2_share_many.c: what an expert with more pairs adds to a visit's sums, with AVX2 + FMA: the tiles of
 * some slices are decoded once into L1 and used for all pairs, three at a time with four panels. */
#include "fp9/fp9_avx2_down.h"

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
    const size_t slot = fp9__slot(f, n, strip);
    const uint8_t *at = h->quad + strip * fp9__quad_strip(f);
    struct ahead ahead = fp9__ahead(f, h, to->first);
    if (fp9__head(f)) fp9__fetch(&ahead, FP9__STRIP_TILES, true);
    for (size_t i = 0; i < to->count; i++) {
        size_t s = to->first + i, t = s % FP9__STRIP_TILES;
        to->scale[i] = h->scales[(h->column + 8 * s) / FP9_BLOCK];
        fp9__fetch(&ahead, 0, true);
        ahead.at += ahead.line;
        if (fp9__way_at(f, h, s) == FP9__WAY_SMALL) {
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
                             .sums = fp9__sums_of(h, d->first) - n->token * n->step,
                             .step = n->step};
}

/* `groups` times three pairs. */
static __attribute__((noinline)) void threes(const struct share *h, const struct decoded *d, size_t pair,
                                             size_t groups)
{
    struct products p = products_of(h, d, pair);
    for (const uint32_t *last = p.token + 3 * groups; p.token < last; p.token += 3, p.hs += 3 * FP9__PAIR) {
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

void fp9__share_many(struct share *h)
{
    struct decoded d;
    const size_t end = h->first + h->count, pairs = h->end - h->pair;
    const size_t twos = (3 - pairs % 3) % 3, groups = (pairs - 2 * twos) / 3; // 7 are 3 + 2 + 2
    do
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
    while (fp9__next_quad(h));
}
