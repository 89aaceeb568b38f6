/* fp9_avx2_share_direct.c: what an expert with two to five pairs adds to a visit's sums, of fp9, with AVX2.
 *
 * Weights are made on the way to the products: the first two inputs of a word by a load under the mask, the
 * others out of the second view. Its signs move on from word to word; those of the four panels wait in
 * memory, so that sums are gone through in ascending order. */
#include "fp9/fp9_avx2_down.h"

/* Products of three to five pairs, written down as they shall run: the compiler would put accumulators into
 * memory. Two panels at a time; pair Q and panel P of two have accumulator 2 Q + P; an activation is in
 * register 10, its weights in 11 and 12, the mask in 15. The first product replaces an accumulator: where +0
 * plus it would be +0 it may be -0, which no sum shows, as none of them is -0. */

enum { MOST = 5 }; // pairs whose products are made together

/* Weights of word J of the panels of half H at a (`slot` bytes from panel to panel), EARLIER bytes earlier.
 */
#define WEIGHT(AT, J, EARLIER, W) "vpand 32*" #J "-" #EARLIER "+" AT ", %%ymm15, %%ymm" #W "\n\t"
#define PANEL_0 "0(%[a])"
#define PANEL_1 "0(%[a],%[slot])"
#define PANEL_2 "0(%[a],%[slot],2)"
#define PANEL_3 "0(%[a],%[slot3])"
#define FIRST_0(J, EARLIER) WEIGHT(PANEL_0, J, EARLIER, 11) WEIGHT(PANEL_1, J, EARLIER, 12)
#define FIRST_1(J, EARLIER) WEIGHT(PANEL_2, J, EARLIER, 11) WEIGHT(PANEL_3, J, EARLIER, 12)

/* Input K of all pairs; x is that of pair 1. */
#define PAIR(OP, K, Q, A, B)                                                                                 \
    "vbroadcastss 4*" #K "+128*" #Q "-128(%[x]), %%ymm10\n\t" #OP " %%ymm10, %%ymm11, %%ymm" #A "\n\t" #OP   \
    " %%ymm10, %%ymm12, %%ymm" #B "\n\t"
#define INPUT_OF_3(OP, K) PAIR(OP, K, 0, 0, 1) PAIR(OP, K, 1, 2, 3) PAIR(OP, K, 2, 4, 5)
#define INPUT_OF_4(OP, K) INPUT_OF_3(OP, K) PAIR(OP, K, 3, 6, 7)
#define INPUT_OF_5(OP, K) INPUT_OF_4(OP, K) PAIR(OP, K, 4, 8, 9)

/* The scale is in register 10. */
#define SUM(H, S, A, B)                                                                                      \
    "vfmadd213ps 64*" #H "(%[" #S "],%[sum]), %%ymm10, %%ymm" #A "\n\t"                                      \
    "vfmadd213ps 64*" #H "+32(%[" #S "],%[sum]), %%ymm10, %%ymm" #B "\n\t"                                   \
    "vmovaps %%ymm" #A ", 64*" #H "(%[" #S "],%[sum])\n\t"                                                   \
    "vmovaps %%ymm" #B ", 64*" #H "+32(%[" #S "],%[sum])\n\t"
#define SUMS_OF_3(H) SUM(H, s0, 0, 1) SUM(H, s1, 2, 3) SUM(H, s2, 4, 5)
#define SUMS_OF_4(H) SUMS_OF_3(H) SUM(H, s3, 6, 7)
#define SUMS_OF_5(H) SUMS_OF_4(H) SUM(H, s4, 8, 9)

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
#define SUMS_OPERANDS(S)                                                                                     \
    [s0] "r"((S).of[0]), [s1] "r"((S).of[1]), [s2] "r"((S).of[2]), [s3] "r"((S).of[3]), [s4] "r"((S).of[4])
#define PRODUCT_REGISTERS                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm12", "xmm13", "xmm14", "xmm15"

/* The second view: V0 and V1, made once or, where registers are short, for each use. */
#define VIEWS_0(J, V0, V1) VIEW(PANEL_0, J, 13, V0) VIEW(PANEL_1, J, 14, V1)
#define VIEWS_1(J, V0, V1) VIEW(PANEL_2, J, 13, V0) VIEW(PANEL_3, J, 14, V1)
#define VIEW(AT, J, SIGNS, V) "vpxor 32*" #J "+" AT ", %%ymm" #SIGNS ", %%ymm" #V "\n\t"
#define MASK "vpand %%ymm11, %%ymm15, %%ymm11\n\tvpand %%ymm12, %%ymm15, %%ymm12\n\t"
#define THIRD(V0, V1) "vpslld $8, %%ymm" #V0 ", %%ymm11\n\tvpslld $8, %%ymm" #V1 ", %%ymm12\n\t" MASK
#define FOURTH(V0, V1)                                                                                       \
    "vpshufb %[rotate], %%ymm" #V0 ", %%ymm11\n\tvpshufb %[rotate], %%ymm" #V1 ", %%ymm12\n\t" MASK          \
    "vpaddd %%ymm13, %%ymm13, %%ymm13\n\tvpaddd %%ymm14, %%ymm14, %%ymm14\n\t"

