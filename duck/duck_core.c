/* duck_core.c: the shape of a duck's memory. */
#include "duck/duck_core_internal.h"

#include <string.h>

int duck_shape_is_possible(const struct duck_shape *s)
{
    if (s->hidden == 0 || s->hidden % 8 || (unsigned)s->format >= FP9_FORMATS) return 0;
    for (uint32_t b = 0; b < s->banks; b++)
        if (s->bank[b].width == 0 || s->bank[b].width % 8 || s->bank[b].routed + s->bank[b].always == 0)
            return 0;
    for (uint32_t i = 0; i < s->runs; i++) {
        const struct duck_run *r = &s->run[i], *before = i ? r - 1 : NULL;
        if (r->bank >= s->banks || r->count == 0) return 0;
        uint32_t slices = s->bank[r->bank].width / 8;
        if (r->first >= slices || r->count > slices - r->first) return 0;
        if (before &&
            (before->bank > r->bank || (before->bank == r->bank && before->first + before->count > r->first)))
            return 0;
    }
    return 1;
}

/* Sizes of a run; its memory is placed by place_run(). */
static struct duck__run size_run(const struct duck_shape *s, uint32_t run)
{
    struct duck__run r = {.bank = s->run[run].bank, .first = s->run[run].first, .count = s->run[run].count};
    size_t hidden_blocks = (s->hidden + FP9_BLOCK - 1) / FP9_BLOCK;
    r.gate_up_panel = fp9_panel_bytes(s->format, s->hidden);
    r.down_quad = fp9_quad_bytes(s->format, 8 * (size_t)r.count);
    r.weight_bytes = 2 * (size_t)r.count * r.gate_up_panel + duck__quads(s->hidden) * r.down_quad;
    r.column_blocks = (8 * (size_t)r.count + FP9_BLOCK - 8 + FP9_BLOCK - 1) / FP9_BLOCK;
    size_t scale_bytes = 3 * r.column_blocks * hidden_blocks * sizeof(float);
    r.marks_at = r.weight_bytes + (scale_bytes + 63) / 64 * 64;
    size_t marks = s->format == FP9_E4M3
                       ? 2 * r.count * hidden_blocks + duck__quads(s->hidden) * fp9_down_marks(r.count)
                       : 0;
    r.expert_bytes = r.marks_at + (marks * sizeof(uint16_t) + 63) / 64 * 64;
    return r;
}

static void place_run(struct duck__arena *a, const struct duck_shape *s, struct duck__run *r)
{
    uint32_t experts = s->bank[r->bank].routed + s->bank[r->bank].always;
    r->column = duck__take(a, experts * sizeof *r->column);
    r->experts = duck__take(a, experts * r->expert_bytes);
}

/* The core but for its runs' weights. */
static struct duck_core *lay_out_head(struct duck__arena *a, const struct duck_shape *s)
{
    struct duck_core *d = duck__take(a, sizeof *d);
    struct duck_bank_shape *bank = duck__take(a, s->banks * sizeof *bank);
    struct duck__run *run = duck__take(a, s->runs * sizeof *run);
    struct fp9_e4m3_table *e4m3 = duck__take(a, sizeof *e4m3);
    if (!d) return NULL;
    memcpy(bank, s->bank, s->banks * sizeof *bank);
    fp9_e4m3_table_make(e4m3);
    for (uint32_t i = 0; i < s->runs; i++) run[i] = size_run(s, i);
    *d = (struct duck_core){.hidden = s->hidden,
                            .banks = s->banks,
                            .runs = s->runs,
                            .format = s->format,
                            .hidden_blocks = (s->hidden + FP9_BLOCK - 1) / FP9_BLOCK,
                            .bank = bank,
                            .run = run,
                            .e4m3 = e4m3};
    return d;
}

size_t duck_core_head_bytes(const struct duck_shape *shape)
{
    struct duck__arena a = {0};
    lay_out_head(&a, shape);
    return a.used;
}

size_t duck_core_run_bytes(const struct duck_shape *shape, uint32_t run)
{
    struct duck__arena a = {0};
    struct duck__run r = size_run(shape, run);
    place_run(&a, shape, &r);
    return a.used;
}

size_t duck_core_bytes(const struct duck_shape *shape)
{
    size_t bytes = duck_core_head_bytes(shape);
    for (uint32_t i = 0; i < shape->runs; i++) bytes += duck_core_run_bytes(shape, i);
    return bytes;
}

struct duck_core *duck_core_init(void *memory, size_t bytes, const struct duck_shape *shape,
                                 const struct fp9_kernels *k)
{
    if (!duck_shape_is_possible(shape) || bytes < duck_core_bytes(shape)) return NULL;
    memset(memory, 0, duck_core_bytes(shape));
    return duck_core_init_zeroed(memory, bytes, shape, k);
}

struct duck_core *duck_core_init_zeroed(void *memory, size_t bytes, const struct duck_shape *shape,
                                        const struct fp9_kernels *k)
{
    if (!duck_shape_is_possible(shape) || bytes < duck_core_bytes(shape) || (uintptr_t)memory % 64)
        return NULL;
    struct duck__arena a = {.memory = memory};
    struct duck_core *d = lay_out_head(&a, shape);
    for (uint32_t i = 0; i < shape->runs; i++) place_run(&a, shape, &d->run[i]);
    d->k = k;
    return d;
}

struct duck_core *duck_core_init_head(void *head, const struct duck_shape *shape, const struct fp9_kernels *k)
{
    struct duck__arena a = {.memory = head};
    struct duck_core *d = lay_out_head(&a, shape);
    d->k = k;
    return d;
}

void duck_core_place_run(struct duck_core *d, uint32_t run, uint8_t *memory)
{
    struct duck_shape s = {.hidden = d->hidden, .banks = d->banks, .bank = d->bank, .format = d->format};
    struct duck__arena a = {.memory = memory};
    place_run(&a, &s, &d->run[run]);
}

uint32_t duck_core_subtrees(const struct duck_core *d, uint32_t bank, struct duck_subtree *out, uint32_t max)
{
    uint32_t n = 0, end;
    for (uint32_t i = duck__runs(d, bank, &end); i < end; i++) {
        const struct duck__run *r = &d->run[i];
        for (uint32_t s = 0; s < r->count; n++) {
            uint32_t level = fp9_subtree_level(r->first + s, r->count - s);
            if (n < max) out[n] = (struct duck_subtree){r->first + s, level};
            s += 1u << level;
        }
    }
    return n;
}
