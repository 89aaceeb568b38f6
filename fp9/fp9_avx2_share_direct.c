/* fp9_avx2_share_direct.c: what an expert with one to five pairs adds to a visit's sums, of fp9, with AVX2;
 * six to ten as two such groups.
 *
 * Weights are made on the way to the products: the first two inputs of a word by a load under the mask, the
 * others out of the second view. Its signs move on from word to word in registers, through all slices of a
 * strip: with one or two pairs those of four panels, with more those of two panels, twice. A strip is one
 * loop, and little stands between two of them: the products of a slice are few for the latency of their
 * chains, so those of the next one have to begin beside them.
 */
#include "fp9/fp9_avx2_down.h"

/* Products, written down as they shall run: the compiler would put accumulators into memory. The mask is in
 * register 15. The first product replaces an accumulator: where +0 plus it would be +0 it may be -0, which no
 * sum shows, as none of them is -0. */

enum {
    MOST = 5,        // pairs whose products are made together
    LONG_VISIT = 16, // slices of all its quads: from there on two groups are faster than decoded weights
};

/* Weights of word J of a panel (`slot` bytes from panel to panel), EARLIER bytes earlier, or their second
 * view. */
#define WEIGHT(AT, J, EARLIER, W) "vpand 32*" #J "-" #EARLIER "+" AT ", %%ymm15, %%ymm" #W "\n\t"
#define VIEW(AT, J, SIGNS, V) "vpxor 32*" #J "+" AT ", %%ymm" #SIGNS ", %%ymm" #V "\n\t"
#define THIRD(V, W) "vpslld $8, %%ymm" #V ", %%ymm" #W "\n\tvpand %%ymm" #W ", %%ymm15, %%ymm" #W "\n\t"
#define FOURTH(V, W)                                                                                         \
    "vpshufb %[rotate], %%ymm" #V ", %%ymm" #W "\n\tvpand %%ymm" #W ", %%ymm15, %%ymm" #W "\n\t"
#define DOUBLE(S) "vpaddd %%ymm" #S ", %%ymm" #S ", %%ymm" #S "\n\t"
#define PANEL_0 "0(%[a])"
#define PANEL_1 "0(%[a],%[slot])"
#define PANEL_2 "0(%[a],%[slot],2)"
#define PANEL_3 "0(%[a],%[slot3])"

/* Activation K of pair Q; x is that of pair 1. */
#define ACTIVATION(K, Q, X) "vbroadcastss 4*" #K "+128*" #Q "-128(%[x]), %%ymm" #X "\n\t"
#define PRODUCT(OP, X, W, A) #OP " %%ymm" #X ", %%ymm" #W ", %%ymm" #A "\n\t"

/* Two panels of pair S's sums, the first or (FROM 64) the last ones. The scale is in register 10. */
#define SUM(FROM, S, A, B)                                                                                   \
    "vfmadd213ps " #FROM "(%[" #S "],%[sum]), %%ymm10, %%ymm" #A "\n\t"                                      \
    "vfmadd213ps 32+" #FROM "(%[" #S "],%[sum]), %%ymm10, %%ymm" #B "\n\t"                                   \
    "vmovaps %%ymm" #A ", " #FROM "(%[" #S "],%[sum])\n\t"                                                   \
    "vmovaps %%ymm" #B ", 32+" #FROM "(%[" #S "],%[sum])\n\t"

/* A slice of both words; their inputs in pairs, as a view has them. */
#define SLICE(WORD, ...)                                                                                     \
    WORD(0, vmulps, 0, 1, 2, 3, __VA_ARGS__)                                                                 \
    WORD(1, vfmadd231ps, 4, 5, 6, 7, __VA_ARGS__)                                                            \
    "vbroadcastss (%[scale]), %%ymm10\n\t"

/* Three to five pairs, two panels at a time: pair Q and panel P of two have accumulator 2 Q + P; an
 * activation is in register 10, its weights in 11 and 12, signs in 13 and 14. The second view: V0 and V1,
 * made once or, where registers are short, for each use. */