#define WORD_ONCE(H, INPUT, J, OP, K0, K1, K2, K3)                                                           \
    FIRST_##H(J, 0) INPUT(OP, K0) FIRST_##H(J, 2) INPUT(vfmadd231ps, K1) VIEWS_##H(J, 8, 9) THIRD(8, 9)      \
        INPUT(vfmadd231ps, K2) FOURTH(8, 9) INPUT(vfmadd231ps, K3)
#define WORD_TWICE(H, INPUT, J, OP, K0, K1, K2, K3)                                                          \
    FIRST_##H(J, 0) INPUT(OP, K0) FIRST_##H(J, 2) INPUT(vfmadd231ps, K1) VIEWS_##H(J, 11, 12) THIRD(11, 12)  \
        INPUT(vfmadd231ps, K2) VIEWS_##H(J, 11, 12) FOURTH(11, 12) INPUT(vfmadd231ps, K3)
#define HALF(H, WORD, INPUT, SUMS)                                                                           \
    "vmovdqa 64*" #H "(%[b]), %%ymm13\n\tvmovdqa 64*" #H                                                     \
    "+32(%[b]), %%ymm14\n\t" WORD(H, INPUT, 0, vmulps, 0, 1, 2, 3)                                           \
        WORD(H, INPUT, 1, vfmadd231ps, 4, 5, 6, 7) "vmovdqa %%ymm13, 64*" #H                                 \
                                                   "(%[b])\n\tvmovdqa %%ymm14, 64*" #H "+32(%[b])\n\t"       \
                                                   "vbroadcastss %[scale], %%ymm10\n\t" SUMS(H)
#define SLICE(WORD, INPUT, SUMS)                                                                             \
    "vmovdqa %[mask], %%ymm15\n\t" HALF(0, WORD, INPUT, SUMS) HALF(1, WORD, INPUT, SUMS)

/* Two pairs with all four panels: pair Q and panel P have accumulator 4 Q + P, activations are in registers 8
 * and 9, a weight in 10, signs in 11 to 14. */
#define FOUR(PANEL, ...)                                                                                     \
    PANEL(PANEL_0, 11, 0, 4, __VA_ARGS__)                                                                    \
    PANEL(PANEL_1, 12, 1, 5, __VA_ARGS__)                                                                    \
    PANEL(PANEL_2, 13, 2, 6, __VA_ARGS__)                                                                    \
    PANEL(PANEL_3, 14, 3, 7, __VA_ARGS__)
#define ACTIVATIONS(K) "vbroadcastss 4*" #K "-128(%[x]), %%ymm8\n\tvbroadcastss 4*" #K "(%[x]), %%ymm9\n\t"
#define PRODUCT(OP, A, B) #OP " %%ymm8, %%ymm10, %%ymm" #A "\n\t" #OP " %%ymm9, %%ymm10, %%ymm" #B "\n\t"
#define EITHER(AT, S, A, B, J, EARLIER, OP) WEIGHT(AT, J, EARLIER, 10) PRODUCT(OP, A, B)
#define THIRD_OF_4(AT, S, A, B, J)                                                                           \
    VIEW(AT, J, S, 10)                                                                                       \
    "vpslld $8, %%ymm10, %%ymm10\n\tvpand %%ymm10, %%ymm15, %%ymm10\n\t" PRODUCT(vfmadd231ps, A, B)
#define FOURTH_OF_4(AT, S, A, B, J)                                                                          \
    VIEW(AT, J, S, 10)                                                                                       \
    "vpshufb %[rotate], %%ymm10, %%ymm10\n\tvpand %%ymm10, %%ymm15, %%ymm10\n\t" PRODUCT(                    \
        vfmadd231ps, A, B) "vpaddd %%ymm" #S ", %%ymm" #S ", %%ymm" #S "\n\t"
#define WORD_OF_4(J, OP, K0, K1, K2, K3)                                                                     \
    ACTIVATIONS(K0)                                                                                          \
    FOUR(EITHER, J, 0, OP)                                                                                   \
    ACTIVATIONS(K1)                                                                                          \
    FOUR(EITHER, J, 2, vfmadd231ps) ACTIVATIONS(K2) FOUR(THIRD_OF_4, J) ACTIVATIONS(K3) FOUR(FOURTH_OF_4, J)
