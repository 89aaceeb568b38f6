/* duck_core_internal.h: how a duck's memory is laid out; shared by the files of duck_core only.
 *
 * Of each run, expert after expert in ascending id, in the order a step reads it: gate panel 0, up panel 0,
 * gate panel 1, ..., then the quads of down, then the packed scales of gate, up and down, then, of e4m3, the
 * marks (fp9/fp9.h) of gate and up, a row for each panel, and of down, a row for each quad. */
#ifndef DUCK_DUCK_CORE_INTERNAL_H
#define DUCK_DUCK_CORE_INTERNAL_H

#include "duck/duck_core.h"
#include "fp9/fp9_down.h"

struct duck__run {
    uint32_t bank, first, count; // slices
    uint8_t *experts;            // expert e at + e * expert_bytes
    uint32_t *column; // (experts) position of the run's first column in its 128-block of the tensor
    size_t gate_up_panel, down_quad; // bytes of one panel, of four
    size_t weight_bytes;             // of one expert: what a step reads
    size_t marks_at;                 // of its marks, from its weights on
    size_t expert_bytes;             // with scales, marks and padding
    size_t column_blocks;            // most 128-blocks that the run's columns touch
};

struct duck_core {
    const struct fp9_kernels *k;
    enum fp9_format format;
    uint32_t hidden, banks, runs;
    size_t hidden_blocks;
    struct duck_bank_shape *bank; // (banks)
    struct duck__run *run;        // (runs)
    struct fp9_e4m3_table *e4m3;  // what loading reads
};

static inline uint32_t duck__experts(const struct duck_core *d, uint32_t bank)
{
    return d->bank[bank].routed + d->bank[bank].always;
}

/* A panel of gate or up; of down the quad that it lies in. */
static inline uint8_t *duck__panel(const struct duck__run *r, uint32_t expert, enum duck_matrix which,
                                   size_t panel)
{
    uint8_t *base = r->experts + expert * r->expert_bytes;
    if (which == DUCK_DOWN)
        return base + 2 * (size_t)r->count * r->gate_up_panel + panel / FP9_QUAD * r->down_quad;
    return base + (2 * panel + (which == DUCK_UP)) * r->gate_up_panel;
}

/* gate and up: (column_blocks, hidden_blocks); down: (hidden_blocks, column_blocks). */
static inline float *duck__scales(const struct duck_core *d, const struct duck__run *r, uint32_t expert,
                                  enum duck_matrix which)
{
    uint8_t *base = r->experts + expert * r->expert_bytes + r->weight_bytes;
    return (float *)(void *)base + (size_t)which * r->column_blocks * d->hidden_blocks;
}

/* gate and up: (panels, hidden_blocks); down: (quads, fp9_down_marks(slices)). */
static inline uint16_t *duck__marks(const struct duck_core *d, const struct duck__run *r, uint32_t expert,
                                    enum duck_matrix which)
{
    uint8_t *base = r->experts + expert * r->expert_bytes + r->marks_at;
    return (uint16_t *)(void *)base + (size_t)which * r->count * d->hidden_blocks;
}

static inline size_t duck__mark_stride(const struct duck_core *d, const struct duck__run *r,
                                       enum duck_matrix which)
{
    return which == DUCK_DOWN ? fp9_down_marks(r->count) : d->hidden_blocks;
}

static inline size_t duck__quads(uint32_t hidden)
{
    return (hidden / 8 + FP9_QUAD - 1) / FP9_QUAD;
}

/* The runs of a bank: [first, *end). */
static inline uint32_t duck__runs(const struct duck_core *d, uint32_t bank, uint32_t *end)
{
    uint32_t first = 0;
    while (first < d->runs && d->run[first].bank < bank) first++;
    *end = first;
    while (*end < d->runs && d->run[*end].bank == bank) ++*end;
    return first;
}

/* A piece of the caller's memory, 64-byte aligned. With memory NULL it only counts. */
struct duck__arena {
    uint8_t *memory;
    size_t used;
};

static inline void *duck__take(struct duck__arena *a, size_t bytes)
{
    void *piece = a->memory ? a->memory + a->used : NULL;
    a->used += (bytes + 63) / 64 * 64;
    return piece;
}

#endif
