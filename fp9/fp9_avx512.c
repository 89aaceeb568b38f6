/* fp9_avx512.c: dots with AVX-512, two panels to a register; the bits of fp9_scalar.c.
 *
 * The upper half of a register is a second panel (up beside gate, or the next panel of a matrix), so that the
 * packed layout stays the same: a lane is an output still. Rotation and the three-operand logic save two of
 * AVX2's nine operations for a word. Preparation and SiLU are AVX2's: they are a small part. */
#include "fp9/fp9_avx512_couple.h"

enum {
    FEW = 4,                      // tokens up to which weights go straight into the products
    BLOCKS = 4,                   // most blocks of a couple side by side
    COUPLES = 2,                  // couples of panels at a time
    TOKENS = 12,                  // x COUPLES = 24 accumulators of the 32 registers
    WORDS = FP9_STRIP_INPUTS / 4, // of a strip
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

/* Tiles that are marked in any of `blocks` blocks. */
FP9__INLINE uint32_t marked_in(enum fp9_format f, const struct couple *c, size_t block, unsigned blocks)
{
    uint32_t marked = 0;
    for (unsigned b = 0; b < blocks && f == FP9_E4M3; b++)
        marked |= (uint32_t)c->marks[0][block + b] | c->marks[1][block + b];
    return marked;
}

/* ---- a block of a couple is decoded once into L1 and used for all tokens ---- */

static void decode_fp9(const struct couple *c, size_t at, size_t tiles, float *w)
{
    for (size_t t = 0; t < tiles; t += FP9__STRIP_TILES, at += fp9__whole_strip(FP9_FP9)) {
        size_t words = 2 * (tiles - t < FP9__STRIP_TILES ? tiles - t : FP9__STRIP_TILES);
        __m512i s = fp9__load_couple(c->panel[0] + at, c->panel[1] + at);
        for (size_t j = 0; j < words; j++) {
            size_t from = at + FP9__VECTOR * (1 + j);
            __m512i word = fp9__load_couple(c->panel[0] + from, c->panel[1] + from);
            __m512i mixed = _mm512_xor_si512(word, s);
            s = _mm512_add_epi32(s, s);
            _mm_prefetch((const char *)(c->panel[j % 2] + from + FP9__AHEAD), _MM_HINT_T0);
            FP9__UNROLL
            for (unsigned k = 0; k < 4; k++, w += 2 * FP9_LANES)
                _mm512_store_ps(w, fp9__couple_fp9(word, mixed, k));
        }
    }
}

static void decode_e4m3(const struct couple *c, size_t at, size_t tiles, float *w)
{
    for (size_t j = 0; j < 2 * tiles; j++, at += FP9__VECTOR) {
        __m512i word = fp9__load_couple(c->panel[0] + at, c->panel[1] + at);
        _mm_prefetch((const char *)(c->panel[j % 2] + at + FP9__AHEAD), _MM_HINT_T0);
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++, w += 2 * FP9_LANES) _mm512_store_ps(w, fp9__couple_e4m3(word, k));
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
            for (size_t t = 0; t < tokens; t++) x[t] = fp9__row_of(rows, from + t) + first * FP9_TILE_INPUTS;
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

/* ---- few tokens: weights go from the registers they were made in straight into the products ----
 *
 * The chain of a block is sequential by contract, and a slice is one couple. So blocks side by side are what
 * gives chains enough to hide a multiply-add's latency, and one slice is enough for a task. Their sums are
 * added in the order of the blocks. */

/* What is fetched meanwhile of both panels: the next blocks, line by line. */
struct ahead {
    const uint8_t *at[2];
};

FP9__INLINE void fetch(struct ahead *a, unsigned lines)
{
    FP9__UNROLL
    for (unsigned p = 0; p < 2; p++) {
        FP9__UNROLL
        for (size_t i = 0; i < lines; i++)
            _mm_prefetch((const char *)(a->at[p] + i * FP9__TILE_BYTES), _MM_HINT_T0);
        a->at[p] += (size_t)lines * FP9__TILE_BYTES;
    }
}

/* The next word of `blocks` blocks; x: each token's inputs of the first. */
FP9__INLINE void few_word(enum fp9__way way, const uint8_t *low, const uint8_t *high, unsigned blocks,
                          __m512i signs[BLOCKS], const float *const x[], size_t input, unsigned tokens,
                          __m512 acc[BLOCKS][FEW])
{
    FP9__UNROLL
    for (unsigned b = 0; b < blocks; b++) {
        const size_t at = b * fp9__group_bytes(fp9__format(way));
        __m512i first = fp9__load_couple(low + at, high + at), second;
        fp9__couple_views(way, &first, &second, &signs[b]);
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++) {
            const __m512 w = fp9__couple_weight(way, first, second, k);
            FP9__UNROLL
            for (unsigned t = 0; t < tokens; t++) {
                const __m512 xk = fp9__couple_x(way, x[t] + FP9_BLOCK * b + input + k);
                acc[b][t] = _mm512_fmadd_ps(w, xk, acc[b][t]);
            }
        }
    }
}

/* `blocks` blocks of a couple from `low` and `high` on; x: each token's inputs from there on; marked: tiles
 * that are in any of them. */
FP9__INLINE void few_blocks(enum fp9_format f, const uint8_t *low, const uint8_t *high, uint32_t marked,
                            unsigned blocks, const float *const x[], unsigned tokens, struct ahead ahead,
                            __m512 acc[BLOCKS][FEW])
{
    const unsigned lines = blocks * (unsigned)(fp9__whole_strip(f) / FP9__VECTOR) / 2; // for a strip of each
    FP9__UNROLL
    for (unsigned b = 0; b < blocks; b++) FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) acc[b][t] = _mm512_setzero_ps();
    for (size_t strip = 0, i = 0; strip < FP9_BLOCK / FP9_STRIP_INPUTS; strip++) {
        __m512i signs[BLOCKS];
        FP9__UNROLL
        for (unsigned b = 0; b < blocks; b++)
            signs[b] = f == FP9_FP9
                           ? fp9__load_couple(low + b * fp9__group_bytes(f), high + b * fp9__group_bytes(f))
                           : _mm512_setzero_si512();
        low += fp9__head(f), high += fp9__head(f);
        fetch(&ahead, lines % WORDS);
        for (unsigned j = 0; j < WORDS; j++, i += 4, low += FP9__VECTOR, high += FP9__VECTOR) {
            fetch(&ahead, lines / WORDS);
            if (fp9__way_of(f, marked, i / FP9_TILE_INPUTS) == FP9__WAY_SMALL)
                few_word(FP9__WAY_SMALL, low, high, blocks, signs, x, i, tokens, acc);
            else
                few_word(fp9__way_of(f, 0, 0), low, high, blocks, signs, x, i, tokens, acc);
        }
    }
}

