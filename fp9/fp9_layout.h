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
};

/* Bytes in front of a strip's words: fp9's signs. */
static inline size_t fp9__head(enum fp9_format f)
{
    return f == FP9_FP9 ? FP9__VECTOR : 0;
}

/* Bytes of a strip that is whole. */
static inline size_t fp9__whole_strip(enum fp9_format f)
{
    return fp9__head(f) + (size_t)FP9__STRIP_TILES * FP9__TILE_BYTES;
}

static inline size_t fp9__group_bytes(enum fp9_format f)
{
    return FP9__GROUP_TILES / FP9__STRIP_TILES * fp9__whole_strip(f);
}

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
static inline size_t fp9__strip_bytes(enum fp9_format f, size_t inputs, size_t strip)
{
    size_t left = fp9__tiles(inputs) - strip * FP9__STRIP_TILES;
    return fp9__head(f) + (left < FP9__STRIP_TILES ? left : FP9__STRIP_TILES) * FP9__TILE_BYTES;
}

/* Of strip `strip` of panel p of a quad. */
static inline size_t fp9__quad_offset(enum fp9_format f, size_t inputs, size_t p, size_t strip)
{
    return strip * FP9_QUAD * fp9__whole_strip(f) + p * fp9__strip_bytes(f, inputs, strip);
}

/* Of the strip that a tile is in. */
static inline size_t fp9__strip_offset(enum fp9_format f, size_t tile)
{
    return tile / FP9__STRIP_TILES * fp9__whole_strip(f);
}

#endif
