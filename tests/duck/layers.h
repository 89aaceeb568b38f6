/* layers.h: a small model of random weights for tests of a duck: tensors, the plan's units cut from them, and
 * what a duck core loaded without a network computes. */
#ifndef TESTS_DUCK_LAYERS_H
#define TESTS_DUCK_LAYERS_H

#include "duck/duck_core.h"
#include "duck/wire.h"
#include "duck/wire_unit.h"

struct layers {
    struct duck_shape shape;
    struct duck_tensor *tensor; // [bank][expert or the wide one][matrix], see layers_tensor()
    uint32_t tensors;
    int borrowed; // the tensors' data belongs to somebody else
    uint64_t units;
    uint8_t **unit; // bytes as they travel
    size_t *unit_bytes;
    uint8_t *plan;
    size_t plan_bytes;
    struct duck_core *core; // loaded from the whole tensors
    void *core_memory;
};

/* element_bytes: 1 e4m3, 2 bf16, 4 fp32. The shape is copied by reference: it must outlive the layers. */
struct layers *layers_make(const struct duck_shape *shape, uint32_t element_bytes, uint64_t seed);
/* The same from given tensors (an array of 3 per expert and wide one, bank after bank), which outlive it. */
struct layers *layers_from(const struct duck_shape *shape, const struct duck_tensor *tensor,
                           uint32_t tensors);
uint32_t layers_tensors(const struct duck_shape *shape);
void layers_free(struct layers *l);

/* A random step of a bank, as it travels; free(). */
uint8_t *layers_step(const struct layers *l, uint32_t bank, uint32_t tokens, uint32_t top_k,
                     enum wire_dtype activation, enum wire_dtype result, uint32_t payload, uint64_t seed,
                     size_t *bytes);
/* Partial sums (subtrees, tokens, hidden) that belong to it, rounded to the step's result dtype; free(). */
float *layers_expect(const struct layers *l, const uint8_t *step, uint32_t payload, size_t *values);

#endif
