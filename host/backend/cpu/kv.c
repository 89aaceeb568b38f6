/* kv.c: encoding, decoding and bookkeeping of the cache. */
#include "host/backend/cpu/kv.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host/backend/cpu/simd.h"

static size_t row_size(const struct kv_shape *s)
{
    size_t n = s->latent + s->rope;
    return s->dtype == KV_F32 ? 4 * n : s->dtype == KV_BF16 ? 2 * n : n + 2 * sizeof(float);
}

static size_t tile_size(const struct kv_shape *s)
{
    size_t n = KV_TILE * s->index_dim;
    if (n == 0) return 0;
    return s->dtype == KV_F32 ? 4 * n : s->dtype == KV_BF16 ? 2 * n : n + KV_TILE * sizeof(float);
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

int kv_open(struct kv *kv, const struct kv_shape *shape, uint32_t capacity, struct error *err)
{
    memset(kv, 0, sizeof *kv);
    if (capacity == 0) return error_set(err, -EINVAL, "a sequence needs a capacity of at least 1 position");
    kv->shape = *shape;
    kv->capacity = capacity;
    kv->row_bytes = row_size(shape);
    kv->tile_bytes = tile_size(shape);
    size_t tiles = (capacity + KV_TILE - 1) / KV_TILE;
    kv->layer_bytes = align64(kv->row_bytes * capacity) + align64(kv->tile_bytes * tiles);
    kv->map_bytes = kv->layer_bytes * shape->layers;
    void *map =
        mmap(NULL, kv->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return error_set(err, -ENOMEM, "no address space for the cache of %u positions: %zu bytes (%s)",
                         capacity, kv->map_bytes, strerror(errno));
    kv->map = map;
    if (shape->hidden == 0) return 0;
    kv->hidden = calloc((size_t)shape->recent * shape->hidden, sizeof(float));
    kv->hidden_positions = malloc(shape->recent * sizeof(int64_t));
    if (!kv->hidden || !kv->hidden_positions) {
        kv_close(kv);
        return error_set(err, -ENOMEM, "no memory for %u recent hidden states", shape->recent);
    }
    for (uint32_t i = 0; i < shape->recent; i++) kv->hidden_positions[i] = -1;
    return 0;
}

void kv_close(struct kv *kv)
{
    if (kv->map) munmap(kv->map, kv->map_bytes);
    free(kv->hidden);
    free(kv->hidden_positions);
    memset(kv, 0, sizeof *kv);
}

uint64_t kv_resident_bytes(const struct kv *kv)
{
    uint64_t tiles = (kv->used + KV_TILE - 1) / KV_TILE;
    uint64_t bytes = kv->shape.layers * (kv->used * (uint64_t)kv->row_bytes + tiles * kv->tile_bytes);
    if (kv->hidden)
        bytes += (uint64_t)kv->shape.recent * (kv->shape.hidden * sizeof(float) + sizeof(int64_t));
    return bytes;
}

struct kv_layer kv_layer(const struct kv *kv, uint32_t layer)
{
    uint8_t *base = kv->map + layer * kv->layer_bytes;
    return (struct kv_layer){.shape = &kv->shape,
                             .rows = base,
                             .tiles = base + align64(kv->row_bytes * kv->capacity),
                             .row_bytes = kv->row_bytes,
                             .tile_bytes = kv->tile_bytes};
}

/* ---- element formats ---- */

static uint16_t bf16_encode(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); // stays a NaN
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* Nearest even; callers scale so that |x| <= 448 but for rounding. */
static uint8_t e4m3_encode(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return 0x7f;
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); // 448
    if (u < 0x3c800000u)
        return (uint8_t)(sign | (uint8_t)lrintf(fabsf(x) * 512.0f)); // below 2^-6: steps of 2^-9
    u = ((u + 0x7ffffu + (u >> 20 & 1u)) >> 20) - (120u << 3);
    return (uint8_t)(sign | (u > 0x7eu ? 0x7eu : u));
}

/* 8 codes as fp32: as half floats they are 2^-8 of the value, subnormal ones included. */
static __m256 e4m3_decode8(const uint8_t *codes)
{
    __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8);
    __m128i body = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x7f)), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(sign, body)), _mm256_set1_ps(256.0f));
}