#define PAIR(OP, K, Q, A, B) ACTIVATION(K, Q, 10) PRODUCT(OP, 10, 11, A) PRODUCT(OP, 10, 12, B)
#define INPUT_OF_3(OP, K) PAIR(OP, K, 0, 0, 1) PAIR(OP, K, 1, 2, 3) PAIR(OP, K, 2, 4, 5)
#define INPUT_OF_4(OP, K) INPUT_OF_3(OP, K) PAIR(OP, K, 3, 6, 7)
#define INPUT_OF_5(OP, K) INPUT_OF_4(OP, K) PAIR(OP, K, 4, 8, 9)
#define SUMS_OF_3 SUM(0, s0, 0, 1) SUM(0, s1, 2, 3) SUM(0, s2, 4, 5)
#define SUMS_OF_4 SUMS_OF_3 SUM(0, s3, 6, 7)
#define SUMS_OF_5 SUMS_OF_4 SUM(0, s4, 8, 9)
#define WEIGHTS(J, EARLIER) WEIGHT(PANEL_0, J, EARLIER, 11) WEIGHT(PANEL_1, J, EARLIER, 12)
#define VIEWS(J, V0, V1) VIEW(PANEL_0, J, 13, V0) VIEW(PANEL_1, J, 14, V1)
#define THIRDS(V0, V1) THIRD(V0, 11) THIRD(V1, 12)
#define FOURTHS(V0, V1) FOURTH(V0, 11) FOURTH(V1, 12) DOUBLE(13) DOUBLE(14)
#define WORD_ONCE(J, OP, K0, K1, K2, K3, INPUT)                                                              \
    WEIGHTS(J, 0)                                                                                            \
    INPUT(OP, K0)                                                                                            \
    WEIGHTS(J, 2)                                                                                            \
    INPUT(vfmadd231ps, K1)                                                                                   \
    VIEWS(J, 8, 9) THIRDS(8, 9) INPUT(vfmadd231ps, K2) FOURTHS(8, 9) INPUT(vfmadd231ps, K3)
#define WORD_TWICE(J, OP, K0, K1, K2, K3, INPUT)                                                             \
    WEIGHTS(J, 0)                                                                                            \
    INPUT(OP, K0)                                                                                            \
    WEIGHTS(J, 2)                                                                                            \
    INPUT(vfmadd231ps, K1)                                                                                   \
    VIEWS(J, 11, 12)                                                                                         \
    THIRDS(11, 12) INPUT(vfmadd231ps, K2) VIEWS(J, 11, 12) FOURTHS(11, 12) INPUT(vfmadd231ps, K3)

/* All four panels: FOUR(PANEL, ..) is PANEL(its place, its signs, A, B, ..) of each, A its accumulator and B,
 * 4 more, that of another pair or its second view. */
#define FOUR(PANEL, ...)                                                                                     \
    PANEL(PANEL_0, 11, 0, 4, __VA_ARGS__)                                                                    \
    PANEL(PANEL_1, 12, 1, 5, __VA_ARGS__)                                                                    \
    PANEL(PANEL_2, 13, 2, 6, __VA_ARGS__)                                                                    \
    PANEL(PANEL_3, 14, 3, 7, __VA_ARGS__)

