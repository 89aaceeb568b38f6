/* wire_unit.c: cutting weight units out of tensors, numbering them, writing plans. */
#include "duck/wire_unit.h"

#include <string.h>

#include "duck/wire.h"

struct wire_unit_layout wire_unit_layout(uint32_t hidden, enum duck_matrix which, uint32_t count,
                                         uint32_t column, uint32_t element_bytes)
{
    uint32_t columns = 8 * count, blocks = (column % FP9_BLOCK + columns + FP9_BLOCK - 1) / FP9_BLOCK;
    uint32_t hidden_blocks = (hidden + FP9_BLOCK - 1) / FP9_BLOCK;
    struct wire_unit_layout l = {.scales = sizeof(struct wire_unit)};
    l.rows = which == DUCK_DOWN ? hidden : columns;
    l.cols = which == DUCK_DOWN ? columns : hidden;
    l.scale_rows = which == DUCK_DOWN ? hidden_blocks : blocks;
    l.scale_cols = which == DUCK_DOWN ? blocks : hidden_blocks;
    l.elements = l.scales + sizeof(float) * l.scale_rows * l.scale_cols;
    l.bytes = l.elements + (uint64_t)l.rows * l.cols * element_bytes;
    return l;
}

int wire_unit_cut(const struct duck_tensor *t, uint32_t column, uint32_t first, uint32_t count, uint8_t *out,
                  uint64_t *where)
{
    uint32_t from = column + 8 * first;
    struct wire_unit_layout l = wire_unit_layout(t->hidden, t->which, count, from, t->element_bytes);
    struct wire_unit unit = {.element_bytes = (uint8_t)t->element_bytes,
                             .column = from % FP9_BLOCK,
                             .rows = l.rows,
                             .cols = l.cols};
    memcpy(out, &unit, sizeof unit);
    int down = t->which == DUCK_DOWN;
    size_t rows = down ? t->hidden : t->width, cols = down ? t->width : t->hidden;
    size_t row = down ? 0 : from, col = down ? from : 0;
    size_t row_block = row / FP9_BLOCK, col_block = col / FP9_BLOCK;
    size_t stride = (cols + FP9_BLOCK - 1) / FP9_BLOCK;
    for (uint32_t r = 0; r < l.scale_rows; r++) {
        uint8_t *to = out + l.scales + (size_t)r * l.scale_cols * sizeof(float);
        if (t->scales) {
            memcpy(to, t->scales + ((row_block + r) * stride + col_block) * sizeof(float),
                   l.scale_cols * sizeof(float));
            continue;
        }
        for (uint32_t c = 0; c < l.scale_cols; c++) {
            float scale;
            int rc = duck_core_float_scale(t->data, (int)t->element_bytes, rows, cols, row_block + r,
                                           col_block + c, &scale, where);
            if (rc) return rc;
            memcpy(to + c * sizeof scale, &scale, sizeof scale);
        }
    }
    size_t bytes = (size_t)l.cols * t->element_bytes;
    for (uint32_t r = 0; r < l.rows; r++)
        memcpy(out + l.elements + r * bytes, t->data + ((row + r) * cols + col) * t->element_bytes, bytes);
    return 0;
}

/* ---- numbers ---- */

static uint64_t units_of_run(const struct duck_shape *s, uint32_t run)
{
    const struct duck_bank_shape *b = &s->bank[s->run[run].bank];
    return 3 * ((uint64_t)b->routed + b->always);
}

uint64_t wire_units(const struct duck_shape *shape)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < shape->runs; i++) units += units_of_run(shape, i);
    return units;
}

struct wire_unit_id wire_unit_find(const struct duck_shape *shape, uint64_t unit)
{
    uint32_t run = 0;
    for (; unit >= units_of_run(shape, run); run++) unit -= units_of_run(shape, run);
    return (struct wire_unit_id){run, (uint32_t)(unit / 3), (enum duck_matrix)(unit % 3)};
}

uint64_t wire_unit_number(const struct duck_shape *shape, struct wire_unit_id id)
{
    uint64_t unit = 3 * (uint64_t)id.expert + id.which;
    for (uint32_t i = 0; i < id.run; i++) unit += units_of_run(shape, i);
    return unit;
}

/* ---- plan ---- */

size_t wire_plan_bytes(const struct duck_shape *s)
{
    return sizeof(struct wire_plan) + s->banks * sizeof(struct wire_bank) + s->runs * sizeof(struct wire_run);
}

void wire_plan_write(const struct duck_shape *s, uint8_t *out)
{
    _Static_assert(sizeof(struct wire_bank) == sizeof(struct duck_bank_shape) &&
                       sizeof(struct wire_run) == sizeof(struct duck_run),
                   "the plan travels as the shape is in memory");
    struct wire_plan p = {.hidden = s->hidden, .banks = s->banks, .runs = s->runs, .format = s->format};
    memcpy(out, &p, sizeof p);
    memcpy(out + sizeof p, s->bank, s->banks * sizeof *s->bank);
    memcpy(out + sizeof p + s->banks * sizeof *s->bank, s->run, s->runs * sizeof *s->run);
}
