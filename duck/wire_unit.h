/* wire_unit.h: the bytes of a weight unit: one duck's part of one matrix of one expert of one run.
 *
 * struct wire_unit; scales (scale_rows, scale_cols) float; elements (rows, cols) row-major as the checkpoint
 * has them (e4m3, bf16 or fp32). The scales are those of all 128 x 128 blocks of the tensor that the part
 * touches; for float checkpoints the host makes them (powers of two, duck_core.h), because a block's largest
 * magnitude may lie outside the part. Freestanding; the host cuts, the duck reads. */
#ifndef DUCK_WIRE_UNIT_H
#define DUCK_WIRE_UNIT_H

#include "duck/duck_core.h"

struct wire_unit {
    uint8_t element_bytes; // 1: e4m3, 2: bf16, 4: fp32
    uint8_t reserved[3];
    uint32_t column; // where the part's first column lies in its 128-block of the tensor, a multiple of 8
    uint32_t rows, cols;
};
_Static_assert(sizeof(struct wire_unit) == 16, "unit");

struct wire_unit_layout {
    uint32_t rows, cols, scale_rows, scale_cols;
    uint64_t scales, elements, bytes; // offsets; bytes of all
};
/* Of `count` slices whose first column is `column` (mod 128 counts) of the tensor. */
struct wire_unit_layout wire_unit_layout(uint32_t hidden, enum duck_matrix which, uint32_t count,
                                         uint32_t column, uint32_t element_bytes);

/* Writes the unit of slices [first, first + count) of the expert whose column 0 is the tensor's `column`;
 * out has wire_unit_layout(hidden, which, count, column + 8 * first, element_bytes).bytes. Reads each element
 * of the part once (and, for floats, the blocks it touches once more). Returns 0 or DUCK_BAD_WEIGHT with
 * *where = the element's index in the tensor (floats only: e4m3 is checked by the duck). */
int wire_unit_cut(const struct duck_tensor *t, uint32_t column, uint32_t first, uint32_t count, uint8_t *out,
                  uint64_t *where);

/* Units of a plan, in its order. */
struct wire_unit_id {
    uint32_t run, expert;
    enum duck_matrix which;
};
uint64_t wire_units(const struct duck_shape *shape);
/* unit < wire_units(). */
struct wire_unit_id wire_unit_find(const struct duck_shape *shape, uint64_t unit);
uint64_t wire_unit_number(const struct duck_shape *shape, struct wire_unit_id id);

/* The plan object (struct wire_plan ...): bytes, and how to write it. */
size_t wire_plan_bytes(const struct duck_shape *shape);
void wire_plan_write(const struct duck_shape *shape, uint8_t *out);

#endif
