/* duck_weights_test.c: a whole duck on a simulated machine: weights that come, stay, change and are refused.
 * Results are compared bit for bit with a duck core that saw no network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/duck/duck_common.h"

static void weights_survive_a_bad_wire(void **state)
{
    (void)state;
    static const uint32_t element_bytes[] = {1, 2, 4, 1};
    for (int i = 0; i < 4; i++) {
        struct duck_shape shape = test_duck_shape;
        shape.format = i == 3 ? FP9_E4M3 : FP9_FP9;
        struct layers *l = layers_make(&shape, element_bytes[i], 5);
        struct sim *s = sim_make(TEST_DUCK_MEMORY, 11);
        struct mini_host h = test_duck_host(s, 9, l);
        s->lose = 0.05;
        s->twice = 0.05;
        s->reorder = 0.1;
        test_duck_open_and_load(&h, l);
        assert_true(h.put_resends > 0);
        assert_int_equal(mini_open(&h), 1); // repeated: the state now
        uint64_t *hashes = calloc(l->units, sizeof *hashes);
        for (uint64_t u = 0; u < l->units; u++) hashes[u] = wire_object_hash(l->unit[u], l->unit_bytes[u]);
        assert_int_equal(h.opened.units_held, l->units);
        assert_int_equal(h.opened.root_hash, wire_root_hash(hashes, l->units));
        test_duck_check_step(&h, l, 1, 1, 3, 4, WIRE_F32, WIRE_F32);
        free(hashes);
        sim_free(s);
        layers_free(l);
    }
}

static void weights_stay_for_the_next_session(void **state)
{
    (void)state;
    struct layers *l = layers_make(&test_duck_shape, 1, 5);
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host a = test_duck_host(s, 9, l), b = test_duck_host(s, 10, l);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    test_duck_open_and_load(&a, l);
    assert_true(mini_ask(&a, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    b.terms.max_tokens = 20;
    b.terms.step_slots = 8;
    assert_true(mini_discover(&b));
    assert_int_equal(b.hello.plan_hash, b.terms.plan_hash);
    assert_int_equal(mini_open(&b), 1);
    assert_int_equal(b.opened.plan_held, 1);
    assert_int_equal(b.opened.units_held, l->units);
    test_duck_check_step(&b, l, 1, 1, 20, 6, WIRE_F32, WIRE_F32);
    sim_free(s);
    layers_free(l);
}

/* Hashes of all units as UNITS tells them. */
static void held_hashes_are_told(void **state)
{
    (void)state;
    struct test_duck t = test_duck_make(1);
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    assert_true(mini_discover(&t.h));
    assert_int_equal(mini_open(&t.h), 1);
    assert_int_equal(mini_put(&t.h, WIRE_PLAN, 0, t.l->plan, t.l->plan_bytes, NULL), WIRE_PUT_HELD);
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, 2, t.l->unit[2], t.l->unit_bytes[2], NULL), WIRE_PUT_HELD);
    struct wire_units ask = {1, 1000};
    struct wire_unit_hashes u;
    assert_true(mini_ask(&t.h, WIRE_UNITS, &ask, sizeof ask, WIRE_UNIT_HASHES, WIRE_UNIT_HASHES, answer));
    memcpy(&u, answer, sizeof u);
    assert_int_equal(u.units, t.l->units);
    assert_int_equal(u.units_held, 1);
    assert_int_equal(u.count, t.l->units - 1);
    assert_int_equal(u.root_hash, 0);
    for (uint32_t i = 0; i < u.count; i++) {
        uint64_t hash;
        memcpy(&hash, answer + sizeof u + 8 * i, sizeof hash);
        assert_int_equal(hash, i == 1 ? wire_object_hash(t.l->unit[2], t.l->unit_bytes[2]) : 0);
    }
    test_duck_free(&t);
}

