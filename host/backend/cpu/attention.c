/* attention.c: see attention.h for the order of every sum. */
#include "host/backend/cpu/attention.h"

#include <string.h>

#include "host/backend/cpu/simd.h"
#include "host/backend/rope.h"

/* A worker's scratch; widths in floats, key = latent + rope. */
struct work {
    float *folded;     // (8 heads, rows, key): queries in the space of cached rows; later the mixed latents
    float *query;      // (rows, key, 8 heads)
    float *mixed;      // (rows, latent, 8 heads), not yet divided by the sum of weights
    float *largest;    // (rows, 8)
    float *sum;        // (rows, 8)
    float *part;       // (latent, 8): a later segment's mix
    float *scores;     // (ATTENTION_SEGMENT, 8)
    float *decoded;    // (ATTENTION_SEGMENT, key): cached rows that are not fp32
    const float **key; // (ATTENTION_SEGMENT)
};

static size_t groups(const struct attention_shape *s)
{
    return (s->heads + ATTENTION_HEADS - 1) / ATTENTION_HEADS;
}

uint32_t attention_task_rows(const struct attention_shape *s, uint32_t rows, uint32_t threads)
{
    uint32_t n = ATTENTION_ROWS;
    while (n > 1 && groups(s) * ((rows + n - 1) / n) < threads) n /= 2;
    return n;
}

size_t attention_tasks(const struct attention *a)
{
    return groups(&a->shape) * ((a->rows + a->task_rows - 1) / a->task_rows);
}

static float *take(uintptr_t *at, size_t floats)
{
    float *p = (float *)*at;
    *at += floats * sizeof(float);
    return p;
}

/* Cuts a scratch at address `at`; returns its end. Every size is a multiple of 8 floats: all stay aligned. */
static uintptr_t carve(const struct attention_shape *s, uintptr_t at, struct work *w)
{
    const size_t rows = ATTENTION_ROWS, key = s->latent + s->rope;
    w->folded = take(&at, 8 * rows * key);
    w->query = take(&at, 8 * rows * key);
    w->mixed = take(&at, 8 * rows * s->latent);
    w->largest = take(&at, 8 * rows);
    w->sum = take(&at, 8 * rows);
    w->part = take(&at, 8 * s->latent);
    w->scores = take(&at, 8 * ATTENTION_SEGMENT);
    w->decoded = take(&at, ATTENTION_SEGMENT * key);
    w->key = (const float **)(void *)take(&at, 2 * ATTENTION_SEGMENT);
    return at;
}

size_t attention_scratch_floats(const struct attention_shape *s)
{
    struct work w;
    return carve(s, 0, &w) / sizeof(float);
}

double attention_work(const struct attention *a)
{
    const struct attention_shape *s = &a->shape;
    double keys = a->position + a->rows / 2.0 + 1;
    if (keys > a->top_k) keys = a->top_k;
    double per_head = (double)s->latent * (double)(s->nope + s->v) + keys * (double)(2 * s->latent + s->rope);
    return per_head * (double)s->heads * a->rows;
}

/* from (8, n) with rows `stride` apart -> to (n, 8) */
static void to_lanes(const float *from, size_t stride, size_t n, float *to)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 r[8];
        for (size_t h = 0; h < 8; h++) r[h] = _mm256_load_ps(from + h * stride + i);
        simd_transpose(r);
        for (size_t k = 0; k < 8; k++) _mm256_store_ps(to + 8 * (i + k), r[k]);
    }
}

static void from_lanes(const float *from, size_t n, __m256 factor, float *to, size_t stride)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 r[8];
        for (size_t k = 0; k < 8; k++) r[k] = _mm256_mul_ps(_mm256_load_ps(from + 8 * (i + k)), factor);
        simd_transpose(r);
        for (size_t h = 0; h < 8; h++) _mm256_store_ps(to + h * stride + i, r[h]);
    }
}

/* ---- kernels over the keys of a segment ----
 * 12 independent chains hide the latency of the multiply-adds and leave room in 16 registers. */