/* Blocks [0, end) of a couple, `blocks` at a time; the first that are left over. y: token t at + t *
 * y_stride.
 */
FP9__INLINE size_t few(enum fp9_format f, const struct couple *c, unsigned blocks, size_t end,
                       const float *const rows[], unsigned tokens, size_t y_stride)
{
    const size_t group = fp9__group_bytes(f);
    size_t block = 0;
    __m512 sum[FEW];
    FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) sum[t] = load_sum(c, t * y_stride);
    for (; block + blocks <= end; block += blocks) {
        const size_t at = block * group;
        const bool last = block + 2 * blocks > end;
        const size_t next = last ? at : at + blocks * group; // the next slice may be another core's
        const struct ahead ahead = {{c->panel[0] + next, c->panel[1] + next}};
        const float *x[FEW];
        __m512 acc[BLOCKS][FEW];
        FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) x[t] = rows[t] + block * FP9_BLOCK;
        few_blocks(f, c->panel[0] + at, c->panel[1] + at, marked_in(f, c, block, blocks), blocks, x, tokens,
                   ahead, acc);
        FP9__UNROLL
        for (unsigned b = 0; b < blocks; b++) {
            const __m512 scale = scale_of(c, block + b);
            FP9__UNROLL
            for (unsigned t = 0; t < tokens; t++) sum[t] = _mm512_fmadd_ps(scale, acc[b][t], sum[t]);
        }
    }
    FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) store_couple(c, t * y_stride, sum[t]);
    return block;
}

