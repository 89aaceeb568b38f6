/* fp9_avx2_many.c: products of many tokens, or of one panel, with AVX2: a block of weights is unpacked once
 * into L1 and used for all tokens. */
#include "fp9/fp9_avx2_dot.h"

enum {
    MOST = 96,             // tokens of a pass: their blocks of activations stay in the L2
    WORDS = FP9_BLOCK / 4, // of a block
    TOKENS = 6, // tokens x 2 panels = 12 accumulators, which with 2 weights and x fill the 16 registers
};

/* Up to two panels of a block as the products read them. Of a word (four inputs) of panel p, word j of the
 * block: inputs 0 and 1 in the halves of the lanes at first + p * slot + 32 j, with `gap` bytes more after
 * each strip; inputs 2 and 3 in those of second + 32 (panels * j + p). What else is in the lanes is masked.
 * Of fp9 the former are the packed words. */
struct block {
    const uint8_t *first, *second;
    ptrdiff_t slot;
    size_t gap, from, end; // inputs of the rows
    float scale[2];
    __m256i mask;
};

/* Where they are unpacked to; something lies before each, for halves are loaded two bytes earlier. */
struct views {
    __m256i before, second[2 * WORDS], between, first[2][WORDS];
};

/* The second views of a block of fp9. */
static void unpack_fp9(const uint8_t *group, size_t tiles, __m256i *second, size_t step)
{
    const enum fp9__way way = FP9__WAY_FP9;
    for (; tiles > 0; group += fp9__whole_strip(FP9_FP9)) {
        __m256i s = fp9__signs(way, group, 0);
        const size_t of_strip = tiles < FP9__STRIP_TILES ? tiles : FP9__STRIP_TILES;
        tiles -= of_strip;
        for (size_t j = 0; j < 2 * of_strip; j++, second += step) {
            __m256i word = fp9__load(group + fp9__head(FP9_FP9) + j * FP9__VECTOR);
            *second = fp9__second_halves(way, fp9__second_view(way, word, s));
            s = fp9__next_signs(way, s);
        }
    }
}

/* Both views of one of e4m3. */
FP9__INLINE void unpack_e4m3(enum fp9__way way, const uint8_t *group, size_t tiles, __m256i *first,
                             __m256i *second, size_t step)
{
    for (size_t j = 0; j < 2 * tiles; j++, second += step) {
        __m256i word = fp9__load(group + j * FP9__VECTOR);
        first[j] = fp9__first_view(way, word);
        *second = fp9__second_halves(way, fp9__second_view(way, word, word));
    }
}

static void unpack_block(enum fp9_format f, const struct fp9__stream *s, unsigned panels, size_t block,
                         size_t tiles, struct views *v, struct block *b)
{
    uint32_t marked = fp9__marked_in(f, s, panels, block);
    const size_t at = block * fp9__group_bytes(f);
    b->mask = fp9__mask(marked ? FP9__WAY_SMALL : fp9__way_of(f, 0, 0));
    for (unsigned p = 0; p < panels; p++) {
        const uint8_t *group = s[p].panel + at;
        b->scale[p] = s[p].scales[block];
        if (f == FP9_FP9) {
            unpack_fp9(group, tiles, v->second + p, panels);
        } else if (!marked) {
            unpack_e4m3(FP9__WAY_E4M3, group, tiles, v->first[p], v->second + p, panels);
        } else {
            unpack_e4m3(FP9__WAY_SMALL, group, tiles, v->first[p], v->second + p, panels);
            b->scale[p] *= FP9_W_SCALE / FP9_E4M3_SCALE;
        }
    }
    b->second = (const uint8_t *)v->second;
    b->first = f == FP9_FP9 ? s[0].panel + at + fp9__head(f) : (const uint8_t *)v->first[0];
    b->slot = f == FP9_FP9 ? s[panels - 1].panel - s[0].panel : (ptrdiff_t)sizeof v->first[0];
    b->gap = fp9__head(f);
}

/* a0 += w0 times *x, and with two panels a1 += w1 times *x. Written down as it shall run: the compiler would
 * load activations before their turn and put accumulators into memory for them. */
FP9__INLINE void products(const float *x, unsigned panels, __m256 w0, __m256 w1, __m256 *a0, __m256 *a1)
{
    __m256 xk;
    if (panels > 1)
        __asm__ volatile("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
                         : "+x"(*a0), "+x"(*a1), "=&x"(xk)
                         : "m"(*x), "x"(w0), "x"(w1));
    else
        __asm__ volatile("vbroadcastss %2, %1\n\tvfmadd231ps %3, %1, %0"
                         : "+x"(*a0), "=&x"(xk)
                         : "m"(*x), "x"(w0));
}

/* A part: `tokens` rows x; y of the first panel, `side` floats from that of the second. A line of weights is
 * fetched for every tile, at `ahead` and `slot` bytes from there: all at once, while weights are unpacked,
 * they would be more than the core can wait for at a time. */
