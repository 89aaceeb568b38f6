/* duck_load.c: checkpoint weights into a duck's packed panels. */
#include "duck/duck_core_internal.h"

#include <string.h>

enum { NOT_A_NUMBER = 0xffff };

static float element(const uint8_t *data, int element_bytes, size_t i)
{
    uint32_t bits = 0;
    float x;
    if (element_bytes == 2)
        memcpy((uint8_t *)&bits + 2, data + 2 * i, 2);
    else
        memcpy(&bits, data + 4 * i, 4);
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

int duck_core_float_scale(const uint8_t *data, int element_bytes, size_t rows, size_t cols, size_t block_row,
                          size_t block_col, float *scale, uint64_t *where)
{
    enum { TOP = 14, SMALLEST = -86, LARGEST = 125 }; // both x 2^16 and 1 / scale stay normal
    size_t row_end = (block_row + 1) * FP9_BLOCK < rows ? (block_row + 1) * FP9_BLOCK : rows;
    size_t col_end = (block_col + 1) * FP9_BLOCK < cols ? (block_col + 1) * FP9_BLOCK : cols;
    uint32_t largest = 0;
    for (size_t r = block_row * FP9_BLOCK; r < row_end; r++)
        for (size_t c = block_col * FP9_BLOCK; c < col_end; c++) {
            float x = element(data, element_bytes, r * cols + c);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            bits &= 0x7fffffffu;
            if (bits >= (uint32_t)(LARGEST + 1 + 127) << 23) {
                *where = r * cols + c;
                return DUCK_BAD_WEIGHT;
            }
            if (bits > largest) largest = bits;
        }
    int exponent = largest ? (int)(largest >> 23) - 127 : TOP;
    *scale = power_of_two((exponent < SMALLEST ? SMALLEST : exponent) - TOP);
    return 0;
}

/* ---- a part ---- */

static size_t part_rows(const struct duck_core *d, const struct duck_part *p)
{
    return p->which == DUCK_DOWN ? d->hidden : 8 * (size_t)d->run[p->run].count;
}

static size_t part_cols(const struct duck_core *d, const struct duck_part *p)
{
    return p->which == DUCK_DOWN ? 8 * (size_t)d->run[p->run].count : d->hidden;
}

/* Distance of the rows of packed scales in the core's memory. */
static size_t packed_stride(const struct duck_core *d, const struct duck_part *p)
{
    return p->which == DUCK_DOWN ? d->run[p->run].column_blocks : d->hidden_blocks;
}

/* Of e4m3: no tile of the part has subnormals, until load_strips() finds some. */
static void clear_marks(const struct duck_core *d, const struct duck_part *p)
{
    const struct duck__run *run = &d->run[p->run];
    size_t rows = p->which == DUCK_DOWN ? duck__quads(d->hidden) : run->count;
    if (d->format != FP9_E4M3) return;
    memset(duck__marks(d, run, p->expert, p->which), 0,
           rows * duck__mark_stride(d, run, p->which) * sizeof(uint16_t));
}

/* Strips that share a mark may be packed by several cores. */
static void mark(const struct duck_core *d, const struct duck_part *p, size_t panel, size_t strip, int tiles)
{
    const struct duck__run *run = &d->run[p->run];
    size_t row = p->which == DUCK_DOWN ? panel / FP9_QUAD : panel;
    uint16_t *at = duck__marks(d, run, p->expert, p->which) + row * duck__mark_stride(d, run, p->which);
    __atomic_fetch_or(at + strip / 4, (uint16_t)(tiles << strip % 4 * 4), __ATOMIC_RELAXED);
}

int duck_core_load_scales(struct duck_core *d, const struct duck_part *p, uint64_t *where)
{
    struct duck__run *run = &d->run[p->run];
    float *packed = duck__scales(d, run, p->expert, p->which);
    size_t columns = (p->column + 8 * (size_t)run->count + FP9_BLOCK - 1) / FP9_BLOCK;
    size_t rows = p->which == DUCK_DOWN ? d->hidden_blocks : columns;
    size_t cols = p->which == DUCK_DOWN ? columns : d->hidden_blocks;
    run->column[p->expert] = p->column;
    clear_marks(d, p);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            float scale;
            size_t i = r * p->scale_stride + c;
            memcpy(&scale, p->scales + 4 * i, sizeof scale);
            if (!(scale >= 0x1p-126f && scale < power_of_two(duck_scale_end(d->format)))) {
                *where = i;
                return DUCK_BAD_SCALE;
            }
            packed[r * packed_stride(d, p) + c] =
                scale * (d->format == FP9_E4M3 ? FP9_E4M3_SCALE : FP9_W_SCALE);
        }
    return 0;
}

uint32_t duck_core_part_panels(const struct duck_core *d, const struct duck_part *p)
{
    return (uint32_t)(part_rows(d, p) / 8);
}

uint32_t duck_core_part_strips(const struct duck_core *d, const struct duck_part *p)
{
    return (uint32_t)((part_cols(d, p) + FP9_STRIP_INPUTS - 1) / FP9_STRIP_INPUTS);
}

static uint16_t code_of(const struct duck_part *p, size_t i, float scale)
{
    uint16_t code;
    int bad = p->element_bytes == 1
                  ? fp9_from_e4m3(p->data[i], &code)
                  : fp9_from_float(element(p->data, p->element_bytes, i) * (FP9_W_SCALE / scale), &code);
    return bad ? NOT_A_NUMBER
               : code; // 1 / scale is exact where it is used: scales of floats are powers of two
}

/* A strip, element by element. `scale`: packed ones of the panel's blocks; `col_at`: where its first column
 * lies in its block. */