typedef size_t few_fn(const struct couple *c, size_t end, const float *const *rows, size_t y_stride);

#define FEW_FUNCTION(F, B, T)                                                                                \
    static __attribute__((noinline))                                                                         \
    size_t few_##F##_##T(const struct couple *c, size_t end, const float *const *rows, size_t y_stride)      \
    {                                                                                                        \
        return few(F, c, B, end, rows, T, y_stride);                                                         \
    }
#define FEW_FUNCTIONS(F)                                                                                     \
    FEW_FUNCTION(F, 4, 1)                                                                                    \
    FEW_FUNCTION(F, 4, 2)                                                                                    \
    FEW_FUNCTION(F, 2, 3)                                                                                    \
    FEW_FUNCTION(F, 2, 4)
FEW_FUNCTIONS(FP9_FP9)
FEW_FUNCTIONS(FP9_E4M3)

/* Blocks from `first` on of panel p, fewer than are side by side, by AVX2. */
static void last_blocks(const struct fp9_matrix *const m[2], size_t p, size_t first, const struct fp9_rows *x,
                        float *const y[2], size_t y_stride)
{
    struct fp9_matrix part[2];
    for (size_t i = 0; i < 2; i++) {
        part[i] = *m[i];
        part[i].panels += first * fp9__group_bytes(m[i]->format);
        part[i].scales += first;
        if (part[i].marks) part[i].marks += first;
        part[i].inputs -= first * FP9_BLOCK;
        part[i].continues = 1;
    }
    struct fp9_rows rows = *x;
    rows.xs += first * FP9_BLOCK;
    fp9_avx2.dot2(&part[0], &part[1], p, 1, &rows, y[0], y[1], y_stride);
}

/* The first blocks, in the order they are read: their loads would wait one for the other. */
static void fetch_first(enum fp9_format f, const struct couple *c)
{
    for (size_t at = 0; at < fp9__group_bytes(f); at += FP9__TILE_BYTES)
        for (size_t b = 0; b < BLOCKS; b++)
            for (size_t p = 0; p < 2; p++)
                _mm_prefetch((const char *)(c->panel[p] + b * fp9__group_bytes(f) + at), _MM_HINT_T0);
}

/* One slice of gate and up. */
static void few_tokens(const struct fp9_matrix *const m[2], size_t p, const struct fp9_rows *rows,
                       float *const y[2], size_t y_stride)
{
    static few_fn *const size[FP9_FORMATS][FEW] = {
        {few_FP9_FP9_1, few_FP9_FP9_2, few_FP9_FP9_3, few_FP9_FP9_4},
        {few_FP9_E4M3_1, few_FP9_E4M3_2, few_FP9_E4M3_3, few_FP9_E4M3_4}};
    const float *x[FEW];
    struct couple c;
    for (unsigned i = 0; i < 2; i++) set_half(&c, i, m[i], p, y[i]);
    for (size_t t = 0; t < rows->count; t++) x[t] = fp9__row_of(rows, t);
    begin(&c, 1, m[0], rows->count, y_stride);
    fetch_first(m[0]->format, &c);
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): 1 .. FEW tokens
    size_t done = size[m[0]->format][rows->count - 1](&c, m[0]->inputs / FP9_BLOCK, x, y_stride);
    if (done * FP9_BLOCK < m[0]->inputs) last_blocks(m, p, done, rows, y, y_stride);
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
    const struct fp9_matrix *const m[2] = {m0, m1};
    for (size_t p = 0; p < count && x->count <= FEW; p++)
        few_tokens(m, first + p, x, (float *const[2]){y0 + 8 * p, y1 + 8 * p}, y_stride);
    if (x->count <= FEW) return;
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
                                       .one_slice = 1,
                                       .down = &fp9__avx512_down};
