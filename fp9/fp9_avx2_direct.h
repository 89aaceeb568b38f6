/* fp9_avx2_direct.h: products of two to six tokens with weights of fp9 that are made in registers on the way;
 * code for fp9_avx2_few.h, which says what FP9__FETCH and the like are.
 *
 * Eight to twelve chains of multiply-adds hide their latency: four panels of two tokens, three of three, two
 * of more. Written down in assembly, for every register is taken; a compiler would put accumulators and views
 * into memory. Inputs are the outer loop, so that neighbouring instructions belong to different chains. A
 * loop is one tile: a strip would save instructions, but its 600 are too many for what a busy sibling leaves
 * of the caches of decoded ones. Beside the multiply-adds it is shifts that cost most (docs/numbers.md), so S
 * is kept in a register and doubled for each word as far as registers reach, and what comes shifted by bytes
 * is loaded from bytes earlier. */
#ifndef FP9_FP9_AVX2_DIRECT_H
#define FP9_FP9_AVX2_DIRECT_H

#include "fp9/fp9_avx2_dot.h"

/* How far a stream's prefetch reaches from the block at `offset` on: from a panel's end into the next one. */
FP9__INLINE size_t fp9__ahead_of(enum fp9_format f, const struct fp9__stream *s, size_t offset, size_t bytes)
{
    size_t ahead = bytes < FP9__FETCH_AHEAD ? bytes : FP9__FETCH_AHEAD;
    return offset + ahead + fp9__group_bytes(f) <= bytes ? ahead
                                                         : ahead + (size_t)(s->next - s->panel) - bytes;
}

/* A line that is needed soon. */
FP9__INLINE void fp9__fetch_line(const uint8_t *line)
{
    _mm_prefetch((const char *)line, FP9__FETCH_HINT);
}

enum { MOST_SIDE = 4, SUMS = 12 };

/* ymm0 .. 11 are accumulators, as many as there are, then S, weights and an activation; ymm15 is the mask. */
#define Y(N) "%%ymm" #N
#define OP2(OP, A, B) #OP " " A ", " B "\n\t"
#define OP3(OP, A, B, C) #OP " " A ", " B ", " C "\n\t"
#define AND(A, W) OP3(vpand, A, Y(15), Y(W))
#define FMA(W, X, SUM) OP3(vfmadd231ps, Y(W), Y(X), Y(SUM))
#define DOUBLE(S) OP3(vpaddd, Y(S), Y(S), Y(S))
#define ADD(BY, P) "add $" #BY ", %[" #P "]\n\t"
#define FETCH(P, OFF) FP9__FETCH " " #OFF "(%[" #P "],%[ahead])\n\t"

/* Word J (0, 1) of panel P's tile: as it is, two and one bytes earlier; S of the tile's strip (before which
 * nothing may be); activation K of that word; how far S is shifted for it and for one byte earlier. */
#define WORD(P, J) "32+32*" #J "(%[" #P "])"
#define LOWER(P, J) "30+32*" #J "(%[" #P "])"
#define EARLY(P, J) "31+32*" #J "(%[" #P "])"
#define SIGNS(P) "(%[" #P "],%[back])"
#define X(T, J, K) "16*" #J "+4*" #K "(%[x" #T "],%[i],4)"
#define COUNT(J) "32*" #J "(%[count])"
#define EARLY_COUNT(J) "256+32*" #J "(%[count])"

/* Inputs 2 and 3 of a word with S in a register, and without. */
#define SECOND(P, J, S, W) OP3(vpxor, WORD(P, J), Y(S), Y(W))
#define INPUT_2(W) OP3(vpslld, "$8", Y(W), Y(W)) AND(Y(W), W)
#define INPUT_3(W) OP3(vpshufb, "%[rotate]", Y(W), Y(W)) AND(Y(W), W)
#define COUNTED_2(P, J, W)                                                                                   \
    OP2(vmovdqa, SIGNS(P), Y(W))                                                                             \
    OP3(vpsllvd, EARLY_COUNT(J), Y(W), Y(W)) OP3(vpxor, EARLY(P, J), Y(W), Y(W)) AND(Y(W), W)
