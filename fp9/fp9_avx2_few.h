/* fp9_avx2_few.h: the dots of AVX2 + FMA, of which those of up to six tokens are made here. Code, not
 * declarations: fp9_avx2.c and fp9_avx2_l2.c include it, each once, after saying how they read ahead:
 * FP9__FETCH: "prefetcht0" (into L1) or "prefetcht1" (into L2); FP9__FETCH_HINT: the same as _mm_prefetch()'s
 * hint; FP9__FETCH_AHEAD: bytes, of each panel. */
#ifndef FP9_FP9_AVX2_FEW_H
#define FP9_FP9_AVX2_FEW_H

#include "fp9/fp9_avx2_direct.h"

enum {
    FEW = 3,     // tokens up to which panels side by side are enough chains
    STREAMS = 4, // panels read at once by one token: the chain of a panel is sequential by contract, so four
                 // panels give the four independent FMAs that cover the FMA's latency
};

/* Panel p of a dot that reads `side` panels of the matrix side by side. */
static struct fp9__stream stream_of(const struct fp9_matrix *m, size_t p, size_t side, float *y)
{
    size_t row = (m->first_output + 8 * p) / FP9_BLOCK - m->first_output / FP9_BLOCK;
    const uint8_t *panel = m->panels + p * m->panel_stride;
    const uint16_t *marks = m->format == FP9_FP9 ? NULL : m->marks + p * m->mark_stride;
    return (struct fp9__stream){panel, panel + side * m->panel_stride, m->scales + row * m->scale_stride,
                                marks, y};
}

/* ---- few tokens: weights go from the registers they were made in straight into the products ---- */

/* One tile of n panels; `signs` are S as its first word wants it, and afterwards as the next tile does.
 * Inputs are the outer loop, so that neighbouring instructions belong to different chains and a broadcast
 * serves all panels. Words are loaded for each use as part of another operation (the barriers keep the
 * compiler from holding them), except that their second views are held if there are registers. */
FP9__INLINE void few_tile(enum fp9__way way, const uint8_t *const at[], size_t words, __m256i signs[],
                          unsigned n, const float *const x[], size_t input, unsigned tokens,
                          __m256 acc[STREAMS][FEW])
{
    const bool again = way == FP9__WAY_FP9 && tokens == 2; // 4 panels: 8 chains and 4 signs
    FP9__UNROLL
    for (unsigned half = 0; half < 2; half++) {
        __m256i view[STREAMS];
        FP9__UNROLL
        for (unsigned k = 0; k < 4; k++) {
            __m256 xk[FEW];
            FP9__UNROLL
            for (unsigned t = 0; t < tokens; t++) xk[t] = fp9__x(way, x[t] + input + 4 * half + k);
            FP9__UNROLL
            for (unsigned i = 0; i < n; i++) {
                const uint8_t *word = at[i] + words + FP9__VECTOR * half;
                if (k == 0 && way != FP9__WAY_FP9) view[i] = fp9__first_view(way, fp9__load(word));
                if (k == 2 || (k == 3 && again)) view[i] = fp9__second_view(way, fp9__load(word), signs[i]);
                if (k == 3) signs[i] = fp9__next_signs(way, signs[i]);
                __m256 w =
                    k < 2 && way == FP9__WAY_FP9 ? fp9__weight_there(word, k) : fp9__weight(way, view[i], k);
                FP9__UNROLL
                for (unsigned t = 0; t < tokens; t++) acc[i][t] = _mm256_fmadd_ps(w, xk[t], acc[i][t]);
            }
            if (k == 1 || again) __asm__ volatile("" : : : "memory");
        }
    }
}