static inline __attribute__((always_inline)) void score_block(const size_t N, const float *query,
                                                              const float *const *key, size_t dims,
                                                              __m256 scale, float *scores)
{
    __m256 s[12];
#pragma GCC unroll 12
    for (size_t k = 0; k < N; k++) s[k] = _mm256_setzero_ps();
    for (size_t d = 0; d < dims; d++) {
        __m256 q = _mm256_load_ps(query + 8 * d);
#pragma GCC unroll 12
        for (size_t k = 0; k < N; k++) s[k] = _mm256_fmadd_ps(q, _mm256_broadcast_ss(key[k] + d), s[k]);
    }
#pragma GCC unroll 12
    for (size_t k = 0; k < N; k++) _mm256_store_ps(scores + 8 * k, _mm256_mul_ps(s[k], scale));
}

static void score_keys(const float *query, const float *const *key, size_t count, size_t dims, __m256 scale,
                       float *scores)
{
    size_t k = 0;
    for (; k + 12 <= count; k += 12) score_block(12, query, key + k, dims, scale, scores + 8 * k);
    for (; k + 4 <= count; k += 4) score_block(4, query, key + k, dims, scale, scores + 8 * k);
    for (; k < count; k++) score_block(1, query, key + k, dims, scale, scores + 8 * k);
}

/* scores -> weights relative to the segment's largest; returns that, and the sum of weights. */
static __m256 soften(float *scores, size_t count, __m256 *sum)
{
    __m256 largest = _mm256_load_ps(scores);
    for (size_t k = 1; k < count; k++) largest = _mm256_max_ps(largest, _mm256_load_ps(scores + 8 * k));
    *sum = _mm256_setzero_ps();
    for (size_t k = 0; k < count; k++) {
        __m256 w = simd_exp(_mm256_sub_ps(_mm256_load_ps(scores + 8 * k), largest));
        _mm256_store_ps(scores + 8 * k, w);
        *sum = _mm256_add_ps(*sum, w);
    }
    return largest;
}

static inline __attribute__((always_inline)) void
mix_block(const size_t N, const float *weights, const float *const *key, size_t count, size_t c, float *mixed)
{
    __m256 m[12];
#pragma GCC unroll 12
    for (size_t i = 0; i < N; i++) m[i] = _mm256_setzero_ps();
    for (size_t k = 0; k < count; k++) {
        __m256 w = _mm256_load_ps(weights + 8 * k);
        const float *x = key[k] + c;
#pragma GCC unroll 12
        for (size_t i = 0; i < N; i++) m[i] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(x + i), m[i]);
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < N; i++) _mm256_store_ps(mixed + 8 * (c + i), m[i]);
}

static void mix_keys(const float *weights, const float *const *key, size_t count, size_t latent, float *mixed)
{
    size_t c = 0;
    for (; c + 12 <= latent; c += 12) mix_block(12, weights, key, count, c, mixed);
    for (; c < latent; c += 4) mix_block(4, weights, key, count, c, mixed);
}

/* One row against one segment whose keys stand in w->key. */
static void row_segment(const struct attention *a, struct work *w, size_t row, size_t segment, size_t count)
{
    const struct attention_shape *s = &a->shape;
    const size_t dims = s->latent + s->rope;
    float *mixed = w->mixed + row * 8 * s->latent;
    score_keys(w->query + row * 8 * dims, w->key, count, dims, _mm256_set1_ps(s->scale), w->scores);
    __m256 sum, largest = soften(w->scores, count, &sum);
    mix_keys(w->scores, w->key, count, s->latent, segment == 0 ? mixed : w->part);
    if (segment > 0) {
        __m256 before = _mm256_load_ps(w->largest + 8 * row);
        __m256 both = _mm256_max_ps(before, largest);
        __m256 old = simd_exp(_mm256_sub_ps(before, both)), new = simd_exp(_mm256_sub_ps(largest, both));
        sum = _mm256_fmadd_ps(sum, new, _mm256_mul_ps(_mm256_load_ps(w->sum + 8 * row), old));
        largest = both;
        for (size_t i = 0; i < s->latent; i++) {
            __m256 m = _mm256_mul_ps(_mm256_load_ps(mixed + 8 * i), old);
            _mm256_store_ps(mixed + 8 * i, _mm256_fmadd_ps(_mm256_load_ps(w->part + 8 * i), new, m));
        }
    }
    _mm256_store_ps(w->largest + 8 * row, largest);
    _mm256_store_ps(w->sum + 8 * row, sum);
}

/* ---- a task ---- */