#define COUNTED_3(P, J, W)                                                                                   \
    OP2(vmovdqa, SIGNS(P), Y(W))                                                                             \
    OP3(vpsllvd, COUNT(J), Y(W), Y(W)) OP3(vpxor, WORD(P, J), Y(W), Y(W)) INPUT_3(W)

/* ---- two panels: weights in ymm12 and 13, each activation in ymm14 ---- */

#define OF_TWO(T, J, K, A, B) OP2(vbroadcastss, X(T, J, K), Y(14)) FMA(12, 14, A) FMA(13, 14, B)
#define TWO_3(J, K) OF_TWO(0, J, K, 0, 1) OF_TWO(1, J, K, 2, 3) OF_TWO(2, J, K, 4, 5)
#define TWO_4(J, K) TWO_3(J, K) OF_TWO(3, J, K, 6, 7)
#define TWO_5(J, K) TWO_4(J, K) OF_TWO(4, J, K, 8, 9)
#define TWO_6(J, K) TWO_5(J, K) OF_TWO(5, J, K, 10, 11)
#define FIRST_OF_TWO(J, TWO)                                                                                 \
    AND(WORD(p0, J), 12) AND(WORD(p1, J), 13) TWO(J, 0) AND(LOWER(p0, J), 12) AND(LOWER(p1, J), 13) TWO(J, 1)
/* S in ymm10 and 11. */
#define WORD_OF_TWO(J, TWO)                                                                                  \
    FIRST_OF_TWO(J, TWO)                                                                                     \
    SECOND(p0, J, 10, 12)                                                                                    \
    SECOND(p1, J, 11, 13)                                                                                    \
    INPUT_2(12)                                                                                              \
    INPUT_2(13) TWO(J, 2) SECOND(p0, J, 10, 12) SECOND(p1, J, 11, 13) INPUT_3(12) INPUT_3(13) DOUBLE(10)     \
        DOUBLE(11) TWO(J, 3)
/* No register for S. */
#define WORD_OF_SIX(J)                                                                                       \
    FIRST_OF_TWO(J, TWO_6)                                                                                   \
    COUNTED_2(p0, J, 12)                                                                                     \
    COUNTED_2(p1, J, 13) TWO_6(J, 2) COUNTED_3(p0, J, 12) COUNTED_3(p1, J, 13) TWO_6(J, 3)
#define SIGNS_OF_TWO OP2(vmovdqa, "(%[p0])", Y(10)) OP2(vmovdqa, "(%[p1])", Y(11))
#define FETCH_TWO(OFF) FETCH(p0, OFF) FETCH(p1, OFF)
#define ADVANCE_TWO(BY) ADD(BY, p0) ADD(BY, p1)

/* ---- three panels of three tokens: S of two in ymm9 and 10, weights in ymm11 .. 13, activation in ymm14
 * ---- */

#define OF_THREE(T, J, K, A, B, C)                                                                           \
    OP2(vbroadcastss, X(T, J, K), Y(14)) FMA(11, 14, A) FMA(12, 14, B) FMA(13, 14, C)
#define THREE(J, K) OF_THREE(0, J, K, 0, 1, 2) OF_THREE(1, J, K, 3, 4, 5) OF_THREE(2, J, K, 6, 7, 8)
#define WORD_OF_THREE(J)                                                                                     \
    AND(WORD(p0, J), 11)                                                                                     \
    AND(WORD(p1, J), 12)                                                                                     \
    AND(WORD(p2, J), 13)                                                                                     \
    THREE(J, 0) AND(LOWER(p0, J), 11) AND(LOWER(p1, J), 12) AND(LOWER(p2, J), 13) THREE(J, 1)                \
        SECOND(p0, J, 9, 11) SECOND(p1, J, 10, 12) INPUT_2(11) INPUT_2(12) COUNTED_2(p2, J, 13) THREE(J, 2)  \
            SECOND(p0, J, 9, 11) SECOND(p1, J, 10, 12) INPUT_3(11) INPUT_3(12) COUNTED_3(p2, J, 13)          \
                DOUBLE(9) DOUBLE(10) THREE(J, 3)