/* A strip, or what the last one has, of n panels. */
FP9__INLINE void few_strip(enum fp9_format f, uint32_t marked, const uint8_t *const at[], size_t ahead,
                           size_t tiles, unsigned n, const float *const x[], size_t input, unsigned tokens,
                           __m256 acc[STREAMS][FEW])
{
    __m256i signs[STREAMS];
    FP9__UNROLL
    for (unsigned i = 0; i < n && f == FP9_FP9; i++) {
        signs[i] = fp9__signs(FP9__WAY_FP9, at[i], 0);
        fp9__fetch_line(at[i] + ahead + fp9__whole_strip(f) - FP9__VECTOR);
    }
    for (size_t t = 0; t < tiles; t++) {
        size_t words = fp9__head(f) + t * FP9__TILE_BYTES;
        FP9__UNROLL
        for (unsigned i = 0; i < n; i++) fp9__fetch_line(at[i] + ahead + t * FP9__TILE_BYTES);
        size_t input_t = input + t * FP9_TILE_INPUTS;
        if (fp9__way_of(f, marked, t) == FP9__WAY_SMALL)
            few_tile(FP9__WAY_SMALL, at, words, signs, n, x, input_t, tokens, acc);
        else
            few_tile(fp9__way_of(f, 0, t), at, words, signs, n, x, input_t, tokens, acc);
    }
}

FP9__INLINE void few(enum fp9_format f, const struct fp9__stream s[], unsigned n, size_t inputs,
                     const float *const rows[], unsigned tokens, size_t y_stride)
{
    const float *x[FEW];
    FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) x[t] = rows[t];
    size_t tiles = fp9__tiles(inputs), bytes = fp9_panel_bytes(f, inputs);
    const uint8_t *at[STREAMS];
    __m256 sum[STREAMS][FEW], acc[STREAMS][FEW];
    FP9__UNROLL
    for (unsigned i = 0; i < n; i++) {
        at[i] = s[i].panel;
        FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) sum[i][t] = _mm256_loadu_ps(s[i].y + t * y_stride);
    }
    for (size_t first = 0; first < tiles; first += FP9__GROUP_TILES) {
        size_t end = first + fp9__group_tiles(tiles, first);
        size_t ahead = fp9__ahead_of(f, s, (size_t)(at[0] - s->panel), bytes);
        uint32_t marked = fp9__marked_in(f, s, n, first / FP9__GROUP_TILES);
        FP9__UNROLL
        for (unsigned i = 0; i < n; i++) FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) acc[i][t] = _mm256_setzero_ps();
        for (size_t t = first; t < end; t += FP9__STRIP_TILES, marked >>= FP9__STRIP_TILES) {
            size_t strip = end - t < FP9__STRIP_TILES ? end - t : FP9__STRIP_TILES;
            few_strip(f, marked, at, ahead, strip, n, x, t * FP9_TILE_INPUTS, tokens, acc);
            FP9__UNROLL
            for (unsigned i = 0; i < n; i++) at[i] += fp9__whole_strip(f);
        }
        FP9__UNROLL
        for (unsigned i = 0; i < n; i++) {
            __m256 scale = _mm256_broadcast_ss(s[i].scales + first / FP9__GROUP_TILES);
            FP9__UNROLL
            for (unsigned t = 0; t < tokens; t++) sum[i][t] = _mm256_fmadd_ps(scale, acc[i][t], sum[i][t]);
        }
    }
    FP9__UNROLL
    for (unsigned i = 0; i < n; i++) FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) _mm256_storeu_ps(s[i].y + t * y_stride, sum[i][t]);
}

/* 1, 2 or 4 panels with one or two tokens, 1 or 2 with three. A function of its own per size: the compiler
 * gives each all registers. */
#define FEW_FUNCTION(F, N, T)                                                                                \
    static __attribute__((noinline)) void few_##F##_##N##_##T(const struct fp9__stream *s, size_t inputs,    \
                                                              const float *const *x, size_t y_stride)        \
    {                                                                                                        \
        few(F, s, N, inputs, x, T, y_stride);                                                                \
    }
#define FEW_FUNCTIONS(F)                                                                                     \
    FEW_FUNCTION(F, 1, 1)                                                                                    \
    FEW_FUNCTION(F, 2, 1)                                                                                    \
    FEW_FUNCTION(F, 4, 1)                                                                                    \
    FEW_FUNCTION(F, 1, 2)                                                                                    \
    FEW_FUNCTION(F, 2, 2)                                                                                    \
    FEW_FUNCTION(F, 4, 2)                                                                                    \
    FEW_FUNCTION(F, 1, 3)                                                                                    \
    FEW_FUNCTION(F, 2, 3)
FEW_FUNCTIONS(FP9_FP9)
FEW_FUNCTIONS(FP9_E4M3)

typedef void few_fn(const struct fp9__stream *s, size_t inputs, const float *const *x, size_t y_stride);