/* Queries of `heads` heads, folded through kv_b and roped, into w->query. */
static void fold_queries(const struct attention *a, struct work *w, size_t first_head, size_t heads,
                         size_t row, size_t rows)
{
    const struct attention_shape *s = &a->shape;
    const size_t dims = s->latent + s->rope, plane = rows * dims;
    for (size_t h = 0; h < heads; h++) {
        const struct linear *l = &a->key_up[first_head + h];
        const float *q = a->q + row * a->q_stride + (first_head + h) * (s->nope + s->rope);
        float *to = w->folded + h * plane;
        linear_dot(l, 0, l->panels, q, a->q_stride, rows, to, dims);
        for (size_t r = 0; r < rows; r++) {
            size_t at = (row + r) * (s->rope / 2);
            rope_interleaved(q + r * a->q_stride + s->nope, a->cosines + at, a->sines + at, s->rope / 2,
                             to + r * dims + s->latent);
        }
    }
    if (heads < 8) memset(w->folded + heads * plane, 0, (8 - heads) * plane * sizeof(float));
    for (size_t r = 0; r < rows; r++) to_lanes(w->folded + r * dims, plane, dims, w->query + r * 8 * dims);
}

/* Keys [first, first + count) by position, or of a row's selected list. */
static void gather(const struct attention *a, struct work *w, const int32_t *list, size_t first, size_t count)
{
    const size_t dims = a->shape.latent + a->shape.rope;
    for (size_t k = 0; k < count; k++) {
        uint32_t p = list ? (uint32_t)list[first + k] : (uint32_t)(first + k);
        w->key[k] = kv_row(&a->keys, p, w->decoded + k * dims);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Rows that attend to everything before them share each segment while it is in cache; a row beyond top_k has
 * its own keys. */
static void attend(const struct attention *a, struct work *w, size_t row, size_t rows)
{
    size_t dense = 0;
    while (dense < rows && a->position + row + dense < a->top_k) dense++;
    size_t most = dense ? a->position + row + dense : 0;
    for (size_t first = 0; first < most; first += ATTENTION_SEGMENT) {
        gather(a, w, NULL, first, smaller(most - first, ATTENTION_SEGMENT));
        for (size_t r = 0; r < dense; r++) {
            size_t keys = a->position + row + r + 1;
            if (keys > first)
                row_segment(a, w, r, first / ATTENTION_SEGMENT, smaller(keys - first, ATTENTION_SEGMENT));
        }
    }
    for (size_t r = dense; r < rows; r++)
        for (size_t first = 0; first < a->top_k; first += ATTENTION_SEGMENT) {
            size_t count = smaller(a->top_k - first, ATTENTION_SEGMENT);
            gather(a, w, a->selected + (row + r) * a->selected_stride, first, count);
            row_segment(a, w, r, first / ATTENTION_SEGMENT, count);
        }
}

/* Mixed latents through the value half of kv_b. */
static void unfold(const struct attention *a, struct work *w, size_t first_head, size_t heads, size_t row,
                   size_t rows)
{
    const struct attention_shape *s = &a->shape;
    const size_t plane = rows * s->latent;
    for (size_t r = 0; r < rows; r++) {
        __m256 factor = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_load_ps(w->sum + 8 * r));
        from_lanes(w->mixed + r * 8 * s->latent, s->latent, factor, w->folded + r * s->latent, plane);
    }
    float *out = a->out + row * a->out_stride + first_head * s->v;
    for (size_t h = 0; h < heads; h++) {
        const struct linear *l = &a->value_up[first_head + h];
        linear_dot(l, 0, l->panels, w->folded + h * plane, s->latent, rows, out + h * s->v, a->out_stride);
    }
    if (!a->prepare) return;
    for (size_t r = 0; r < rows; r++)
        a->prepare(out + r * a->out_stride, heads * s->v, out + r * a->out_stride);
}

void attention_task(const struct attention *a, size_t task, float *scratch)
{
    struct work w;
    carve(&a->shape, (uintptr_t)scratch, &w);
    size_t blocks = (a->rows + a->task_rows - 1) / a->task_rows;
    size_t row = task % blocks * a->task_rows, first_head = task / blocks * ATTENTION_HEADS;
    size_t rows = smaller(a->rows - row, a->task_rows);
    size_t heads = smaller(a->shape.heads - first_head, ATTENTION_HEADS);
    fold_queries(a, &w, first_head, heads, row, rows);
    attend(a, &w, row, rows);
    unfold(a, &w, first_head, heads, row, rows);
}
