/* duck_load.c: checkpoint weights into a duck's packed panels. */
#include "duck/duck_core_internal.h"

#include <string.h>

enum { NOT_A_NUMBER = 0xffff };

/* One tensor of the checkpoint: where codes and scales come from. */
struct source {
    const uint8_t *data;
    size_t rows, cols;
    const uint8_t *scales; // e4m3 only
    int element_bytes;     // 1: e4m3, 2: bf16, 4: fp32
    uint16_t e4m3[256];    // codes of all e4m3 bytes, NOT_A_NUMBER for NaN
    uint64_t *where;
};

static float element(const struct source *s, size_t i)
{
    uint32_t bits = 0;
    float x;
    if (s->element_bytes == 2)
        memcpy((uint8_t *)&bits + 2, s->data + 2 * i, 2);
    else
        memcpy(&bits, s->data + 4 * i, 4);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^e as fp32, -126 <= e <= 127. */
static float power_of_two(int e)
{
    uint32_t bits = (uint32_t)(e + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale that brings the largest magnitude of block (br, bc) into [2^14, 2^15). */
static int block_scale(const struct source *s, size_t br, size_t bc, float *scale)
{
    enum { TOP = 14, SMALLEST = -86, LARGEST = 125 }; // both x 2^16 and 1 / scale stay normal
    size_t row_end = (br + 1) * FP9_BLOCK < s->rows ? (br + 1) * FP9_BLOCK : s->rows;
    size_t col_end = (bc + 1) * FP9_BLOCK < s->cols ? (bc + 1) * FP9_BLOCK : s->cols;
    uint32_t largest = 0;
    for (size_t r = br * FP9_BLOCK; r < row_end; r++)
        for (size_t c = bc * FP9_BLOCK; c < col_end; c++) {
            float x = element(s, r * s->cols + c);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            bits &= 0x7fffffffu;
            if (bits >= (uint32_t)(LARGEST + 1 + 127) << 23) {
                *s->where = r * s->cols + c;
                return DUCK_BAD_WEIGHT;
            }
            if (bits > largest) largest = bits;
        }
    int exponent = largest ? (int)(largest >> 23) - 127 : TOP;
    *scale = power_of_two((exponent < SMALLEST ? SMALLEST : exponent) - TOP);
    return 0;
}

static int checkpoint_scale(const struct source *s, size_t br, size_t bc, float *scale)
{
    size_t i = br * ((s->cols + FP9_BLOCK - 1) / FP9_BLOCK) + bc;
    memcpy(scale, s->scales + 4 * i, sizeof *scale);
    if (*scale >= 0x1p-126f && *scale < 0x1p112f) return 0;
    *s->where = i;
    return DUCK_BAD_SCALE;
}

/* Packed scales of the blocks [row_block, + rows) x [col_block, + cols), `stride` apart. */
static int load_scales(const struct source *s, size_t row_block, size_t rows, size_t col_block, size_t cols,
                       float *out, size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            float scale;
            int rc = s->scales ? checkpoint_scale(s, row_block + r, col_block + c, &scale)
                               : block_scale(s, row_block + r, col_block + c, &scale);
            if (rc) return rc;
            out[r * stride + c] = scale * FP9_W_SCALE;
        }
    return 0;
}

/* Codes of the 8 x 8 elements at (row, col), all in one block whose packed scale is `scale`. */
static int load_tile(const struct source *s, size_t row, size_t col, float scale, uint16_t code[64])
{
    float inverse =
        FP9_W_SCALE / scale; // exact where it is used: the block scales made here are powers of two
    for (size_t lane = 0; lane < 8; lane++)
        for (size_t k = 0; k < 8; k++) {
            size_t i = (row + lane) * s->cols + col + k;
            uint16_t *c = &code[8 * lane + k];
            if (s->element_bytes == 1)
                *c = s->e4m3[s->data[i]];
            else if (fp9_from_float(element(s, i) * inverse, c))
                *c = NOT_A_NUMBER;
            if (*c == NOT_A_NUMBER) {
                *s->where = i;
                return DUCK_BAD_WEIGHT;
            }
        }
    return 0;
}

/* One panel: rows row .. row + 7, `inputs` columns from `col` on; scale[i] belongs to the i-th block it
 * touches. */
static int load_panel(const struct source *s, uint8_t *panel, size_t row, size_t col, size_t inputs,
                      const float *scale)
{
    for (size_t tile = 0; tile < inputs / 8; tile++) {
        uint16_t code[64];
        size_t c = col + 8 * tile;
        int rc = load_tile(s, row, c, scale[c / FP9_BLOCK - col / FP9_BLOCK], code);
        if (rc) return rc;
        fp9_panel_put_tile(panel, inputs, tile, code);
    }
    return 0;
}

static int load_run(const struct duck_core *d, const struct duck__run *r, uint32_t expert,
                    enum duck_matrix which, uint32_t column, const struct source *s)
{
    size_t from = column + 8 * (size_t)r->first, columns = 8 * (size_t)r->count; // in the tensor
    size_t block = from / FP9_BLOCK, blocks = (from + columns - 1) / FP9_BLOCK - block + 1;
    float *scales = duck__scales(d, r, expert, which);
    r->column[expert] = (uint32_t)(from % FP9_BLOCK);
    int rc;
    if (which == DUCK_DOWN) {
        rc = load_scales(s, 0, d->hidden_blocks, block, blocks, scales, r->column_blocks);
        for (size_t row = 0; rc == 0 && row < d->hidden; row += 8)
            rc = load_panel(s, duck__panel(r, expert, which, row / 8), row, from, columns,
                            scales + row / FP9_BLOCK * r->column_blocks);
        return rc;
    }
    rc = load_scales(s, block, blocks, 0, d->hidden_blocks, scales, d->hidden_blocks);
    for (size_t c = from; rc == 0 && c < from + columns; c += 8)
        rc = load_panel(s, duck__panel(r, expert, which, (c - from) / 8), c, 0, d->hidden,
                        scales + (c / FP9_BLOCK - block) * d->hidden_blocks);
    return rc;
}

static int load(struct duck_core *d, uint32_t bank, uint32_t expert, enum duck_matrix which, uint32_t column,
                uint32_t tensor_width, struct source *s)
{
    s->rows = which == DUCK_DOWN ? d->hidden : tensor_width;
    s->cols = which == DUCK_DOWN ? tensor_width : d->hidden;
    uint32_t end;
    for (uint32_t i = duck__runs(d, bank, &end); i < end; i++) {
        int rc = load_run(d, &d->run[i], expert, which, column, s);
        if (rc) return rc;
    }
    return 0;
}

int duck_core_load_e4m3(struct duck_core *d, uint32_t bank, uint32_t expert, enum duck_matrix which,
                        const uint8_t *data, const uint8_t *scales, uint32_t column, uint32_t tensor_width,
                        uint64_t *where)
{
    struct source s = {.data = data, .scales = scales, .element_bytes = 1, .where = where};
    for (unsigned i = 0; i < 256; i++)
        if (fp9_from_e4m3((uint8_t)i, &s.e4m3[i])) s.e4m3[i] = NOT_A_NUMBER;
    return load(d, bank, expert, which, column, tensor_width, &s);
}

int duck_core_load_float(struct duck_core *d, uint32_t bank, uint32_t expert, enum duck_matrix which,
                         const uint8_t *data, int is_bf16, uint32_t column, uint32_t tensor_width,
                         uint64_t *where)
{
    struct source s = {.data = data, .element_bytes = is_bf16 ? 2 : 4, .where = where};
    return load(d, bank, expert, which, column, tensor_width, &s);
}