#define SLICE_OF_4                                                                                           \
    "vmovdqa %[mask], %%ymm15\n\t"                                                                           \
    "vmovdqa (%[b]), %%ymm11\n\tvmovdqa 32(%[b]), %%ymm12\n\t"                                               \
    "vmovdqa 64(%[b]), %%ymm13\n\tvmovdqa 96(%[b]), %%ymm14\n\t" WORD_OF_4(0, vmulps, 0, 1, 2, 3)            \
        WORD_OF_4(1, vfmadd231ps, 4, 5, 6, 7) "vmovdqa %%ymm11, (%[b])\n\tvmovdqa %%ymm12, 32(%[b])\n\t"     \
                                              "vmovdqa %%ymm13, 64(%[b])\n\tvmovdqa %%ymm14, 96(%[b])\n\t"   \
                                              "vbroadcastss %[scale], %%ymm10\n\t" SUM(0, s0, 0, 1)          \
                                                  SUM(1, s0, 2, 3) SUM(0, s1, 4, 5) SUM(1, s1, 6, 7)

static const struct {
    uint32_t mask[FP9_LANES];
    uint8_t rotate[FP9__VECTOR];
} constant __attribute__((aligned(32))) = {
    {0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000, 0x8ff00000},
    {1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12,
     1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12}};

/* Slices [first, end), of one strip. */
FP9__INLINE void slices(const struct share *h, const struct sums *s, unsigned pairs, size_t first, size_t end)
{
    const struct nest *n = h->nest;
    const size_t strip = first / FP9__STRIP_TILES, t = first % FP9__STRIP_TILES;
    const size_t slot = fp9__slot(FP9_FP9, n, strip);
    const size_t slot3 = 3 * slot, each = FP9_QUAD * sizeof(__m256);
    const uint8_t *at = h->quad + strip * fp9__quad_strip(FP9_FP9);
    const uint8_t *a = at + fp9__head(FP9_FP9) + t * FP9__TILE_BYTES;
    const float *x = n->d->hs + fp9_down_hs(n->d->pairs, h->pair + 1, first);
    struct ahead ahead = fp9__ahead(FP9_FP9, h, first);
    size_t sum = (h->index * n->chunk + first - h->first) * each;
    __m256i signs[FP9_QUAD];
    FP9__UNROLL
    for (unsigned p = 0; p < FP9_QUAD; p++) signs[p] = fp9__signs(FP9__WAY_FP9, at + p * slot, t);
    fp9__fetch(&ahead, FP9__STRIP_TILES);
    for (size_t i = first; i < end; i++, x += 8, a += FP9__TILE_BYTES, sum += each, ahead.at += ahead.line) {
        const float *scale = h->scales + (h->column + 8 * i) / FP9_BLOCK;
        fp9__fetch(&ahead, 0);
#define RUN(...)                                                                                             \
    __asm__ volatile(                                                                                        \
        __VA_ARGS__                                                                                          \
        :                                                                                                    \
        : [x] "r"(x), [a] "r"(a), [slot] "r"(slot), [slot3] "r"(slot3), [b] "r"(signs), [sum] "r"(sum),      \
          [scale] "m"(*scale), [mask] "m"(constant.mask), [rotate] "m"(constant.rotate), SUMS_OPERANDS(*s)   \
        : "memory", PRODUCT_REGISTERS)
        if (pairs == 2)
            RUN(SLICE_OF_4);
        else if (pairs == 3)
            RUN(SLICE(WORD_ONCE, INPUT_OF_3, SUMS_OF_3));
        else if (pairs == 4)
            RUN(SLICE(WORD_ONCE, INPUT_OF_4, SUMS_OF_4));
        else
            RUN(SLICE(WORD_TWICE, INPUT_OF_5, SUMS_OF_5));
    }
}

#define SHARE_FUNCTION(Q)                                                                                    \
    void fp9__share_##Q(struct share *h)                                                                     \
    {                                                                                                        \
        const size_t end = h->first + h->count;                                                              \
        const struct sums sums = sums_of(h->nest, h->nest->d->token + h->pair, Q);                           \
        do                                                                                                   \
            for (size_t s = h->first, stop; s < end; s = stop) {                                             \
                size_t next = s - s % FP9__STRIP_TILES + FP9__STRIP_TILES;                                   \
                stop = next < end ? next : end;                                                              \
                slices(h, &sums, Q, s, stop);                                                                \
            }                                                                                                \
        while (fp9__next_quad(h));                                                                           \
    }
SHARE_FUNCTION(2)
SHARE_FUNCTION(3)
SHARE_FUNCTION(4)
SHARE_FUNCTION(5)