static int load_strip(const struct duck_part *p, uint8_t *to, size_t inputs, size_t row, size_t strip,
                      const float *scale, size_t col_at, uint64_t *where)
{
    uint16_t code[FP9_LANES * FP9_STRIP_INPUTS] = {0};
    size_t end = inputs - FP9_STRIP_INPUTS * strip;
    if (end > FP9_STRIP_INPUTS) end = FP9_STRIP_INPUTS;
    for (size_t lane = 0; lane < FP9_LANES; lane++)
        for (size_t k = 0; k < end; k++) {
            size_t col = FP9_STRIP_INPUTS * strip + k, i = (row + lane) * p->stride + col;
            uint16_t *c = &code[FP9_STRIP_INPUTS * lane + k];
            *c = code_of(p, i, scale[(col_at + col) / FP9_BLOCK]);
            if (*c != NOT_A_NUMBER) continue;
            *where = i;
            return DUCK_BAD_WEIGHT;
        }
    fp9_strip_put(to, inputs, strip, code);
    return 0;
}

int duck_core_load_strips(struct duck_core *d, const struct duck_part *p, uint32_t panel, uint32_t first,
                          uint32_t count, uint64_t *where)
{
    const struct duck__run *run = &d->run[p->run];
    size_t inputs = part_cols(d, p), row = 8 * (size_t)panel;
    if (d->format == FP9_E4M3 && p->element_bytes != 1) {
        *where = row * p->stride + (size_t)first * FP9_STRIP_INPUTS;
        return DUCK_BAD_WEIGHT;
    }
    size_t row_at = p->which == DUCK_DOWN ? 0 : p->column, col_at = p->which == DUCK_DOWN ? p->column : 0;
    const float *scale =
        duck__scales(d, run, p->expert, p->which) + (row_at + row) / FP9_BLOCK * packed_stride(d, p);
    uint8_t *panels = duck__panel(run, p->expert, p->which, panel);
    for (size_t strip = first; strip < (size_t)first + count; strip++) {
        uint8_t *to = p->which == DUCK_DOWN
                          ? fp9_quad_strip(d->format, panels, inputs, panel % FP9_QUAD, strip)
                          : fp9_panel_strip(d->format, panels, strip);
        int marks = p->element_bytes == 1 ? fp9_strip_put_e4m3(d->format, to, inputs, strip, d->e4m3,
                                                               p->data + row * p->stride, p->stride)
                                          : -1;
        if (marks > 0) mark(d, p, panel, strip, marks);
        if (marks >= 0) continue;
        int rc = load_strip(p, to, inputs, row, strip, scale, col_at, where); // also says where a NaN is
        if (rc) return rc;
    }
    return 0;
}

/* ---- whole tensors ---- */

/* Scales of a part of a float tensor, into the place of its packed scales. */
static int make_scales(const struct duck_core *d, const struct duck_tensor *t, const struct duck_part *p,
                       size_t row_block, size_t col_block, float *out, uint64_t *where)
{
    const int down = t->which == DUCK_DOWN;
    size_t columns = (p->column + 8 * (size_t)d->run[p->run].count + FP9_BLOCK - 1) / FP9_BLOCK;
    size_t rows = down ? d->hidden_blocks : columns, cols = down ? columns : d->hidden_blocks;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            int rc = duck_core_float_scale(t->data, (int)t->element_bytes, down ? t->hidden : t->width,
                                           down ? t->width : t->hidden, row_block + r, col_block + c,
                                           &out[r * packed_stride(d, p) + c], where);
            if (rc) return rc;
        }
    return 0;
}

static int load_run(struct duck_core *d, uint32_t run, uint32_t expert, uint32_t column,
                    const struct duck_tensor *t, uint64_t *where)
{
    const int down = t->which == DUCK_DOWN;
    size_t from = column + 8 * (size_t)d->run[run].first; // in the tensor
    size_t row = down ? 0 : from, col = down ? from : 0, cols = down ? t->width : t->hidden;
    size_t element_at = row * cols + col, scale_stride = (cols + FP9_BLOCK - 1) / FP9_BLOCK;
    size_t scale_at = row / FP9_BLOCK * scale_stride + col / FP9_BLOCK;
    struct duck_part p = {.run = run,
                          .expert = expert,
                          .which = t->which,
                          .column = (uint32_t)(from % FP9_BLOCK),
                          .element_bytes = (int)t->element_bytes,
                          .data = t->data + element_at * t->element_bytes,
                          .stride = cols};
    if (t->scales) {
        p.scales = t->scales + 4 * scale_at;
        p.scale_stride = scale_stride;
    } else {
        float *made = duck__scales(d, &d->run[run], expert, t->which);
        int rc = make_scales(d, t, &p, row / FP9_BLOCK, col / FP9_BLOCK, made, where);
        if (rc) return rc;
        p.scales = (const uint8_t *)made;
        p.scale_stride = packed_stride(d, &p);
    }
    int rc = duck_core_load_scales(d, &p, where);
    if (rc) {
        *where += scale_at;
        return rc;
    }
    for (uint32_t panel = 0; panel < duck_core_part_panels(d, &p) && !rc; panel++)
        rc = duck_core_load_strips(d, &p, panel, 0, duck_core_part_strips(d, &p), where);
    if (rc) *where += element_at;
    return rc;
}

int duck_core_load(struct duck_core *d, uint32_t bank, uint32_t expert, uint32_t column,
                   const struct duck_tensor *t, uint64_t *where)
{
    uint32_t end;
    for (uint32_t i = duck__runs(d, bank, &end); i < end; i++) {
        int rc = load_run(d, i, expert, column, t, where);
        if (rc) return rc;
    }
    return 0;
}