#define SIGNS_OF_THREE OP2(vmovdqa, "(%[p0])", Y(9)) OP2(vmovdqa, "(%[p1])", Y(10))
#define FETCH_THREE(OFF) FETCH_TWO(OFF) FETCH(p2, OFF)
#define ADVANCE_THREE(BY) ADVANCE_TWO(BY) ADD(BY, p2)

/* ---- four panels of two tokens: activations in ymm8 and 9, the weight in ymm10, S in ymm11 .. 14 ---- */

#define BOTH(A, B) FMA(10, 8, A) FMA(10, 9, B)
#define BOTH_X(J, K) OP2(vbroadcastss, X(0, J, K), Y(8)) OP2(vbroadcastss, X(1, J, K), Y(9))
#define FIRST_OF_FOUR(J, K, HALF)                                                                            \
    BOTH_X(J, K)                                                                                             \
    AND(HALF(p0, J), 10)                                                                                     \
    BOTH(0, 1) AND(HALF(p1, J), 10) BOTH(2, 3) AND(HALF(p2, J), 10) BOTH(4, 5) AND(HALF(p3, J), 10) BOTH(6, 7)
#define SECOND_OF_FOUR(J, K, INPUT)                                                                          \
    BOTH_X(J, K)                                                                                             \
    SECOND(p0, J, 11, 10)                                                                                    \
    INPUT(10)                                                                                                \
    BOTH(0, 1)                                                                                               \
    SECOND(p1, J, 12, 10) INPUT(10) BOTH(2, 3) SECOND(p2, J, 13, 10) INPUT(10) BOTH(4, 5)                    \
        SECOND(p3, J, 14, 10) INPUT(10) BOTH(6, 7)
#define WORD_OF_FOUR(J)                                                                                      \
    FIRST_OF_FOUR(J, 0, WORD)                                                                                \
    FIRST_OF_FOUR(J, 1, LOWER)                                                                               \
    SECOND_OF_FOUR(J, 2, INPUT_2) SECOND_OF_FOUR(J, 3, INPUT_3) DOUBLE(11) DOUBLE(12) DOUBLE(13) DOUBLE(14)
#define SIGNS_OF_FOUR                                                                                        \
    OP2(vmovdqa, "(%[p0])", Y(11))                                                                           \
    OP2(vmovdqa, "(%[p1])", Y(12)) OP2(vmovdqa, "(%[p2])", Y(13)) OP2(vmovdqa, "(%[p3])", Y(14))
#define FETCH_FOUR(OFF) FETCH_THREE(OFF) FETCH(p3, OFF)
#define ADVANCE_FOUR(BY) ADVANCE_THREE(BY) ADD(BY, p3)

/* ---- a block ---- */

#define ZERO(N) OP3(vpxor, Y(N), Y(N), Y(N))
#define ZERO_6 ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5)
#define ZERO_8 ZERO_6 ZERO(6) ZERO(7)
#define ZERO_9 ZERO_8 ZERO(8)
#define ZERO_10 ZERO_9 ZERO(9)
#define ZERO_12 ZERO_10 ZERO(10) ZERO(11)
#define STORE(N) "vmovdqa " Y(N) ", 32*" #N "(%[back])\n\t"
#define STORE_6 STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5)
#define STORE_8 STORE_6 STORE(6) STORE(7)
#define STORE_9 STORE_8 STORE(8)
#define STORE_10 STORE_9 STORE(9)
#define STORE_12 STORE_10 STORE(10) STORE(11)
#define FIRST_COUNT "lea %[counts], %[count]\n\t"
#define NEXT_COUNT "add $64, %[count]\n\t"

/* Strips from input i up to `end`. Pointers are at the tile's words less the 32 bytes of S, `back` is from
 * there to the strip. Each tile fetches a line of each panel, each strip one more. */
