/* fp9_layout.h: where a tile lies inside a panel, shared by the files of fp9/ (nobody else includes this). */
#ifndef FP9_FP9_LAYOUT_H
#define FP9_FP9_LAYOUT_H

#include "fp9/fp9.h"

enum {
    FP9__GROUP_TILES = 16, // tiles of a group: one scale block
    FP9__TILE_BODY = 64,   // bytes
    FP9__TILE_SIGN = 8,
    FP9__GROUP_BYTES = FP9__GROUP_TILES * (FP9__TILE_BODY + FP9__TILE_SIGN),
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

static inline size_t fp9__body_offset(size_t tile)
{
    return tile / FP9__GROUP_TILES * FP9__GROUP_BYTES + tile % FP9__GROUP_TILES * FP9__TILE_BODY;
}

static inline size_t fp9__sign_offset(size_t tiles, size_t tile)
{
    size_t first = tile - tile % FP9__GROUP_TILES;
    return tile / FP9__GROUP_TILES * FP9__GROUP_BYTES + fp9__group_tiles(tiles, first) * FP9__TILE_BODY +
           tile % FP9__GROUP_TILES * FP9__TILE_SIGN;
}

#endif