static void few_tokens(enum fp9_format f, const struct fp9__stream *s, size_t n, size_t inputs,
                       const struct fp9_rows *rows, size_t y_stride)
{
#define FEW_TABLE(F)                                                                                         \
    {                                                                                                        \
        {few_##F##_1_1, few_##F##_2_1, few_##F##_4_1}, {few_##F##_1_2, few_##F##_2_2, few_##F##_4_2},        \
            {few_##F##_1_3, few_##F##_2_3},                                                                  \
    }
    static few_fn *const size[FP9_FORMATS][FEW][3] = {FEW_TABLE(FP9_FP9), FEW_TABLE(FP9_E4M3)};
    const float *x[FEW];
    for (size_t t = 0; t < rows->count; t++) x[t] = fp9__row_of(rows, t);
    unsigned log2_most = rows->count <= 2 ? 2 : 1; // 6 or 8 accumulators
    for (size_t i = 0; i < n;) {
        unsigned log2 = n - i >= 4 ? 2 : n - i >= 2 ? 1 : 0;
        if (log2 > log2_most) log2 = log2_most;
        size[f][rows->count - 1][log2](s + i, inputs, x, y_stride);
        i += (size_t)1 << log2;
    }
}

/* ---- 4 to 6 tokens of e4m3: a weight a panel is made at a time, from a word that is loaded for each ---- */

/* acc += tile `tile` of two panels, `slot` bytes apart, times eight inputs of each token. */
FP9__INLINE void e4m3_tile(enum fp9__way way, const uint8_t *words, size_t slot, size_t tile,
                           const float *const x[], unsigned tokens, __m256 acc[2][FP9__TOKENS])
{
    FP9__UNROLL
    for (unsigned k = 0; k < FP9_TILE_INPUTS; k++) {
        /* Nothing is loaded before its turn: all registers are taken. */
        __asm__ volatile("" : : : "memory");
        __m256 w[2];
        FP9__UNROLL
        for (unsigned p = 0; p < 2; p++) {
            const __m256i word = fp9__load(words + p * slot + k / 4 * FP9__VECTOR);
            w[p] = fp9__weight(
                way, k % 4 < 2 ? fp9__first_view(way, word) : fp9__second_view(way, word, word), k % 4);
        }
        FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) {
            __m256 xk = fp9__x(way, x[t] + FP9_TILE_INPUTS * tile + k);
            FP9__UNROLL
            for (unsigned p = 0; p < 2; p++) acc[p][t] = _mm256_fmadd_ps(w[p], xk, acc[p][t]);
        }
    }
}

FP9__INLINE void e4m3_panels(const struct fp9__stream s[], size_t inputs, const struct fp9_rows *rows,
                             unsigned tokens, size_t y_stride)
{
    const size_t tiles = fp9__tiles(inputs), slot = (size_t)(s[1].panel - s[0].panel);
    const size_t bytes = fp9_panel_bytes(FP9_E4M3, inputs);
    const float *x[FP9__TOKENS];
    FP9__UNROLL
    for (unsigned t = 0; t < tokens; t++) x[t] = fp9__row_of(rows, t);
    for (size_t tile = 0; tile < tiles;) {
        size_t block = tile / FP9__GROUP_TILES, end = tile + fp9__group_tiles(tiles, tile);
        uint32_t marked = fp9__marked_in(FP9_E4M3, s, 2, block);
        const size_t ahead = fp9__ahead_of(FP9_E4M3, s, block * fp9__group_bytes(FP9_E4M3), bytes);
        __m256 acc[2][FP9__TOKENS];
        FP9__UNROLL
        for (unsigned p = 0; p < 2; p++) FP9__UNROLL
        for (unsigned t = 0; t < tokens; t++) acc[p][t] = _mm256_setzero_ps();
        for (; tile < end; tile++) {
            const uint8_t *words = s[0].panel + tile * FP9__TILE_BYTES;
            fp9__fetch_line(words + ahead);
            fp9__fetch_line(words + ahead + slot);
            if (fp9__way_of(FP9_E4M3, marked, tile % FP9__GROUP_TILES) == FP9__WAY_SMALL)
                e4m3_tile(FP9__WAY_SMALL, words, slot, tile, x, tokens, acc);
            else
                e4m3_tile(FP9__WAY_E4M3, words, slot, tile, x, tokens, acc);
        }
        FP9__UNROLL
        for (unsigned p = 0; p < 2; p++) {
            __m256 scale = _mm256_broadcast_ss(s[p].scales + block);
            FP9__UNROLL
            for (unsigned t = 0; t < tokens; t++) {
                float *out = s[p].y + t * y_stride;
                _mm256_storeu_ps(out, _mm256_fmadd_ps(scale, acc[p][t], _mm256_loadu_ps(out)));
            }
        }
    }
}

/* A function of its own per number of tokens, for the registers' sake. */
#define E4M3_FUNCTION(T)                                                                                     \
    static __attribute__((noinline)) void e4m3_##T(const struct fp9__stream *s, size_t inputs,               \
                                                   const struct fp9_rows *rows, size_t y_stride)             \
    {                                                                                                        \
        e4m3_panels(s, inputs, rows, T, y_stride);                                                           \
    }