#define BLOCK(ZEROS, PER_STRIP, PER_TILE, FETCH_AT, ADVANCE, STORES, INPUTS, ...)                            \
    size_t back;                                                                                             \
    __asm__ volatile(                                                                                        \
        "vmovdqa %[mask], %%ymm15\n\t" ZEROS "1:\n\t" PER_STRIP FETCH_AT(                                    \
            256) "xor %k[back], %k[back]\n\t"                                                                \
                 "2:\n\t" FETCH_AT(0) PER_TILE ADVANCE(                                                      \
                     64) "add $8, %[i]\n\tsub $64, %[back]\n\tcmp $-256, %[back]\n\tjne "                    \
                         "2b\n\t" ADVANCE(32) "cmp %[end], %[i]\n\tjb 1b\n\tmov %[to], %[back]\n\t" STORES   \
        : __VA_ARGS__, [i] "+r"(i), [back] "=&r"(back)                                                       \
        : [end] "r"(end), [ahead] "r"(ahead), [to] "m"(sums), [mask] "m"(mask), [rotate] "m"(rotate), INPUTS \
        : "memory", "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9",    \
          "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15")
#define INPUTS_2 [x0] "r"(x[0]), [x1] "r"(x[1])
#define INPUTS_3 INPUTS_2, [x2] "r"(x[2])
#define INPUTS_4 INPUTS_3, [x3] "r"(x[3])
#define INPUTS_5 INPUTS_4, [x4] "r"(x[4])
#define INPUTS_6 INPUTS_5, [x5] "r"(x[5])
#define AND_COUNTS , [counts] "m"(counts)
#define POINTERS_2 [p0] "+r"(p0), [p1] "+r"(p1)
#define POINTERS_3 POINTERS_2, [p2] "+r"(p2)
#define POINTERS_4 POINTERS_3, [p3] "+r"(p3)

static const uint64_t rotate[4] __attribute__((aligned(32))) = {0x0407060500030201, 0x0c0f0e0d080b0a09,
                                                                0x0407060500030201, 0x0c0f0e0d080b0a09};
static const uint64_t mask[4] __attribute__((aligned(32))) = {0x8ff000008ff00000, 0x8ff000008ff00000,
                                                              0x8ff000008ff00000, 0x8ff000008ff00000};
#define ALL(N) {N, N, N, N, N, N, N, N}
static const uint32_t counts[16][8] __attribute__((aligned(32))) = {
    ALL(0), ALL(1), ALL(2),  ALL(3),  ALL(4),  ALL(5),  ALL(6),  ALL(7),
    ALL(8), ALL(9), ALL(10), ALL(11), ALL(12), ALL(13), ALL(14), ALL(15)};

/* The sums of inputs [i, end) of a block that begins with input i. */
typedef void block_fn(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums);

static void block_2_3(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1];
    BLOCK(ZERO_6, SIGNS_OF_TWO, WORD_OF_TWO(0, TWO_3) WORD_OF_TWO(1, TWO_3), FETCH_TWO, ADVANCE_TWO, STORE_6,
          INPUTS_3, POINTERS_2);
}

static void block_2_4(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1];
    BLOCK(ZERO_8, SIGNS_OF_TWO, WORD_OF_TWO(0, TWO_4) WORD_OF_TWO(1, TWO_4), FETCH_TWO, ADVANCE_TWO, STORE_8,
          INPUTS_4, POINTERS_2);
}

static void block_2_5(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1];
    BLOCK(ZERO_10, SIGNS_OF_TWO, WORD_OF_TWO(0, TWO_5) WORD_OF_TWO(1, TWO_5), FETCH_TWO, ADVANCE_TWO,
          STORE_10, INPUTS_5, POINTERS_2);
}

static void block_2_6(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1];
    size_t count;
    BLOCK(ZERO_12, FIRST_COUNT, WORD_OF_SIX(0) WORD_OF_SIX(1) NEXT_COUNT, FETCH_TWO, ADVANCE_TWO, STORE_12,
          INPUTS_6 AND_COUNTS, POINTERS_2, [count] "=&r"(count));
}