/* Two pairs: activations are in registers 8 and 9, a weight in 10. */
#define BOTH(K) ACTIVATION(K, 0, 8) ACTIVATION(K, 1, 9)
#define PRODUCTS(OP, A, B) PRODUCT(OP, 8, 10, A) PRODUCT(OP, 9, 10, B)
#define EITHER_OF_2(AT, S, A, B, J, EARLIER, OP) WEIGHT(AT, J, EARLIER, 10) PRODUCTS(OP, A, B)
#define THIRD_OF_2(AT, S, A, B, J) VIEW(AT, J, S, 10) THIRD(10, 10) PRODUCTS(vfmadd231ps, A, B)
#define FOURTH_OF_2(AT, S, A, B, J) VIEW(AT, J, S, 10) FOURTH(10, 10) PRODUCTS(vfmadd231ps, A, B) DOUBLE(S)
#define WORD_OF_2(J, OP, K0, K1, K2, K3, ...)                                                                \
    BOTH(K0)                                                                                                 \
    FOUR(EITHER_OF_2, J, 0, OP)                                                                              \
    BOTH(K1) FOUR(EITHER_OF_2, J, 2, vfmadd231ps) BOTH(K2) FOUR(THIRD_OF_2, J) BOTH(K3) FOUR(FOURTH_OF_2, J)
#define SUMS_OF_2 SUM(0, s0, 0, 1) SUM(64, s0, 2, 3) SUM(0, s1, 4, 5) SUM(64, s1, 6, 7)

/* One pair: its activation is in register 8, a weight in 10, second views in 4 to 7. */
#define EITHER_OF_1(AT, S, A, V, J, EARLIER, OP) WEIGHT(AT, J, EARLIER, 10) PRODUCT(OP, 8, 10, A)
#define THIRD_OF_1(AT, S, A, V, J) VIEW(AT, J, S, V) THIRD(V, 10) PRODUCT(vfmadd231ps, 8, 10, A)
#define FOURTH_OF_1(AT, S, A, V, J) FOURTH(V, 10) PRODUCT(vfmadd231ps, 8, 10, A) DOUBLE(S)
#define WORD_OF_1(J, OP, K0, K1, K2, K3, ...)                                                                \
    ACTIVATION(K0, 0, 8)                                                                                     \
    FOUR(EITHER_OF_1, J, 0, OP)                                                                              \
    ACTIVATION(K1, 0, 8)                                                                                     \
    FOUR(EITHER_OF_1, J, 2, vfmadd231ps)                                                                     \
    ACTIVATION(K2, 0, 8) FOUR(THIRD_OF_1, J) ACTIVATION(K3, 0, 8) FOUR(FOURTH_OF_1, J)
#define SUMS_OF_1 SUM(0, s0, 0, 1) SUM(64, s0, 2, 3)

/* Signs as the first slice wants them, and lines that are fetched with each slice. */
#define SIGNS(AT, S) "vmovdqa " AT ", %%ymm" #S "\n\tvpslld %%xmm0, %%ymm" #S ", %%ymm" #S "\n\t"
#define SIGNS_OF_2 SIGNS(PANEL_0, 13) SIGNS(PANEL_1, 14)
#define SIGNS_OF_4 SIGNS(PANEL_0, 11) SIGNS(PANEL_1, 12) SIGNS(PANEL_2, 13) SIGNS(PANEL_3, 14)
#define FETCH_2(HINT) HINT " (%[at])\n\t" HINT " (%[at],%[stream])\n\t"
#define FETCH_4(HINT) FETCH_2(HINT) HINT " (%[at],%[stream],2)\n\t" HINT " (%[at],%[stream3])\n\t"

static const struct {
    uint32_t mask[FP9_LANES];
    uint8_t rotate[FP9__VECTOR];
} constant __attribute__((aligned(32))) = {
    {0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000},
    {1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12,
     1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12}};

/* Where the sums of a group of pairs begin; absent pairs have the first one's. */
struct sums {
    const char *of[MOST];
};
FP9__INLINE struct sums sums_of(const struct nest *n, const uint32_t *token, unsigned pairs)
{
    struct sums s;
    FP9__UNROLL
    for (unsigned q = 0; q < MOST; q++)
        s.of[q] = (const char *)(n->sums + (token[q < pairs ? q : 0] - n->token) * n->step);
    return s;
}

/* Where a group of pairs stands. */
struct place {
    const uint8_t *a;   // its panels' strip, then words
    const float *x;     // activations of pair 1
    const float *scale; // of the slice
    const uint8_t *at;  // what is fetched
    size_t sum;         // bytes from where the pairs' sums begin
};