E4M3_FUNCTION(4)
E4M3_FUNCTION(5)
E4M3_FUNCTION(6)

/* As many panels of 4 to 6 tokens as there are pairs of. */
static size_t e4m3_tokens(const struct fp9__stream *s, size_t n, size_t inputs, const struct fp9_rows *rows,
                          size_t y_stride)
{
    typedef void e4m3_fn(const struct fp9__stream *s, size_t inputs, const struct fp9_rows *rows,
                         size_t y_stride);
    static e4m3_fn *const size[] = {e4m3_4, e4m3_5, e4m3_6};
    size_t i = 0;
    for (; i + 1 < n && rows->count > FEW; i += 2) {
        struct fp9__stream two[2] = {s[i], s[i + 1]};
        two[0].next = i + 2 < n ? s[i + 2].panel : s[0].next;
        size[rows->count - FEW - 1](two, inputs, rows, y_stride);
    }
    return i;
}

static void run_streams(const struct fp9__stream *s, size_t n, const struct fp9_matrix *m,
                        const struct fp9_rows *x, size_t y_stride)
{
    const size_t inputs = m->inputs;
    size_t done = 0;
    for (size_t i = 0; i < n && !m->continues; i++)
        for (size_t t = 0; t < x->count; t++) _mm256_storeu_ps(s[i].y + t * y_stride, _mm256_setzero_ps());
    if (x->count > 1 && x->count <= FP9__TOKENS)
        done =
            m->format == FP9_FP9 ? direct(s, n, inputs, x, y_stride) : e4m3_tokens(s, n, inputs, x, y_stride);
    if (done == n) return;
    if (x->count <= FEW)
        few_tokens(m->format, s + done, n - done, inputs, x, y_stride);
    else
        fp9__avx2_many(m->format, s + done, n - done, inputs, x, y_stride);
}

static void dot(const struct fp9_matrix *m, size_t first, size_t count, const struct fp9_rows *x, float *y,
                size_t y_stride)
{
    if (x->count == 0) return;
    for (size_t p = 0; p < count; p += FP9__PANELS) {
        struct fp9__stream s[FP9__PANELS];
        size_t n = count - p < FP9__PANELS ? count - p : FP9__PANELS;
        for (size_t i = 0; i < n; i++) s[i] = stream_of(m, first + p + i, STREAMS, y + 8 * (p + i));
        run_streams(s, n, m, x, y_stride);
    }
}

static void dot2(const struct fp9_matrix *m0, const struct fp9_matrix *m1, size_t first, size_t count,
                 const struct fp9_rows *x, float *y0, float *y1, size_t y_stride)
{
    if (x->count == 0) return;
    for (size_t p = 0; p < count; p += FP9__PANELS / 2) {
        struct fp9__stream s[FP9__PANELS];
        size_t n = count - p < FP9__PANELS / 2 ? count - p : FP9__PANELS / 2;
        for (size_t i = 0; i < n; i++) {
            s[2 * i] = stream_of(m0, first + p + i, STREAMS / 2, y0 + 8 * (p + i));
            s[2 * i + 1] = stream_of(m1, first + p + i, STREAMS / 2, y1 + 8 * (p + i));
        }
        run_streams(s, 2 * n, m0, x, y_stride);
    }
}

#endif