static void block_3_3(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1], *p2 = at[2];
    size_t count;
    BLOCK(ZERO_9, SIGNS_OF_THREE FIRST_COUNT, WORD_OF_THREE(0) WORD_OF_THREE(1) NEXT_COUNT, FETCH_THREE,
          ADVANCE_THREE, STORE_9, INPUTS_3 AND_COUNTS, POINTERS_3, [count] "=&r"(count));
}

static void block_4_2(const uint8_t *const at[], ptrdiff_t ahead, const float *const x[], size_t i,
                      size_t end, __m256 *sums)
{
    const uint8_t *p0 = at[0], *p1 = at[1], *p2 = at[2], *p3 = at[3];
    BLOCK(ZERO_8, SIGNS_OF_FOUR, WORD_OF_FOUR(0) WORD_OF_FOUR(1), FETCH_FOUR, ADVANCE_FOUR, STORE_8, INPUTS_2,
          POINTERS_4);
}

/* A size: `side` panels; the sum of panel p and token t is sums[p * panel + t * token]. */
struct size {
    block_fn *block;
    unsigned side, panel, token;
};

/* Left of a dot are n panels: three of three tokens, but rather two and two than three and one. */
static const struct size *size_of(size_t tokens, size_t n)
{
    static const struct size four_2 = {block_4_2, 4, 2, 1}, three_3 = {block_3_3, 3, 1, 3},
                             two[] = {{block_2_3, 2, 1, 2},
                                      {block_2_4, 2, 1, 2},
                                      {block_2_5, 2, 1, 2},
                                      {block_2_6, 2, 1, 2}};
    if (tokens == 2) return &four_2;
    return tokens == 3 && n != 2 && n != 4 ? &three_3 : &two[tokens - 3];
}

static void panels(const struct size *size, const struct fp9__stream *s, const uint8_t *next, size_t inputs,
                   const float *const x[], size_t tokens, size_t y_stride)
{
    struct fp9__stream first = *s;
    first.next = next;
    const size_t bytes = fp9_panel_bytes(FP9_FP9, inputs);
    for (size_t block = 0; block * FP9_BLOCK < inputs; block++) {
        const size_t from = block * FP9_BLOCK, offset = block * fp9__group_bytes(FP9_FP9);
        const uint8_t *at[MOST_SIDE];
        __m256 sums[SUMS];
        for (unsigned p = 0; p < size->side; p++) at[p] = s[p].panel + offset;
        size->block(at, (ptrdiff_t)fp9__ahead_of(FP9_FP9, &first, offset, bytes), x, from,
                    inputs - from < FP9_BLOCK ? inputs : from + FP9_BLOCK, sums);
        for (unsigned p = 0; p < size->side; p++) {
            const __m256 scale = _mm256_broadcast_ss(s[p].scales + block);
            for (size_t t = 0; t < tokens; t++) {
                float *y = s[p].y + t * y_stride;
                const __m256 sum = sums[p * size->panel + t * size->token];
                _mm256_storeu_ps(y, _mm256_fmadd_ps(scale, sum, _mm256_loadu_ps(y)));
            }
        }
    }
}

/* Adds the products of n panels of fp9 with two to FP9__TOKENS tokens to y. Returns how many panels it did: as
 * many as fit its sizes, none unless the inputs are whole strips. */
static size_t direct(const struct fp9__stream *s, size_t n, size_t inputs, const struct fp9_rows *rows,
                     size_t y_stride)
{
    const float *x[FP9__TOKENS];
    if (inputs % FP9_STRIP_INPUTS) return 0;
    for (size_t t = 0; t < rows->count; t++) x[t] = fp9__row_of(rows, t);
    for (size_t i = 0;;) {
        const struct size *size = size_of(rows->count, n - i);
        const size_t end = i + size->side;
        if (end > n) return i;
        panels(size, s + i, end < n ? s[end].panel : s[i].next, inputs, x, rows->count, y_stride);
        i = end;
    }
}

#endif
