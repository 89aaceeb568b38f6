/* See duck_common.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/duck/duck_common.h"

const struct siphash_key test_duck_key = {1, 2};
static const struct duck_bank_shape banks[] = {{0, 1, 64}, {6, 1, 176}, {4, 2, 24}};
static const struct duck_run runs[] = {{0, 2, 4}, {1, 0, 5}, {1, 9, 11}}; // nothing of bank 2
const struct duck_shape test_duck_shape = {.hidden = 392, .banks = 3, .bank = banks, .runs = 3, .run = runs};

struct mini_host test_duck_host(struct sim *s, uint32_t session, const struct layers *l)
{
    struct mini_host h = mini_host_make(sim_wire(s), test_duck_key, session);
    if (l) {
        h.terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
        h.hidden = l->shape.hidden;
    }
    return h;
}

void test_duck_open_and_load(struct mini_host *h, const struct layers *l)
{
    assert_true(mini_discover(h));
    assert_int_equal(mini_open(h), 1);
    assert_true(mini_load(h, l));
}

struct test_duck test_duck_make(uint64_t seed)
{
    struct test_duck t = {.l = layers_make(&test_duck_shape, 1, 5), .s = sim_make(TEST_DUCK_MEMORY, seed)};
    t.h = test_duck_host(t.s, 9, t.l);
    return t;
}

struct test_duck test_duck_loaded(uint64_t seed)
{
    struct test_duck t = test_duck_make(seed);
    test_duck_open_and_load(&t.h, t.l);
    return t;
}

void test_duck_free(struct test_duck *t)
{
    sim_free(t->s);
    layers_free(t->l);
}

void test_duck_check_step(struct mini_host *h, const struct layers *l, uint32_t number, uint32_t bank,
                          uint32_t tokens, uint32_t top_k, enum wire_dtype activation, enum wire_dtype result)
{
    size_t bytes, values;
    uint8_t *step = layers_step(l, bank, tokens, top_k, activation, result, h->terms.payload, number, &bytes);
    float *expected = layers_expect(l, step, h->terms.payload, &values);
    float *out = calloc(values + 1, sizeof *out);
    struct wire_done done = {0};
    mini_send_step(h, number, step, bytes);
    assert_true(mini_collect(h, number, step, bytes, duck_core_subtrees(l->core, bank, NULL, 0), out, &done));
    assert_memory_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
}
