// layer_full_test.c: one MoE layer at full size (hidden 7168, experts of width 2048) against its golden.
//
// Weights come from the generator that tests/goldens/v32-layer-full/README.md describes; only the experts
// that the golden's tokens chose are made, one matrix at a time, and numbered without gaps.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/transport.h"
#include "tests/golden/goldens.h"

#define HIDDEN 7168u
#define WIDTH 2048u
#define MAX_EXPERTS 64u
#define DUCKS 3u

static uint64_t seed_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h;
}

static uint64_t word(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An fp8 matrix and its scales; the buffers belong to one worker. */
static void make_matrix(struct weight *w, const char *name, uint64_t rows, uint64_t cols, uint8_t *data,
                        float *scales)
{
    uint64_t seed = seed_of(name);
    for (uint64_t i = 0; i < rows * cols / 8; i++) {
        uint64_t bytes = word(seed, i);
        for (int k = 0; k < 8; k++) {
            uint8_t code = (uint8_t)(bytes >> (8 * k));
            data[8 * i + (unsigned)k] = (code & 0x7f) == 0x7f ? code ^ 1 : code;
        }
    }
    char scale_name[160];
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    seed = seed_of(scale_name);
    for (uint64_t j = 0; j < (rows / 128) * (cols / 128); j++) {
        float m = 0.5f + (float)(word(seed, j) >> 41) * 0x1p-23f;
        scales[j] = ldexpf(m, cols == HIDDEN ? -13 : -12);
    }
    *w = (struct weight){.dtype = DTYPE_F8_E4M3,
                         .rows = rows,
                         .cols = cols,
                         .data = data,
                         .scales = (const uint8_t *)scales,
                         .name = "generated"};
}

struct layer {
    struct transport *transport;
    int32_t id[MAX_EXPERTS]; // the golden's number of our expert e
    uint32_t experts;
    uint8_t *data[2];
    float *scales[2];
    _Atomic unsigned refused;
};

static void load_expert(void *arg, size_t e, unsigned worker)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    struct layer *l = arg;
    for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
        char name[128];
        if (e < l->experts) {
            snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.%s.weight", l->id[e], names[which]);
        } else {
            snprintf(name, sizeof name, "model.layers.3.mlp.shared_experts.%s.weight", names[which]);
        }
        struct weight w;
        bool down = which == DUCK_DOWN;
        make_matrix(&w, name, down ? HIDDEN : WIDTH, down ? WIDTH : HIDDEN, l->data[worker],
                    l->scales[worker]);
        struct transport_matrix m = {.bank = 0,
                                     .expert = (uint32_t)e,
                                     .which = (enum duck_matrix)which,
                                     .tensor_width = WIDTH,
                                     .weight = &w};
        // cmocka's asserts belong to the main thread
        if (l->transport->ops->load(l->transport, &m, NULL) != 0) atomic_fetch_add(&l->refused, 1);
    }
}

/* Numbers the experts that occur in ids without gaps, in ascending order, in place. */
static void renumber(struct layer *l, int32_t *ids, uint64_t count)
{
    for (int32_t id = 0; id < 256; id++) {
        bool used = false;
        for (uint64_t i = 0; i < count; i++) used = used || ids[i] == id;
        if (!used) continue;
        assert_true(l->experts < MAX_EXPERTS);
        l->id[l->experts] = id;
        // ours are never larger than the golden's, and those below are renumbered already
        for (uint64_t i = 0; i < count; i++) {
            if (ids[i] == id) ids[i] = (int32_t)l->experts;
        }
        l->experts++;
    }
}

static const struct golden *golden(const struct goldens *g, const char *name)
{
    const struct golden *v = goldens_find(g, "%s", name);
    if (!v) fail_msg("the golden has no %s", name);
    return v;
}

static void full_size_layer(void **state)
{
    (void)state;
    struct goldens *g;
    struct error err;
    if (goldens_open(&g, "tests/goldens/v32-layer-full", &err) != 0) fail_msg("%s", err.text);
    const struct golden *x = golden(g, "moe.input"), *ids = golden(g, "moe.router_ids");
    const struct golden *weights = golden(g, "moe.router_weights"), *want = golden(g, "moe.output");
    uint32_t tokens = (uint32_t)x->shape[0], top_k = (uint32_t)ids->shape[1];
    assert_int_equal(x->shape[1], HIDDEN);

    struct layer l = {0};
    int32_t *ours = calloc(ids->count, sizeof *ours);
    memcpy(ours, ids->i, ids->count * sizeof *ours);
    renumber(&l, ours, ids->count);
    struct model_config c = {
        .hidden_size = HIDDEN, .layers = 1, .experts = l.experts, .shared_experts = 1, .expert_width = WIDTH};
    struct plan_duck duck[DUCKS];
    struct spec_duck spec[DUCKS] = {0};
    for (uint32_t i = 0; i < DUCKS; i++) {
        duck[i] = spec[i].plan = (struct plan_duck){.weight = 1, .memory_bytes = UINT64_MAX};
    }
    struct plan plan;
    struct pool *pool;
    assert_int_equal(plan_make(&plan, &c, FP9_FP9, 0, duck, DUCKS, &err), 0);
    assert_int_equal(pool_open(&pool, 2, &err), 0);
    struct transport_options o = {.plan = &plan,
                                  .duck = spec,
                                  .pool = pool,
                                  .lanes = 1,
                                  .max_tokens = tokens,
                                  .max_top_k = top_k,
                                  .activation = WIRE_F32,
                                  .result = WIRE_F32};
    if (transport_local.open(&l.transport, &o, &err) != 0) fail_msg("%s", err.text);
    for (int i = 0; i < 2; i++) {
        l.data[i] = malloc((size_t)HIDDEN * WIDTH);
        l.scales[i] = calloc(HIDDEN / 128 * (WIDTH / 128), sizeof(float));
    }
    pool_run(pool, load_expert, &l, l.experts + 1);
    assert_int_equal(atomic_load(&l.refused), 0);

    float *y = calloc(x->count, sizeof *y);
    struct mlp_step step = {
        .tokens = tokens, .top_k = top_k, .x = x->f, .ids = ours, .weights = weights->f, .y = y};
    assert_int_equal(transport_local.submit(l.transport, 0, &step, &err), 0);
    assert_int_equal(transport_local.poll(l.transport, 0, true, &err), 1);
    double off = 0, norm = 0;
    for (uint64_t i = 0; i < x->count; i++) {
        off += ((double)y[i] - (double)want->f[i]) * ((double)y[i] - (double)want->f[i]);
        norm += (double)want->f[i] * (double)want->f[i];
    }
    print_message("%u experts of full size, %u tokens: relative L2 %.2g\n", l.experts + 1, tokens,
                  sqrt(off / norm));
    assert_true(sqrt(off / norm) <= 1e-5);

    for (int i = 0; i < 2; i++) {
        free(l.data[i]);
        free(l.scales[i]);
    }
    transport_local.close(l.transport);
    pool_close(pool);
    plan_free(&plan);
    goldens_close(g);
    free(ours);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_size_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
