/* indexer.c: scores with 8 keys in a vector (kv.h's tiles), selection by radix histograms. */
#include "host/backend/cpu/indexer.h"

#include <string.h>

#include "host/backend/cpu/simd.h"

/* H heads x N tiles: H * N independent chains. H and N are constants in each instance. */
static inline __attribute__((always_inline)) void heads_block(const size_t H, const size_t N, const float *q,
                                                              const float *weights, const float *const *tiles,
                                                              size_t dim, __m256 *score)
{
    __m256 dot[8];
#pragma GCC unroll 8
    for (size_t k = 0; k < H * N; k++) dot[k] = _mm256_setzero_ps();
    for (size_t d = 0; d < dim; d++) {
        __m256 key[2];
#pragma GCC unroll 2
        for (size_t n = 0; n < N; n++) key[n] = _mm256_load_ps(tiles[n] + KV_TILE * d);
#pragma GCC unroll 4
        for (size_t h = 0; h < H; h++) {
            __m256 x = _mm256_broadcast_ss(q + h * dim + d);
#pragma GCC unroll 2
            for (size_t n = 0; n < N; n++) dot[h * N + n] = _mm256_fmadd_ps(x, key[n], dot[h * N + n]);
        }
    }
#pragma GCC unroll 4
    for (size_t h = 0; h < H; h++)
#pragma GCC unroll 2
        for (size_t n = 0; n < N; n++) {
            __m256 relu = _mm256_max_ps(dot[h * N + n], _mm256_setzero_ps());
            score[n] = _mm256_fmadd_ps(_mm256_broadcast_ss(weights + h), relu, score[n]);
        }
}

static inline __attribute__((always_inline)) void
row_block(const struct indexer_rows *a, const size_t N, const float *const *tiles, uint32_t row, float *out)
{
    const float *q = a->q + row * a->q_stride, *w = a->weights + row * a->weights_stride;
    __m256 score[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t h = 0;
    for (; h + 4 <= a->heads; h += 4) heads_block(4, N, q + h * a->dim, w + h, tiles, a->dim, score);
    for (; h < a->heads; h++) heads_block(1, N, q + h * a->dim, w + h, tiles, a->dim, score);
    for (size_t n = 0; n < N; n++) _mm256_storeu_ps(out + KV_TILE * n, score[n]);
}

void indexer_score(const struct indexer_rows *a, uint32_t first, uint32_t count, float *scratch)
{
    uint32_t last = (a->position + a->rows - 1) / KV_TILE; // the last tile that any row needs
    for (uint32_t tile = first; tile < first + count && tile <= last; tile += 2) {
        uint32_t n = tile + 1 < first + count && tile + 1 <= last ? 2 : 1;
        const float *tiles[2] = {kv_tile(&a->keys, tile, scratch), NULL};
        if (n == 2) tiles[1] = kv_tile(&a->keys, tile + 1, scratch + KV_TILE * a->dim);
        for (uint32_t r = 0; r < a->rows; r++) {
            if ((a->position + r) / KV_TILE < tile) continue;
            float *out = a->scores + r * a->score_stride + (size_t)KV_TILE * tile;
            if (n == 2)
                row_block(a, 2, tiles, r, out);
            else
                row_block(a, 1, tiles, r, out);
        }
    }
}

/* ---- selection ---- */

/* Larger score, larger key; -0 and +0 get the same one. */
static uint32_t sortable(float score)
{
    uint32_t u;
    score += 0.0f; // -0 + 0 = +0
    memcpy(&u, &score, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

#define RADIX_PASSES 3
static const unsigned radix_shift[RADIX_PASSES] = {21, 10, 0}, radix_bits[RADIX_PASSES] = {11, 11, 10};

/* The k-th largest key, and in *equal how many of the keys equal to it are among the k. */
static uint32_t threshold(const float *scores, uint32_t n, uint32_t k, uint32_t *equal)
{
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < RADIX_PASSES; pass++) {
        uint32_t count[2048], digits = 1u << radix_bits[pass];
        memset(count, 0, digits * sizeof count[0]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = sortable(scores[i]);
            if ((key & mask) == prefix) count[key >> radix_shift[pass] & (digits - 1)]++;
        }
        uint32_t digit = digits - 1;
        while (count[digit] < k) k -= count[digit--];
        prefix |= digit << radix_shift[pass];
        mask |= (digits - 1) << radix_shift[pass];
    }
    *equal = k;
    return prefix;
}

uint32_t indexer_select(const float *scores, uint32_t n, uint32_t k, int32_t *out)
{
    if (k >= n) {
        for (uint32_t i = 0; i < n; i++) out[i] = (int32_t)i;
        return n;
    }
    uint32_t equal, taken = 0, t = threshold(scores, n, k, &equal);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = sortable(scores[i]);
        if (key < t || (key == t && equal == 0)) continue;
        if (key == t) equal--;
        out[taken++] = (int32_t)i;
    }
    return taken;
}
