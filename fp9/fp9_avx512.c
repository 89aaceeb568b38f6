/* fp9_avx512.c: dots with AVX-512, two panels to a register; the bits of fp9_scalar.c.
 *
 * The upper half of a register is a second panel (up beside gate, or the next panel of a matrix), so that the
 * packed layout stays the same: a lane is an output still. Rotation and the three-operand logic save two of
 * AVX2's nine operations for a word. Preparation, SiLU and the down product are AVX2's: they are a small
 * part, and the down product has only four row panels at once to offer. So are dots of few tokens: a step
 * then has two or four panels side by side, too few chains of 16 lanes to hide a multiply-add's latency (on a
 * Xeon AVX2 read weights at 97 % of plain reading with two tokens and at 92 % with one, AVX-512 at 93 % and
 * 87 %). */
#include "fp9/fp9_avx2_tile.h"

enum {
    AHEAD = 2048, // bytes of prefetch per stream, as in fp9_avx2_dot.h
    FEW = 4,      // tokens that AVX2 does
    COUPLES = 2,  // couples of panels at a time
    TOKENS = 12,  // x COUPLES = 24 accumulators of the 32 registers
    BLOCK_FLOATS = FP9_BLOCK * 2 * FP9_LANES,
};

/* Two panels: where they are read, their rows of scales, where their outputs go (token t at + t * stride). A
 * panel without a second is its own; its outputs are then written twice. */
struct couple {
    const uint8_t *panel[2];
    const float *scales[2];
    const uint16_t *marks[2]; // e4m3
    float *y[2];
};

FP9__INLINE __m512i load_couple(const uint8_t *low, const uint8_t *high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(fp9__load(low)), fp9__load(high), 1);
}

FP9__INLINE __m512 scale_of(const struct couple *c, size_t block)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_broadcast_ss(c->scales[0] + block)),
                              _mm256_broadcast_ss(c->scales[1] + block), 1);
}

FP9__INLINE __m512 load_sum(const struct couple *c, size_t at)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(c->y[0] + at)),
                              _mm256_loadu_ps(c->y[1] + at), 1);
}

FP9__INLINE void store_couple(const struct couple *c, size_t at, __m512 sum)
{
    _mm256_storeu_ps(c->y[0] + at, _mm512_castps512_ps256(sum));
    _mm256_storeu_ps(c->y[1] + at, _mm512_extractf32x8_ps(sum, 1));
}

/* Input k (0..3) of a word of fp9; `mixed` is the word xor-ed with its S. */
FP9__INLINE __m512 weight(__m512i word, __m512i mixed, unsigned k)
{
    const __m512i mask = _mm512_set1_epi32((int)0x8ff00000);
    __m512i w = k == 0   ? word
                : k == 1 ? _mm512_slli_epi32(word, 16)
                : k == 2 ? _mm512_slli_epi32(mixed, 8)
                         : _mm512_rol_epi32(mixed, 24);
    return _mm512_castsi512_ps(_mm512_and_si512(w, mask));
}

/* Input k of a word of e4m3. */
FP9__INLINE __m512 weight_e4m3(__m512i word, unsigned k)
{
    const __m512i mask = _mm512_set1_epi32((int)0x87f00000);
    __m512i up = k == 0   ? word
                 : k == 1 ? _mm512_slli_epi32(word, 16)
                 : k == 2 ? _mm512_slli_epi32(word, 8)
                          : _mm512_slli_epi32(word, 24);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(up, 4), mask));
}

static const float *row_of(const struct fp9_rows *x, size_t t)
{
    return x->xs + (x->row ? x->row[t] : t) * x->stride;
}

/* ---- a block of a couple is decoded once into L1 and used for all tokens ---- */

static void decode_fp9(const struct couple *c, size_t at, size_t tiles, float *w)
{
    for (size_t t = 0; t < tiles; t += FP9__STRIP_TILES, at += fp9__whole_strip(FP9_FP9)) {
        size_t words = 2 * (tiles - t < FP9__STRIP_TILES ? tiles - t : FP9__STRIP_TILES);
        __m512i s = load_couple(c->panel[0] + at, c->panel[1] + at);
        for (size_t j = 0; j < words; j++) {
            size_t from = at + FP9__VECTOR * (1 + j);
            __m512i word = load_couple(c->panel[0] + from, c->panel[1] + from);
            __m512i mixed = _mm512_xor_si512(word, s);
            s = _mm512_add_epi32(s, s);
            _mm_prefetch((const char *)(c->panel[j % 2] + from + AHEAD), _MM_HINT_T0);
            FP9__UNROLL
            for (unsigned k = 0; k < 4; k++, w += 2 * FP9_LANES) _mm512_store_ps(w, weight(word, mixed, k));
        }
    }
}

