/* fp9_layout.c: weights into and out of packed panels. */
#include "fp9/fp9_layout.h"

#include <string.h>

size_t fp9_panel_bytes(size_t inputs)
{
    size_t tiles = fp9__tiles(inputs), rest = tiles % FP9__GROUP_TILES;
    size_t bytes = tiles / FP9__GROUP_TILES * FP9__GROUP_BYTES;
    return bytes + rest * FP9__TILE_BODY + (rest * FP9__TILE_SIGN + 63) / 64 * 64;
}

void fp9_panel_set(uint8_t *panel, size_t inputs, size_t input, unsigned lane, uint16_t code)
{
    size_t tile = input / FP9_TILE_INPUTS, k = input % FP9_TILE_INPUTS;
    panel[fp9__body_offset(tile) + k / 4 * 32 + lane * 4 + k % 4] = (uint8_t)code;
    uint8_t *sign = panel + fp9__sign_offset(fp9__tiles(inputs), tile) + lane;
    *sign = (uint8_t)(*sign | (code >> 8 & 1) << (7 - k));
}

void fp9_panel_put_tile(uint8_t *panel, size_t inputs, size_t tile, const uint16_t code[64])
{
    uint8_t *body = panel + fp9__body_offset(tile);
    uint8_t *sign = panel + fp9__sign_offset(fp9__tiles(inputs), tile);
    for (unsigned lane = 0; lane < FP9_LANES; lane++) {
        unsigned signs = 0;
        for (unsigned k = 0; k < FP9_TILE_INPUTS; k++) {
            unsigned c = code[lane * 8 + k];
            body[k / 4 * 32 + lane * 4 + k % 4] = (uint8_t)c;
            signs = signs << 1 | (c >> 8 & 1);
        }
        sign[lane] = (uint8_t)signs;
    }
}

uint16_t fp9_panel_get(const uint8_t *panel, size_t inputs, size_t input, unsigned lane)
{
    size_t tile = input / FP9_TILE_INPUTS, k = input % FP9_TILE_INPUTS;
    unsigned body = panel[fp9__body_offset(tile) + k / 4 * 32 + lane * 4 + k % 4];
    unsigned sign = panel[fp9__sign_offset(fp9__tiles(inputs), tile) + lane] >> (7 - k) & 1;
    return (uint16_t)(sign << 8 | body);
}