static void a_new_version_of_a_unit_replaces_the_old(void **state)
{
    (void)state;
    struct layers *l = layers_make(&test_duck_shape, 1, 5), *m = layers_make(&test_duck_shape, 1, 6);
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host h = test_duck_host(s, 9, l);
    test_duck_open_and_load(&h, l);
    test_duck_check_step(&h, l, 1, 1, 2, 3, WIRE_F32, WIRE_F32);
    assert_true(mini_load(&h, m));
    test_duck_check_step(&h, m, 2, 1, 2, 3, WIRE_F32, WIRE_F32);
    sim_free(s);
    layers_free(l);
    layers_free(m);
}

static void one_flipped_weight_changes_the_result(void **state)
{
    (void)state;
    struct test_duck t = test_duck_loaded(1);
    struct wire_unit_id id = {1, 2, DUCK_DOWN};
    uint64_t u = wire_unit_number(&test_duck_shape, id);
    t.l->unit[u][t.l->unit_bytes[u] - 1] ^= 0x80; // a sign
    if ((t.l->unit[u][t.l->unit_bytes[u] - 1] & 0x7f) == 0) t.l->unit[u][t.l->unit_bytes[u] - 1] |= 0x30;
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, (uint32_t)u, t.l->unit[u], t.l->unit_bytes[u], NULL),
                     WIRE_PUT_HELD);
    size_t bytes, values;
    uint8_t *step = layers_step(t.l, 1, 1, 6, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    float *expected = layers_expect(t.l, step, WIRE_PAYLOAD, &values), *out = calloc(values, sizeof *out);
    mini_send_step(&t.h, 1, step, bytes);
    assert_true(mini_collect(&t.h, 1, step, bytes, duck_core_subtrees(t.l->core, 1, NULL, 0), out, NULL));
    assert_memory_not_equal(out, expected, values * sizeof *out);
    free(step);
    free(expected);
    free(out);
    test_duck_free(&t);
}

static void bad_objects_are_refused(void **state)
{
    (void)state;
    struct test_duck t = test_duck_make(1);
    struct wire_put_ack ack;
    assert_true(mini_discover(&t.h));
    assert_int_equal(mini_open(&t.h), 1);
    // a unit before the plan, a plan that OPEN did not announce
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, 0, t.l->unit[0], t.l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_OBJECT);
    assert_int_equal(mini_put(&t.h, WIRE_PLAN, 0, t.l->unit[0], 100, &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_HASH);
    assert_int_equal(mini_put(&t.h, WIRE_PLAN, 0, t.l->plan, t.l->plan_bytes, &ack), WIRE_PUT_HELD);
    // a unit that does not exist, the bytes of another, a NaN, a bad scale
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, (uint32_t)t.l->units, t.l->unit[0], t.l->unit_bytes[0], &ack),
                     WIRE_PUT_REFUSED);
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, 2, t.l->unit[0], t.l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_OBJECT);
    t.l->unit[0][t.l->unit_bytes[0] - 5] = 0x7f;
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, 0, t.l->unit[0], t.l->unit_bytes[0], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_WEIGHT);
    assert_int_equal(ack.value, (uint64_t)8 * test_duck_shape.run[0].count * test_duck_shape.hidden - 5);
    memset(t.l->unit[1] + sizeof(struct wire_unit) + 4, 0, 4);
    assert_int_equal(mini_put(&t.h, WIRE_UNIT, 1, t.l->unit[1], t.l->unit_bytes[1], &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_SCALE);
    assert_int_equal(ack.value, 1);
    test_duck_free(&t);
}

/* A duck that keeps e4m3 takes nothing else. */
static void floats_for_e4m3_are_refused(void **state)
{
    (void)state;
    struct duck_shape shape = test_duck_shape;
    shape.format = FP9_E4M3;
    struct layers *l = layers_make(&shape, 1, 5), *floats = layers_make(&test_duck_shape, 2, 5);
    struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
    struct mini_host h = test_duck_host(s, 9, l);
    struct wire_put_ack ack;
    h.terms.element_bytes = 2;
    assert_true(mini_discover(&h));
    assert_true(h.hello.features & WIRE_E4M3);
    assert_int_equal(mini_open(&h), 1);
    assert_int_equal(mini_put(&h, WIRE_PLAN, 0, l->plan, l->plan_bytes, &ack), WIRE_PUT_HELD);
    assert_int_equal(mini_put(&h, WIRE_UNIT, 0, floats->unit[0], floats->unit_bytes[0], &ack),
                     WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_BAD_OBJECT);
    assert_int_equal(mini_put(&h, WIRE_UNIT, 0, l->unit[0], l->unit_bytes[0], &ack), WIRE_PUT_HELD);
    sim_free(s);
    layers_free(l);
    layers_free(floats);
}

