/* layers.c: random tensors, units and expected results. */
#include "tests/duck/layers.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fp9/fp9_random.h"

static void *must(void *p)
{
    if (!p) abort();
    return p;
}

/* Tensors of a bank: its routed experts, then the wide one of the always-on experts. */
static uint32_t bank_tensors(const struct duck_bank_shape *b)
{
    return b->routed + (b->always ? 1 : 0);
}

static const struct duck_tensor *tensor_of(const struct layers *l, uint32_t bank, uint32_t expert, int which,
                                           uint32_t *column)
{
    uint32_t t = 0;
    for (uint32_t b = 0; b < bank; b++) t += bank_tensors(&l->shape.bank[b]);
    const struct duck_bank_shape *s = &l->shape.bank[bank];
    *column = expert < s->routed ? 0 : (expert - s->routed) * s->width;
    t += expert < s->routed ? expert : s->routed;
    return &l->tensor[3 * t + (uint32_t)which];
}

static void fill_tensor(struct duck_tensor *t, uint64_t *seed)
{
    size_t n = (size_t)t->hidden * t->width, rows = t->which == DUCK_DOWN ? t->hidden : t->width;
    size_t cols = n / rows, blocks = (rows + 127) / 128 * ((cols + 127) / 128);
    uint8_t *data = must(malloc(n * t->element_bytes));
    t->data = data;
    for (size_t i = 0; i < n; i++) {
        float x = random_unit(seed) * 0.1f;
        if (t->element_bytes == 1) data[i] = random_e4m3(seed);
        if (t->element_bytes == 2) memcpy(data + 2 * i, (uint8_t *)&x + 2, 2);
        if (t->element_bytes == 4) memcpy(data + 4 * i, &x, 4);
    }
    if (t->element_bytes != 1) return;
    uint8_t *scales = must(malloc(4 * blocks));
    t->scales = scales;
    for (size_t i = 0; i < blocks; i++) {
        float s = (1.5f + 0.5f * random_unit(seed)) * 0x1p-10f;
        memcpy(scales + 4 * i, &s, 4);
    }
}

uint32_t layers_tensors(const struct duck_shape *shape)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < shape->banks; b++) n += 3 * bank_tensors(&shape->bank[b]);
    return n;
}

static void make_tensors(struct layers *l, uint32_t element_bytes, uint64_t *seed)
{
    l->tensors = layers_tensors(&l->shape);
    l->tensor = must(calloc(l->tensors, sizeof *l->tensor));
    struct duck_tensor *t = l->tensor;
    for (uint32_t b = 0; b < l->shape.banks; b++) {
        const struct duck_bank_shape *s = &l->shape.bank[b];
        for (uint32_t i = 0; i < bank_tensors(s); i++)
            for (int which = DUCK_GATE; which <= DUCK_DOWN; which++, t++) {
                *t = (struct duck_tensor){.element_bytes = element_bytes,
                                          .hidden = l->shape.hidden,
                                          .width = i < s->routed ? s->width : s->always * s->width,
                                          .which = (enum duck_matrix)which};
                fill_tensor(t, seed);
            }
    }
}

static void cut_units(struct layers *l)
{
    l->units = wire_units(&l->shape);
    l->unit = must(calloc(l->units + 1, sizeof *l->unit));
    l->unit_bytes = must(calloc(l->units + 1, sizeof *l->unit_bytes));
    for (uint64_t u = 0; u < l->units; u++) {
        struct wire_unit_id id = wire_unit_find(&l->shape, u);
        const struct duck_run *r = &l->shape.run[id.run];
        uint32_t column;
        uint64_t where;
        const struct duck_tensor *t = tensor_of(l, r->bank, id.expert, id.which, &column);
        l->unit_bytes[u] =
            wire_unit_layout(l->shape.hidden, id.which, r->count, column + 8 * r->first, t->element_bytes)
                .bytes;
        l->unit[u] = must(malloc(l->unit_bytes[u]));
        if (wire_unit_cut(t, column, r->first, r->count, l->unit[u], &where)) abort();
    }
}

static void load_core(struct layers *l)
{
    size_t bytes = (duck_core_bytes(&l->shape) + 63) / 64 * 64;
    l->core_memory = must(aligned_alloc(64, bytes));
    l->core = must(duck_core_init(l->core_memory, bytes, &l->shape, fp9_select(NULL)));
    for (uint32_t b = 0; b < l->shape.banks; b++) {
        const struct duck_bank_shape *s = &l->shape.bank[b];
        for (uint32_t e = 0; e < s->routed + s->always; e++)
            for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
                uint32_t column;
                uint64_t where;
                const struct duck_tensor *t = tensor_of(l, b, e, which, &column);
                if (duck_core_load(l->core, b, e, column, t, &where)) abort();
            }
    }
}

