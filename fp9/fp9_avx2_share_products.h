/* fp9_avx2_share_products.h: the products of three to five pairs with the four panels of a quad, in assembly, for
 * fp9_avx2_share_direct.c and fp9_avx2_share_many.c.
 *
 * Written down as they shall run: the compiler would put accumulators into memory. Two panels at a time; pair
 * Q and panel P of two have accumulator 2 Q + P; an activation is in register 10, its weights in 11 and 12,
 * the mask in 15. The first product replaces an accumulator: where +0 plus it would be +0 it may be -0, which
 * no sum shows, as none of them is -0. */
#ifndef FP9_FP9_AVX2_SHARE_PRODUCTS_H
#define FP9_FP9_AVX2_SHARE_PRODUCTS_H

#include "fp9/fp9_avx2_down.h"

enum { FP9__MOST = 5 }; // pairs whose products are made together

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
    const char *of[FP9__MOST];
};
FP9__INLINE struct sums fp9__sums(const struct nest *n, const uint32_t *token, unsigned pairs)
{
    struct sums s;
    FP9__UNROLL
    for (unsigned q = 0; q < FP9__MOST; q++)
        s.of[q] = (const char *)(n->sums + (token[q < pairs ? q : 0] - n->token) * n->step);
    return s;
}
#define SUMS_OPERANDS(S)                                                                                     \
    [s0] "r"((S).of[0]), [s1] "r"((S).of[1]), [s2] "r"((S).of[2]), [s3] "r"((S).of[3]), [s4] "r"((S).of[4])
#define PRODUCT_REGISTERS                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm12", "xmm13", "xmm14", "xmm15"

#endif