FP9__INLINE void micro(const struct block *b, unsigned panels, const float *const x[], unsigned tokens,
                       float *y, ptrdiff_t side, size_t y_stride, const char *ahead, ptrdiff_t slot)
{
    const __m256i mask = b->mask;
    const uint8_t *first = b->first, *second = b->second;
    const ptrdiff_t first_slot = b->slot;
    __m256 acc[2][TOKENS];
    FP9__UNROLL
    for (unsigned p = 0; p < panels; p++) FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) acc[p][t] = _mm256_setzero_ps();
    for (size_t i = b->from, stop; i < b->end; first += b->gap) {
        stop = b->end - i < FP9_STRIP_INPUTS ? b->end : i + FP9_STRIP_INPUTS;
        for (; i < stop; i += FP9_TILE_INPUTS, ahead += FP9__TILE_BYTES) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            if (panels > 1) _mm_prefetch(ahead + slot, _MM_HINT_T0);
            FP9__UNROLL
            for (unsigned k = 0; k < FP9_TILE_INPUTS; k++) {
                const uint8_t *from = k % 4 < 2 ? first : second;
                const ptrdiff_t next = k % 4 < 2 ? first_slot : FP9__VECTOR;
                __m256 w0 = fp9__half(from, k % 2, mask), w1 = w0;
                if (panels > 1) w1 = fp9__half(from + next, k % 2, mask);
                FP9__UNROLL
                for (unsigned t = 0; t < tokens; t++)
                    products(x[t] + i + k, panels, w0, w1, &acc[0][t], &acc[1][t]);
                if (k % 4 == 3) {
                    first += FP9__VECTOR;
                    second += panels * FP9__VECTOR;
                }
            }
        }
    }
    const __m256 scale[2] = {_mm256_broadcast_ss(&b->scale[0]), _mm256_broadcast_ss(&b->scale[1])};
    FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++, y += y_stride) {
        FP9__UNROLL
        for (unsigned p = 0; p < panels; p++) {
            float *out = y + (p ? side : 0);
            _mm256_storeu_ps(out, _mm256_fmadd_ps(scale[p], acc[p][t], _mm256_loadu_ps(out)));
        }
    }
}

/* A function of its own per size, for the registers' sake. */
#define MICRO_FUNCTION(P, T)                                                                                 \
    static __attribute__((noinline)) void micro_##P##_##T(const struct block *b, const float *const *x,      \
                                                          float *y, ptrdiff_t side, size_t y_stride,         \
                                                          const char *ahead, ptrdiff_t slot)                 \
    {                                                                                                        \
        micro(b, P, x, T, y, side, y_stride, ahead, slot);                                                   \
    }
MICRO_FUNCTION(1, 3)
MICRO_FUNCTION(1, 4)
MICRO_FUNCTION(1, 5)
MICRO_FUNCTION(1, 6)
MICRO_FUNCTION(2, 3)
MICRO_FUNCTION(2, 4)
MICRO_FUNCTION(2, 5)
MICRO_FUNCTION(2, 6)

typedef void micro_fn(const struct block *b, const float *const *x, float *y, ptrdiff_t side, size_t y_stride,
                      const char *ahead, ptrdiff_t slot);

/* Tokens in parts of nearly equal size, 3 at least (7 are 3 + 4). */
struct tokens {
    const float *const *x;
    size_t count, parts, stride; // stride: of y
};

/* A block of one or two panels; `next` are read after it, from byte `at` on. */
static void all_parts(const struct block *b, unsigned panels, const struct fp9__stream *s,
                      const struct tokens *t, const struct fp9__stream *next, size_t at)
{
    static micro_fn *const size[2][4] = {{micro_1_3, micro_1_4, micro_1_5, micro_1_6},
                                         {micro_2_3, micro_2_4, micro_2_5, micro_2_6}};
    const ptrdiff_t side = s[panels - 1].y - s->y, slot = next[panels - 1].panel - next->panel;
    const char *ahead = (const char *)next->panel + at;
    for (size_t part = 0, from = 0, end; part < t->parts; part++, from = end) {
        end = t->count * (part + 1) / t->parts;
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): a part has 3 .. TOKENS tokens
        size[panels - 1][end - from - 3](b, t->x + from, s->y + from * t->stride, side, t->stride, ahead,
                                         slot);
        /* Two parts fetch all there is. */
        ahead = part == 0 ? ahead + FP9__GROUP_TILES * FP9__TILE_BYTES : (const char *)b->second;
    }
}

/* Panels two at a time. Blocks are the outer loop: one block of the activations stays in L1 until all panels
 * have had it, and the next two panels' weights are fetched meanwhile. (Fetching the next block of
 * activations by hand did not pay.) */
static void many_tokens(enum fp9_format f, const struct fp9__stream *s, size_t n, size_t inputs,
                        const struct tokens *t)
{
    struct views v;
    struct block b;
    const size_t tiles = fp9__tiles(inputs);
    for (size_t first = 0; first < tiles; first += FP9__GROUP_TILES) {
        size_t group = fp9__group_tiles(tiles, first), block = first / FP9__GROUP_TILES;
        b.from = first * FP9_TILE_INPUTS;
        b.end = b.from + group * FP9_TILE_INPUTS;
        for (size_t i = 0; i < n; i += 2) {
            const unsigned panels = n - i > 1 ? 2 : 1;
            const bool last = i + 2 >= n, odd = !last && n - i == 3; // the next one has no second panel
            unpack_block(f, s + i, panels, block, group, &v, &b);
            all_parts(&b, panels, s + i, t, last ? s : s + i + 2 - odd, (block + last) * fp9__group_bytes(f));
        }
    }
}

void fp9__avx2_many(enum fp9_format f, const struct fp9__stream *s, size_t n, size_t inputs,
                    const struct fp9_rows *rows, size_t y_stride)
{
    const float *x[MOST];
    const size_t passes = (rows->count + MOST - 1) / MOST;
    for (size_t pass = 0; pass < passes; pass++) {
        const size_t from = rows->count * pass / passes, end = rows->count * (pass + 1) / passes;
        const size_t count = end - from;
        struct fp9__stream to[FP9__PANELS];
        struct tokens t = {
            .x = x, .count = count, .parts = (count + TOKENS - 1) / TOKENS, .stride = y_stride};
        for (size_t i = 0; i < count; i++) x[i] = fp9__row_of(rows, from + i);
        for (size_t i = 0; i < n; i++) {
            to[i] = s[i];
            to[i].y += from * y_stride;
        }
        many_tokens(f, to, n, inputs, &t);
    }
}