static void decode_e4m3(const struct couple *c, size_t at, size_t tiles, float *w)
{
    for (size_t j = 0; j < 2 * tiles; j++, at += FP9__VECTOR) {
        __m512i word = load_couple(c->panel[0] + at, c->panel[1] + at);
        _mm_prefetch((const char *)(c->panel[j % 2] + at + AHEAD), _MM_HINT_T0);
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++, w += 2 * FP9_LANES) _mm512_store_ps(w, weight_e4m3(word, k));
    }
}

/* The same with subnormals, rare enough to be done by AVX2. */
static void decode_small(const struct couple *c, size_t at, size_t tiles, float *w)
{
    const enum fp9__way way = FP9__WAY_SMALL;
    for (size_t j = 0; j < 2 * tiles; j++, at += FP9__VECTOR)
        for (size_t p = 0; p < 2; p++) {
            __m256i word = fp9__load(c->panel[p] + at);
            __m256i first = fp9__first_view(way, word), second = fp9__second_view(way, word, word);
            float *to = w + 2 * FP9_LANES * 4 * j + p * FP9_LANES;
            FP9__UNROLL
            for (unsigned k = 0; k < 4; k++)
                _mm256_store_ps(to + (size_t)2 * FP9_LANES * k, fp9__weight(way, k < 2 ? first : second, k));
        }
}

/* A block of a couple; what its scales are to be multiplied by. */
static float decode_block(enum fp9_format f, const struct couple *c, size_t block, size_t tiles, float *w)
{
    size_t at = block * fp9__group_bytes(f);
    if (f == FP9_FP9) {
        decode_fp9(c, at, tiles, w);
    } else if (!(c->marks[0][block] | // NOLINT(clang-analyzer-core.NullDereference): e4m3 has marks
                 c->marks[1][block])) {
        decode_e4m3(c, at, tiles, w);
    } else {
        decode_small(c, at, tiles, w);
        return FP9_W_SCALE / FP9_E4M3_SCALE;
    }
    return 1;
}

FP9__INLINE void micro(const float *w, unsigned n, const float *const x[], unsigned tokens, size_t inputs,
                       const struct couple c[], const float by[], size_t block, size_t y_at, size_t y_stride)
{
    __m512 acc[COUPLES][TOKENS];
    FP9__UNROLL
    for (unsigned p = 0; p < n; p++) FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) acc[p][t] = _mm512_setzero_ps();
    for (size_t i = 0; i < inputs; i++) {
        __m512 wi[COUPLES];
        FP9__UNROLL
        for (unsigned p = 0; p < n; p++) wi[p] = _mm512_load_ps(w + p * BLOCK_FLOATS + 16 * i);
        FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) {
            __m512 xi = _mm512_set1_ps(x[t][i]);
            FP9__UNROLL
            for (unsigned p = 0; p < n; p++) acc[p][t] = _mm512_fmadd_ps(wi[p], xi, acc[p][t]);
        }
    }
    FP9__UNROLL
    for (unsigned p = 0; p < n; p++) {
        __m512 scale = _mm512_mul_ps(scale_of(&c[p], block), _mm512_set1_ps(by[p]));
        FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) {
            size_t at = y_at + t * y_stride;
            store_couple(&c[p], at, _mm512_fmadd_ps(scale, acc[p][t], load_sum(&c[p], at)));
        }
    }
}

typedef void micro_fn(const float *w, const float *const *x, size_t inputs, const struct couple *c,
                      const float *by, size_t block, size_t y_at, size_t y_stride);

#define MICRO_FUNCTION(N, T)                                                                                 \
    static __attribute__((noinline)) void micro_##N##_##T(                                                   \
        const float *w, const float *const *x, size_t inputs, const struct couple *c, const float *by,       \
        size_t block, size_t y_at, size_t y_stride)                                                          \
    {                                                                                                        \
        micro(w, N, x, T, inputs, c, by, block, y_at, y_stride);                                             \
    }
#define MICRO_FUNCTIONS(N)                                                                                   \
    MICRO_FUNCTION(N, 5)                                                                                     \
    MICRO_FUNCTION(N, 6)                                                                                     \
    MICRO_FUNCTION(N, 7)                                                                                     \
    MICRO_FUNCTION(N, 8)                                                                                     \
    MICRO_FUNCTION(N, 9)                                                                                     \
    MICRO_FUNCTION(N, 10)                                                                                    \
    MICRO_FUNCTION(N, 11)                                                                                    \
    MICRO_FUNCTION(N, 12)
MICRO_FUNCTIONS(1)
MICRO_FUNCTIONS(2)

