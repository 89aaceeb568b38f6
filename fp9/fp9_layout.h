/* fp9_layout.h: where a tile lies inside a panel, shared by the files of fp9/ (nobody else includes this).
 *
 * A tile is 8 inputs: word vectors 2 (t % 4) and 2 (t % 4) + 1 of strip t / 4. */
#ifndef FP9_FP9_LAYOUT_H
#define FP9_FP9_LAYOUT_H

#include "fp9/fp9.h"

enum {
    FP9__VECTOR = 32,      // bytes: 8 lanes
    FP9__STRIP_TILES = 4,  //
    FP9__TILE_BYTES = 64,  // two word vectors
    FP9__GROUP_TILES = 16, // tiles of a scale block
    FP9__STRIP_BYTES = FP9__VECTOR + FP9__STRIP_TILES * FP9__TILE_BYTES,
    FP9__GROUP_BYTES = FP9__GROUP_TILES / FP9__STRIP_TILES * FP9__STRIP_BYTES,
};

static inline size_t fp9__tiles(size_t inputs)
{
    return (inputs + FP9_TILE_INPUTS - 1) / FP9_TILE_INPUTS;
}

/* Tiles of the group that begins at tile `first`. */
static inline size_t fp9__group_tiles(size_t tiles, size_t first)
{
    return tiles - first < FP9__GROUP_TILES ? tiles - first : FP9__GROUP_TILES;
}

/* Bytes of a strip: the last one of a panel may have fewer tiles. */
static inline size_t fp9__strip_bytes(size_t inputs, size_t strip)
{
    size_t left = fp9__tiles(inputs) - strip * FP9__STRIP_TILES;
    return FP9__VECTOR + (left < FP9__STRIP_TILES ? left : FP9__STRIP_TILES) * FP9__TILE_BYTES;
}

/* Of strip `strip` of panel p of a quad. */
static inline size_t fp9__quad_offset(size_t inputs, size_t p, size_t strip)
{
    return strip * FP9_QUAD * FP9__STRIP_BYTES + p * fp9__strip_bytes(inputs, strip);
}

/* Of the strip's vector S; the strip's words follow it. */
static inline size_t fp9__strip_offset(size_t tile)
{
    return tile / FP9__STRIP_TILES * FP9__STRIP_BYTES;
}

#endif