static struct layers *finish(struct layers *l)
{
    cut_units(l);
    load_core(l);
    l->plan_bytes = wire_plan_bytes(&l->shape);
    l->plan = must(malloc(l->plan_bytes));
    wire_plan_write(&l->shape, l->plan);
    return l;
}

struct layers *layers_make(const struct duck_shape *shape, uint32_t element_bytes, uint64_t seed)
{
    struct layers *l = must(calloc(1, sizeof *l));
    l->shape = *shape;
    make_tensors(l, element_bytes, &seed);
    return finish(l);
}

struct layers *layers_from(const struct duck_shape *shape, const struct duck_tensor *tensor, uint32_t tensors)
{
    struct layers *l = must(calloc(1, sizeof *l));
    l->shape = *shape;
    l->borrowed = 1;
    l->tensors = tensors;
    l->tensor = must(calloc(tensors, sizeof *tensor));
    memcpy(l->tensor, tensor, tensors * sizeof *tensor);
    return finish(l);
}

void layers_free(struct layers *l)
{
    for (uint32_t i = 0; !l->borrowed && i < l->tensors; i++) {
        free((void *)(uintptr_t)l->tensor[i].data);
        free((void *)(uintptr_t)l->tensor[i].scales);
    }
    for (uint64_t u = 0; u < l->units; u++) free(l->unit[u]);
    free(l->tensor);
    free(l->unit);
    free(l->unit_bytes);
    free(l->plan);
    free(l->core_memory);
    free(l);
}

uint8_t *layers_step(const struct layers *l, uint32_t bank, uint32_t tokens, uint32_t top_k,
                     enum wire_dtype activation, enum wire_dtype result, uint32_t payload, uint64_t seed,
                     size_t *bytes)
{
    struct wire_step_layout lay = wire_step_layout(l->shape.hidden, tokens, top_k, activation, payload);
    uint8_t *step = must(calloc(1, lay.bytes));
    struct wire_step w = {.bank = bank,
                          .tokens = tokens,
                          .top_k = top_k,
                          .activation = (uint8_t)activation,
                          .result = (uint8_t)result,
                          .bytes = (uint32_t)lay.bytes};
    memcpy(step, &w, sizeof w);
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t routed = l->shape.bank[bank].routed, taken = 0;
        for (uint32_t e = 0; e < routed && taken < top_k; e++) { // ascending, each subset possible
            if (random_below(&seed, routed - e) >= top_k - taken) continue;
            int32_t id = (int32_t)e;
            float weight = 0.5f + 0.5f * random_unit(&seed);
            memcpy(step + lay.ids + 4 * (t * top_k + taken), &id, 4);
            memcpy(step + lay.weights + 4 * (t * top_k + taken), &weight, 4);
            taken++;
        }
    }
    size_t n = (size_t)tokens * l->shape.hidden;
    float *x = must(malloc(n * sizeof *x));
    for (size_t i = 0; i < n; i++) x[i] = random_unit(&seed);
    wire_pack(activation, x, tokens, l->shape.hidden, step + lay.scales);
    free(x);
    *bytes = lay.bytes;
    return step;
}

float *layers_expect(const struct layers *l, const uint8_t *step, uint32_t payload, size_t *values)
{
    struct wire_step w;
    memcpy(&w, step, sizeof w);
    uint32_t hidden = l->shape.hidden;
    struct wire_step_layout lay =
        wire_step_layout(hidden, w.tokens, w.top_k, (enum wire_dtype)w.activation, payload);
    float *x = must(malloc((size_t)w.tokens * hidden * sizeof *x));
    wire_unpack((enum wire_dtype)w.activation, step + lay.scales, w.tokens, hidden, x);
    struct duck_step s = {.bank = w.bank,
                          .tokens = w.tokens,
                          .top_k = w.top_k,
                          .x = x,
                          .ids = (const int32_t *)(const void *)(step + lay.ids),
                          .weights = (const float *)(const void *)(step + lay.weights)};
    size_t scratch_bytes = duck_step_scratch_bytes(l->core, w.tokens, w.top_k);
    void *scratch = must(aligned_alloc(64, (scratch_bytes + 63) / 64 * 64));
    struct duck_work *work = must(duck_work_begin(l->core, scratch, scratch_bytes, &s));
    for (int phase = DUCK_PREPARE; phase < DUCK_PHASES; phase++)
        for (uint32_t t = 0; t < duck_work_tasks(work, (enum duck_phase)phase); t++)
            duck_work_run(work, (enum duck_phase)phase, t);
    uint32_t subtrees = duck_core_subtrees(l->core, w.bank, NULL, 0);
    *values = (size_t)subtrees * w.tokens * hidden;
    float *out = must(malloc((*values + 1) * sizeof *out));
    for (uint32_t i = 0; i < subtrees; i++)
        wire_round((enum wire_dtype)w.result, duck_work_partial(work, i), (size_t)w.tokens * hidden,
                   out + (size_t)i * w.tokens * hidden);
    free(scratch);
    free(x);
    return out;
}