static void many_tokens(enum fp9_format f, const struct couple *c, size_t n, size_t inputs,
                        const struct fp9_rows *rows, size_t y_stride)
{
    float w[COUPLES * BLOCK_FLOATS] __attribute__((aligned(64)));
    size_t tiles = fp9__tiles(inputs), parts = (rows->count + TOKENS - 1) / TOKENS; // nearly equal, 5 or more
    static micro_fn *const size[COUPLES][TOKENS - FEW] = {
        {micro_1_5, micro_1_6, micro_1_7, micro_1_8, micro_1_9, micro_1_10, micro_1_11, micro_1_12},
        {micro_2_5, micro_2_6, micro_2_7, micro_2_8, micro_2_9, micro_2_10, micro_2_11, micro_2_12}};
    for (size_t first = 0; first < tiles; first += FP9__GROUP_TILES) {
        size_t group = fp9__group_tiles(tiles, first), block = first / FP9__GROUP_TILES;
        float by[COUPLES];
        for (size_t i = 0; i < n; i++) by[i] = decode_block(f, &c[i], block, group, w + i * BLOCK_FLOATS);
        for (size_t part = 0; part < parts; part++) {
            size_t from = rows->count * part / parts, tokens = rows->count * (part + 1) / parts - from;
            const float *x[TOKENS];
            for (size_t t = 0; t < tokens; t++) x[t] = row_of(rows, from + t) + first * FP9_TILE_INPUTS;
            // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): n is 1 .. COUPLES, tokens 5 .. TOKENS
            size[n - 1][tokens - FEW - 1](w, x, group * FP9_TILE_INPUTS, c, by, block, from * y_stride,
                                          y_stride);
        }
    }
}

/* The dots begin at zero, unless they go on. */
static void begin(const struct couple *c, size_t n, const struct fp9_matrix *m, size_t tokens,
                  size_t y_stride)
{
    for (size_t i = 0; i < n && !m->continues; i++)
        for (size_t t = 0; t < tokens; t++) store_couple(&c[i], t * y_stride, _mm512_setzero_ps());
}

static void set_half(struct couple *c, unsigned half, const struct fp9_matrix *m, size_t p, float *y)
{
    size_t row = (m->first_output + 8 * p) / FP9_BLOCK - m->first_output / FP9_BLOCK;
    c->panel[half] = m->panels + p * m->panel_stride;
    c->scales[half] = m->scales + row * m->scale_stride;
    c->marks[half] = m->format == FP9_E4M3 ? m->marks + p * m->mark_stride : NULL;
    c->y[half] = y;
}

static void dot(const struct fp9_matrix *m, size_t first, size_t count, const struct fp9_rows *x, float *y,
                size_t y_stride)
{
    if (x->count <= FEW) {
        fp9_avx2.dot(m, first, count, x, y, y_stride);
        return;
    }
    for (size_t p = 0; p < count; p += 2 * COUPLES) {
        struct couple c[COUPLES];
        size_t left = count - p < 2 * COUPLES ? count - p : 2 * COUPLES;
        for (size_t i = 0; i < left; i++) {
            set_half(&c[i / 2], i % 2, m, first + p + i, y + 8 * (p + i));
            if (i % 2 == 0) set_half(&c[i / 2], 1, m, first + p + i, y + 8 * (p + i));
        }
        begin(c, (left + 1) / 2, m, x->count, y_stride);
        many_tokens(m->format, c, (left + 1) / 2, m->inputs, x, y_stride);
    }
}

static void dot2(const struct fp9_matrix *m0, const struct fp9_matrix *m1, size_t first, size_t count,
                 const struct fp9_rows *x, float *y0, float *y1, size_t y_stride)
{
    if (x->count <= FEW) {
        fp9_avx2.dot2(m0, m1, first, count, x, y0, y1, y_stride);
        return;
    }
    for (size_t p = 0; p < count; p += COUPLES) {
        struct couple c[COUPLES];
        size_t n = count - p < COUPLES ? count - p : COUPLES;
        for (size_t i = 0; i < n; i++) {
            set_half(&c[i], 0, m0, first + p + i, y0 + 8 * (p + i));
            set_half(&c[i], 1, m1, first + p + i, y1 + 8 * (p + i));
        }
        begin(c, n, m0, x->count, y_stride);
        many_tokens(m0->format, c, n, m0->inputs, x, y_stride);
    }
}

const struct fp9_kernels fp9_avx512 = {.name = "avx512",
                                       .prepare = fp9__avx2_prepare,
                                       .dot = dot,
                                       .dot2 = dot2,
                                       .expert = fp9__avx2_expert,
                                       .down = &fp9__avx2_down};