/* Goes through slices of a strip, whose panels lie `slot` bytes apart: from its t-th one on, up to where
 * scales end. With three pairs and more two panels of it. */
FP9__INLINE void slices(const struct share *h, const struct sums *s, unsigned pairs, bool near, size_t slot,
                        size_t t, const float *end, struct place *place)
{
    struct place p = *place;
    const size_t stream = h->stream, line = h->line, words = fp9__head(FP9_FP9) + t * FP9__TILE_BYTES;
    const size_t slot3 = pairs > 2 ? slot : 3 * slot, stream3 = pairs > 2 ? stream : 3 * stream;
    const uint32_t shift = 2 * (uint32_t)t;
#define RUN_OF(HINT, SIGNS, FETCH, ...)                                                                      \
    __asm__ volatile(                                                                                        \
        "vmovdqa %[mask], %%ymm15\n\tvmovd %[shift], %%xmm0\n\t" SIGNS "add %[words], %[a]\n\t"              \
        "1:\n\t" FETCH(HINT) __VA_ARGS__                                                                     \
        "add $64, %[a]\n\tadd $32, %[x]\n\tadd $128, %[sum]\n\t"                                             \
        "add %[line], %[at]\n\tadd $4, %[scale]\n\tcmp %[end], %[scale]\n\tjne 1b\n\t"                       \
        : [x] "+r"(p.x), [a] "+r"(p.a), [sum] "+r"(p.sum), [scale] "+r"(p.scale), [at] "+r"(p.at)            \
        : [slot] "r"(slot), [slot3] "r"(slot3), [stream] "r"(stream), [stream3] "r"(stream3),                \
          [words] "rm"(words), [line] "rm"(line), [end] "rm"(end), [shift] "rm"(shift),                      \
          [mask] "m"(constant.mask), [rotate] "m"(constant.rotate), [s0] "r"(s->of[0]), [s1] "r"(s->of[1]),  \
          [s2] "r"(s->of[2]), [s3] "r"(s->of[3]), [s4] "r"(s->of[4])                                         \
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
          "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
#define RUN(...)                                                                                             \
    do                                                                                                       \
        if (near)                                                                                            \
            RUN_OF("prefetcht0", __VA_ARGS__);                                                               \
        else                                                                                                 \
            RUN_OF("prefetcht1", __VA_ARGS__);                                                               \
    while (0)
    if (pairs == 1)
        RUN(SIGNS_OF_4, FETCH_4, SLICE(WORD_OF_1, ) SUMS_OF_1);
    else if (pairs == 2)
        RUN(SIGNS_OF_4, FETCH_4, SLICE(WORD_OF_2, ) SUMS_OF_2);
    else if (pairs == 3)
        RUN(SIGNS_OF_2, FETCH_2, SLICE(WORD_ONCE, INPUT_OF_3) SUMS_OF_3);
    else if (pairs == 4)
        RUN(SIGNS_OF_2, FETCH_2, SLICE(WORD_ONCE, INPUT_OF_4) SUMS_OF_4);
    else
        RUN(SIGNS_OF_2, FETCH_2, SLICE(WORD_TWICE, INPUT_OF_5) SUMS_OF_5);
    *place = p;
}

/* The same with all its panels. */
FP9__INLINE void panels(const struct share *h, const struct sums *s, unsigned pairs, bool near, size_t slot,
                        size_t t, const float *end, struct place *p)
{
    if (pairs > 2) {
        struct place first = *p;
        slices(h, s, pairs, near, slot, t, end, &first);
        p->a += 2 * slot;
        p->at += 2 * h->stream;
        p->sum += FP9_QUAD * sizeof(__m256) / 2;
    }
    slices(h, s, pairs, near, slot, t, end, p);
    if (pairs > 2) {
        p->at -= 2 * h->stream;
        p->sum -= FP9_QUAD * sizeof(__m256) / 2;
    }
}

/* What the signs take, at `at`. Where the words are fetched into L2, half of it goes into L1: all of it into
 * L2 makes down of 64 tokens a fifth slower on Zen 4, all into L1 a twentieth. */
FP9__INLINE void fetch_signs(const struct share *h, bool near, const uint8_t *at)
{
    FP9__UNROLL
    for (size_t i = 0; i < FP9__STREAMS; i++)
        fp9__fetch_line(at + i * h->stream, near || i >= FP9__STREAMS / 2);
}

/* The quad it stands at: all strips. `scales` of its slices, `x` the first one's activations. */
FP9__INLINE void quad(const struct share *h, const struct sums *s, unsigned pairs, bool near,
                      const float *scales, const float *x)
{
    const struct nest *n = h->nest;
    const float *const last = scales + h->count;
    const uint8_t *at = h->quad + h->from;
    size_t strip = h->first / FP9__STRIP_TILES, t = h->first % FP9__STRIP_TILES;
    struct place p = {.x = x,
                      .scale = scales,
                      .at = h->ahead + t * h->line,
                      .sum = h->index * n->chunk * FP9_QUAD * sizeof(__m256)};
    for (; p.scale < last; strip++, t = 0, at += fp9__quad_strip(FP9_FP9)) {
        const size_t slot = fp9__slot(FP9_FP9, n, strip), left = (size_t)(last - p.scale);
        const float *end = left < FP9__STRIP_TILES - t ? last : p.scale + FP9__STRIP_TILES - t;
        fetch_signs(h, near, p.at + FP9__STRIP_TILES * h->line);
        p.a = at;
        panels(h, s, pairs, near, slot, t, end, &p);
        p.x += (n->d->pairs - 1) * FP9__PAIR;
        p.at += fp9__head(FP9_FP9) * h->line / FP9__TILE_BYTES;
    }
}

/* All quads. `near`: what is fetched goes into L1. */
FP9__INLINE void quads(struct share *h, unsigned pairs, bool near)
{
    const struct fp9_down *d = h->nest->d;
    const struct sums sums = sums_of(h->nest, d->token + h->pair, pairs);
    const float *x = d->hs + fp9_down_hs(d->pairs, h->pair + 1, h->first), *row = NULL;
    float scales[FP9__MOST_CHUNK];
    do {
        for (size_t i = 0; i < h->count && row != h->scales; i++)
            scales[i] = h->scales[(h->column + 8 * (h->first + i)) / FP9_BLOCK];
        row = h->scales;
        quad(h, &sums, pairs, near, scales, x);
    } while (fp9__next_quad(h));
}

/* Where a visit is one quad, many tokens' sums and activations need the L2, and a visit has many pairs: with
 * 256 tokens into L2 is 8 % slower on Zen 4; with 64 or 128 it takes 0.6 and 0.8 of the time. */
FP9__INLINE void share(struct share *h, unsigned pairs)
{
    if (h->nest->quads > 1)
        quads(h, pairs, false);
    else
        quads(h, pairs, true);
}

#define SHARE_FUNCTION(Q)                                                                                    \
    void fp9__share_##Q(struct share *h)                                                                     \
    {                                                                                                        \
        share(h, Q);                                                                                         \
    }
SHARE_FUNCTION(1)
SHARE_FUNCTION(2)
SHARE_FUNCTION(3)
SHARE_FUNCTION(4)
SHARE_FUNCTION(5)

void fp9__share_groups(struct share *h)
{
    if (h->nest->quads * h->count < LONG_VISIT) {
        fp9__share_many(h);
        return;
    }
    struct share half = *h; // each goes through all quads
    half.end = h->pair + (h->end - h->pair) / 2;
    h->pair = half.end;
    fp9__avx2_share_of(FP9_FP9, half.end - half.pair)(&half);
    fp9__avx2_share_of(FP9_FP9, h->end - h->pair)(h);
}
