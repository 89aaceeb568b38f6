/* kat.c: the known-answer test. */
#include "duck/kat.h"

#include <string.h>

#include "duck/duck_core.h"
#include "duck/wire.h"

enum { HIDDEN = 256, WIDTH = 128, ROUTED = 3, ALWAYS = 1, TOKENS = 3, TOP_K = 2 };

static uint64_t next(uint64_t *state) // splitmix64
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void fill_matrix(struct duck_core *core, uint8_t *data, uint32_t expert, enum duck_matrix which,
                        uint64_t *seed)
{
    float scales[HIDDEN / 128 * (WIDTH / 128)];
    uint64_t where;
    for (size_t i = 0; i < HIDDEN * WIDTH; i++) {
        uint8_t e4m3 = (uint8_t)(next(seed) >> 56);
        data[i] = (e4m3 & 0x7f) == 0x7f ? 0x30 : e4m3; // no NaN
    }
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        scales[i] = 0x1p-9f + (float)(next(seed) >> 56) * 0x1p-18f;
    const struct duck_tensor t = {data, (const uint8_t *)scales, 1, HIDDEN, WIDTH, which};
    duck_core_load(core, 0, expert, 0, &t, &where);
}

struct duck_work *kat_begin(const struct fp9_kernels *k, enum fp9_format format, void *core_memory,
                            void *scratch, uint64_t seed)
{
    const struct duck_bank_shape bank = {ROUTED, ALWAYS, WIDTH};
    const struct duck_run run = {0, 0, WIDTH / 8};
    const struct duck_shape shape = {HIDDEN, 1, &bank, 1, &run, format};
    static const int32_t ids[TOKENS * TOP_K] = {0, 1, 1, 2, 0, 2};
    static const float weights[TOKENS * TOP_K] = {0.5f, 0.25f, 0.75f, 1.0f, 0.125f, 2.0f};
    struct duck_core *core = duck_core_init(core_memory, KAT_CORE, &shape, k);
    uint8_t *at = scratch, *end = at + KAT_SCRATCH;
    float *x = (float *)(void *)at;
    at += TOKENS * HIDDEN * sizeof *x;
    if (!core || (size_t)(end - at) < HIDDEN * WIDTH) return NULL;
    for (uint32_t e = 0; e < ROUTED + ALWAYS; e++)
        for (int which = DUCK_GATE; which <= DUCK_DOWN; which++)
            fill_matrix(core, at, e, (enum duck_matrix)which, &seed); // the scratch comes later
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)((int32_t)(next(&seed) >> 40) - (1 << 23)) * 0x1p-23f;
    struct duck_step step = {.tokens = TOKENS, .top_k = TOP_K, .x = x, .ids = ids, .weights = weights};
    return duck_work_begin(core, at, (size_t)(end - at), &step);
}

uint64_t kat_end(const struct duck_work *w)
{
    return wire_object_hash((const uint8_t *)duck_work_partial(w, 0), TOKENS * HIDDEN * sizeof(float));
}

uint64_t kat_hash(const struct fp9_kernels *k, enum fp9_format format, void *memory, uint64_t seed)
{
    struct duck_work *w = kat_begin(k, format, memory, (uint8_t *)memory + KAT_CORE, seed);
    if (!w) return 0;
    for (int phase = DUCK_PREPARE; phase < DUCK_PHASES; phase++)
        for (uint32_t t = 0; t < duck_work_tasks(w, (enum duck_phase)phase); t++)
            duck_work_run(w, (enum duck_phase)phase, t);
    return kat_end(w);
}
