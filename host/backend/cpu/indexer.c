/* indexer.c: scores with 8 keys in a vector (kv.h's tiles), selection by halving the range of scores. */
#include "host/backend/cpu/indexer.h"

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
static inline __m256i keys_of(const float *scores)
{
    __m256i bits = _mm256_castps_si256(_mm256_add_ps(_mm256_loadu_ps(scores), _mm256_setzero_ps()));
    return _mm256_xor_si256(bits, _mm256_srli_epi32(_mm256_srai_epi32(bits, 31), 1));
}

/* Lanes of the last vector that lie before n. */
static inline unsigned valid(uint32_t n, uint32_t i)
{
    return n - i >= 8 ? 0xff : (1u << (n - i)) - 1;
}

static inline unsigned larger(__m256i keys, __m256i than)
{
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(keys, than)));
}

static uint32_t count_larger(const float *scores, uint32_t n, int32_t than)
{
    const __m256i t = _mm256_set1_epi32(than);
    __m256i count = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) count = _mm256_sub_epi32(count, _mm256_cmpgt_epi32(keys_of(scores + i), t));
    uint32_t lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, count);
    for (unsigned k = 0; k < 8; k++) sum += lanes[k];
    if (i < n) sum += (uint32_t)__builtin_popcount(larger(keys_of(scores + i), t) & valid(n, i));
    return sum;
}

static void key_range(const float *scores, uint32_t n, int32_t *least, int32_t *most)
{
    __m256i low = _mm256_set1_epi32(INT32_MAX), high = _mm256_set1_epi32(INT32_MIN);
    int32_t key[16];
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        low = _mm256_min_epi32(low, keys_of(scores + i));
        high = _mm256_max_epi32(high, keys_of(scores + i));
    }
    *least = INT32_MAX;
    *most = INT32_MIN;
    _mm256_storeu_si256((__m256i *)(void *)key, low);
    _mm256_storeu_si256((__m256i *)(void *)(key + 8), high);
    for (unsigned k = 0; k < 8; k++) {
        *least = key[k] < *least ? key[k] : *least;
        *most = key[8 + k] > *most ? key[8 + k] : *most;
    }
    if (i == n) return;
    _mm256_storeu_si256((__m256i *)(void *)key, keys_of(scores + i));
    for (unsigned k = 0; i + k < n; k++) {
        *least = key[k] < *least ? key[k] : *least;
        *most = key[k] > *most ? key[k] : *most;
    }
}

/* A key that k keys are larger than, or all but `*equal` of k and the rest equal to it. Halves the range of
 * keys: some log2 n passes of a compare and a subtraction for eight keys until k are separated from the
 * others. */
static int32_t threshold(const float *scores, uint32_t n, uint32_t k, uint32_t *equal)
{
    int32_t least, most;
    key_range(scores, n, &least, &most);
    int64_t low = (int64_t)least - 1, high = most; // at least k are larger than low, fewer than k than high
    uint32_t above = 0;                            // larger than high
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        uint32_t count = count_larger(scores, n, (int32_t)middle);
        if (count == k) {
            *equal = 0;
            return (int32_t)middle;
        }
        if (count > k) {
            low = middle;
        } else {
            high = middle;
            above = count;
        }
    }
    *equal = k - above;
    return (int32_t)high;
}

uint32_t indexer_select(const float *scores, uint32_t n, uint32_t k, int32_t *out)
{
    if (k >= n) {
        for (uint32_t i = 0; i < n; i++) out[i] = (int32_t)i;
        return n;
    }
    uint32_t equal, taken = 0;
    const __m256i t = _mm256_set1_epi32(threshold(scores, n, k, &equal));
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i keys = keys_of(scores + i);
        unsigned more = larger(keys, t) & valid(n, i);
        unsigned same = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(keys, t)));
        for (same = equal ? same & valid(n, i) : 0; same && equal; same &= same - 1, equal--)
            more |= same & (0 - same); // the first of them
        for (; more; more &= more - 1) out[taken++] = (int32_t)i + __builtin_ctz(more);
    }
    return taken;
}