static __m256 bf16_decode8(const uint8_t *p)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

/* Of finite values: the caller has checked them. */
static float fp8_scale(const float *x, size_t n)
{
    __m256 m = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) m = _mm256_max_ps(simd_abs(_mm256_loadu_ps(x + i)), m);
    float amax = simd_max(m);
    return amax > 0.0f ? amax / 448.0f : 1.0f;
}

static void fp8_write(const float *x, size_t n, uint8_t *codes, uint8_t *scale_out)
{
    float scale = fp8_scale(x, n);
    for (size_t i = 0; i < n; i++) codes[i] = e4m3_encode(x[i] / scale);
    memcpy(scale_out, &scale, sizeof scale);
}

/* ---- rows and tiles ---- */

void kv_write(const struct kv_layer *l, uint32_t position, const float *latent, const float *rope)
{
    const struct kv_shape *s = l->shape;
    uint8_t *row = l->rows + position * l->row_bytes;
    if (s->dtype == KV_F32) {
        memcpy(row, latent, s->latent * sizeof(float));
        memcpy(row + s->latent * sizeof(float), rope, s->rope * sizeof(float));
    } else if (s->dtype == KV_BF16) {
        for (size_t i = 0; i < s->latent + s->rope; i++) {
            uint16_t v = bf16_encode(i < s->latent ? latent[i] : rope[i - s->latent]);
            memcpy(row + 2 * i, &v, 2);
        }
    } else {
        uint8_t *scales = row + s->latent + s->rope;
        fp8_write(latent, s->latent, row, scales);
        fp8_write(rope, s->rope, row + s->latent, scales + sizeof(float));
    }
}

void kv_write_index(const struct kv_layer *l, uint32_t position, const float *key)
{
    size_t n = l->shape->index_dim, lane = position % KV_TILE;
    uint8_t *tile = l->tiles + (position / KV_TILE) * l->tile_bytes;
    if (l->shape->dtype == KV_F32) {
        for (size_t i = 0; i < n; i++) memcpy(tile + 4 * (KV_TILE * i + lane), key + i, 4);
    } else if (l->shape->dtype == KV_BF16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t v = bf16_encode(key[i]);
            memcpy(tile + 2 * (KV_TILE * i + lane), &v, 2);
        }
    } else {
        float scale = fp8_scale(key, n);
        for (size_t i = 0; i < n; i++) tile[KV_TILE * i + lane] = e4m3_encode(key[i] / scale);
        memcpy(tile + KV_TILE * n + lane * sizeof scale, &scale, sizeof scale);
    }
}

const float *kv_row(const struct kv_layer *l, uint32_t position, float *scratch)
{
    const struct kv_shape *s = l->shape;
    const uint8_t *row = l->rows + position * l->row_bytes;
    size_t n = s->latent + s->rope;
    if (s->dtype == KV_F32) return (const float *)(const void *)row;
    if (s->dtype == KV_BF16) {
        for (size_t i = 0; i < n; i += 8) _mm256_storeu_ps(scratch + i, bf16_decode8(row + 2 * i));
        return scratch;
    }
    float scales[2];
    memcpy(scales, row + n, sizeof scales);
    __m256 a = _mm256_set1_ps(scales[0]), b = _mm256_set1_ps(scales[1]);
    for (size_t i = 0; i < s->latent; i += 8)
        _mm256_storeu_ps(scratch + i, _mm256_mul_ps(e4m3_decode8(row + i), a));
    for (size_t i = s->latent; i < n; i += 8)
        _mm256_storeu_ps(scratch + i, _mm256_mul_ps(e4m3_decode8(row + i), b));
    return scratch;
}

const float *kv_tile(const struct kv_layer *l, uint32_t tile, float *scratch)
{
    const uint8_t *t = l->tiles + tile * l->tile_bytes;
    size_t n = KV_TILE * l->shape->index_dim;
    if (l->shape->dtype == KV_F32) return (const float *)(const void *)t;
    if (l->shape->dtype == KV_BF16) {
        for (size_t i = 0; i < n; i += 8) _mm256_storeu_ps(scratch + i, bf16_decode8(t + 2 * i));
        return scratch;
    }
    __m256 scale = _mm256_loadu_ps((const float *)(const void *)(t + n));
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(scratch + i, _mm256_mul_ps(e4m3_decode8(t + i), scale));
    return scratch;
}

