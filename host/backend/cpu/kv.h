/* kv.h: what a sequence remembers: per layer and position the normed latent with the roped key part behind
 * it, and the index key; and the final-norm hidden states of recent positions for the MTP layer.
 *
 * One lazily committed mapping per sequence, made for its whole capacity: nothing is allocated while it
 * grows and nothing moves. Index keys lie in tiles of 8 positions, (dim, 8), so that one vector holds one
 * dimension of 8 keys. Written by rows of a job in parallel (each its own position), read afterwards. */
#ifndef DUCKD_HOST_BACKEND_CPU_KV_H
#define DUCKD_HOST_BACKEND_CPU_KV_H

#include <stddef.h>
#include <stdint.h>

#include "host/backend/backend.h"

#define KV_TILE BACKEND_KEY_UNIT

struct kv_shape {
    enum kv_dtype dtype;
    uint32_t layers;
    size_t latent, rope, index_dim; // values; index_dim 0: no indexer; multiples of 8
    size_t hidden;                  // width of the remembered hidden states; 0: none are kept
    uint32_t recent;                // how many positions they are kept for
};

/* One layer of one sequence. fp8 rows: latent codes, rope codes, fp32 scale of each. fp8 tiles: codes, 8
 * scales. */
struct kv_layer {
    const struct kv_shape *shape;
    uint8_t *rows, *tiles;
    size_t row_bytes, tile_bytes;
};

struct kv {
    struct kv_shape shape;
    uint32_t capacity, used; // positions; used: highest written + 1 over the sequence's life
    uint8_t *map;
    size_t map_bytes, layer_bytes, row_bytes, tile_bytes;
    float *hidden;             // (recent, hidden), position p at p % recent
    int64_t *hidden_positions; // (recent) whose state is there, -1: none
};

int kv_open(struct kv *kv, const struct kv_shape *shape, uint32_t capacity, struct error *err);
void kv_close(struct kv *kv);
uint64_t kv_resident_bytes(const struct kv *kv);
void kv_copy(struct kv *to, const struct kv *from, uint32_t positions); // same shape, positions fit in both

/* KV of [0, positions) in one piece: per layer rows, then whole tiles. */
uint64_t kv_image_bytes(const struct kv_shape *shape, uint32_t positions);
void kv_to_image(const struct kv *kv, uint32_t positions, uint8_t *image);
void kv_from_image(struct kv *kv, uint32_t positions, const uint8_t *image);

struct kv_layer kv_layer(const struct kv *kv, uint32_t layer);
void kv_write(const struct kv_layer *l, uint32_t position, const float *latent, const float *rope);
void kv_write_index(const struct kv_layer *l, uint32_t position, const float *key);
/* Key row as fp32: in place when the dtype is f32, else decoded into scratch (latent + rope). */
const float *kv_row(const struct kv_layer *l, uint32_t position, float *scratch);
/* Tile of index keys (index_dim, 8) as fp32; scratch of that size is used unless the dtype is f32. */
const float *kv_tile(const struct kv_layer *l, uint32_t tile, float *scratch);

float *kv_hidden_slot(struct kv *kv, uint32_t position);        // to be written
const float *kv_hidden(const struct kv *kv, uint32_t position); // NULL: no longer (or never) there

#endif