static void impossible_plans_are_refused(void **state)
{
    (void)state;
    static const struct duck_bank_shape wide[] = {{200, 1, 2048}};
    static const struct duck_run overlap[] = {{0, 0, 5}, {0, 4, 5}}, all[] = {{0, 0, 256}};
    const struct duck_shape too_large = {.hidden = 7168, .banks = 1, .bank = wide, .runs = 1, .run = all};
    const struct duck_shape overlapping = {.hidden = 64, .banks = 1, .bank = wide, .runs = 2, .run = overlap};
    const struct duck_shape unknown = {
        .hidden = 64, .banks = 1, .bank = wide, .runs = 1, .run = overlap, .format = FP9_FORMATS};
    const struct duck_shape *bad[] = {&too_large, &overlapping, &unknown};
    static const uint32_t reason[] = {WIRE_PUT_NO_MEMORY, WIRE_PUT_BAD_PLAN, WIRE_PUT_BAD_PLAN};
    for (int i = 0; i < 3; i++) {
        struct sim *s = sim_make(TEST_DUCK_MEMORY, 1);
        struct mini_host h = test_duck_host(s, 9, NULL);
        struct wire_put_ack ack;
        uint8_t plan[256];
        size_t bytes = wire_plan_bytes(bad[i]);
        wire_plan_write(bad[i], plan);
        h.terms.plan_hash = wire_object_hash(plan, bytes);
        assert_true(mini_discover(&h));
        assert_int_equal(mini_open(&h), 1);
        assert_int_equal(mini_put(&h, WIRE_PLAN, 0, plan, bytes, &ack), WIRE_PUT_REFUSED);
        assert_int_equal(ack.reason, reason[i]);
        if (i == 0) assert_true(ack.value > (uint64_t)3 << 30 && ack.available < TEST_DUCK_MEMORY);
        sim_free(s);
    }
}

static void steps_too_large_for_the_memory_are_refused(void **state)
{
    (void)state;
    struct test_duck t = test_duck_make(1);
    struct wire_put_ack ack;
    uint8_t answer[WIRE_PAYLOAD_JUMBO];
    t.h.terms.max_tokens = 8000;
    assert_true(mini_discover(&t.h));
    assert_int_equal(mini_open(&t.h), 1);
    assert_int_equal(mini_put(&t.h, WIRE_PLAN, 0, t.l->plan, t.l->plan_bytes, &ack), WIRE_PUT_REFUSED);
    assert_int_equal(ack.reason, WIRE_PUT_NO_MEMORY);
    assert_true(ack.value > ack.available);
    assert_true(mini_ask(&t.h, WIRE_CLOSE, NULL, 0, WIRE_CLOSED, WIRE_CLOSED, answer));
    t.h.terms.max_tokens = 8;
    assert_true(mini_discover(&t.h));
    assert_int_equal(mini_open(&t.h), 1);
    assert_true(mini_load(&t.h, t.l));
    test_duck_check_step(&t.h, t.l, 1, 0, 8, 0, WIRE_F32, WIRE_F32);
    test_duck_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_survive_a_bad_wire),
        cmocka_unit_test(weights_stay_for_the_next_session),
        cmocka_unit_test(held_hashes_are_told),
        cmocka_unit_test(a_new_version_of_a_unit_replaces_the_old),
        cmocka_unit_test(one_flipped_weight_changes_the_result),
        cmocka_unit_test(bad_objects_are_refused),
        cmocka_unit_test(floats_for_e4m3_are_refused),
        cmocka_unit_test(impossible_plans_are_refused),
        cmocka_unit_test(steps_too_large_for_the_memory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