/* ---- whole sequences ---- */

/* The last tile may hold positions beyond the copied ones, which belong to the target. */
static void copy_partial_tile(const struct kv_layer *to, const struct kv_layer *from, uint32_t tile,
                              uint32_t lanes)
{
    size_t n = to->shape->index_dim;
    size_t width = to->shape->dtype == KV_F32 ? 4 : to->shape->dtype == KV_BF16 ? 2 : 1;
    uint8_t *t = to->tiles + tile * to->tile_bytes;
    const uint8_t *f = from->tiles + tile * from->tile_bytes;
    for (size_t i = 0; i < n; i++) memcpy(t + i * KV_TILE * width, f + i * KV_TILE * width, lanes * width);
    if (to->shape->dtype == KV_FP8) memcpy(t + n * KV_TILE, f + n * KV_TILE, lanes * sizeof(float));
}

void kv_copy(struct kv *to, const struct kv *from, uint32_t positions)
{
    assert(positions <= to->capacity && positions <= from->capacity);
    for (uint32_t i = 0; i < to->shape.layers; i++) {
        struct kv_layer t = kv_layer(to, i), f = kv_layer(from, i);
        memcpy(t.rows, f.rows, positions * to->row_bytes);
        memcpy(t.tiles, f.tiles, positions / KV_TILE * to->tile_bytes);
        if (positions % KV_TILE && to->tile_bytes)
            copy_partial_tile(&t, &f, positions / KV_TILE, positions % KV_TILE);
    }
    if (positions > to->used) to->used = positions;
    if (!to->hidden) return;
    for (uint32_t i = 0; i < to->shape.recent; i++) {
        int64_t p = from->hidden_positions[i];
        if (p < 0 || p >= (int64_t)positions) continue;
        memcpy(kv_hidden_slot(to, (uint32_t)p), from->hidden + i * to->shape.hidden,
               to->shape.hidden * sizeof(float));
    }
}

uint64_t kv_image_bytes(const struct kv_shape *shape, uint32_t positions)
{
    uint64_t tiles = (positions + KV_TILE - 1) / KV_TILE;
    return shape->layers * (positions * (uint64_t)row_size(shape) + tiles * tile_size(shape));
}

void kv_to_image(const struct kv *kv, uint32_t positions, uint8_t *image)
{
    size_t rows = positions * kv->row_bytes, tiles = (positions + KV_TILE - 1) / KV_TILE * kv->tile_bytes;
    assert(positions <= kv->capacity);
    for (uint32_t i = 0; i < kv->shape.layers; i++, image += rows + tiles) {
        struct kv_layer l = kv_layer(kv, i);
        memcpy(image, l.rows, rows);
        memcpy(image + rows, l.tiles, tiles);
    }
}

void kv_from_image(struct kv *kv, uint32_t positions, const uint8_t *image)
{
    size_t rows = positions * kv->row_bytes, tiles = (positions + KV_TILE - 1) / KV_TILE * kv->tile_bytes;
    assert(positions <= kv->capacity);
    for (uint32_t i = 0; i < kv->shape.layers; i++, image += rows + tiles) {
        struct kv_layer l = kv_layer(kv, i);
        memcpy(l.rows, image, rows);
        memcpy(l.tiles, image + rows, tiles);
    }
    if (positions > kv->used) kv->used = positions;
}

float *kv_hidden_slot(struct kv *kv, uint32_t position)
{
    size_t slot = position % kv->shape.recent;
    kv->hidden_positions[slot] = position;
    return kv->hidden + slot * kv->shape.hidden;
}

const float *kv_hidden(const struct kv *kv, uint32_t position)
{
    size_t slot = position % kv->shape.recent;
    return kv->hidden_positions[slot] == (int64_t)position ? kv->hidden + slot * kv->shape.hidden : NULL;
}
