/* plan_part_test.c: one duck's part of a plan, as a plan of its own and as the shape of its core. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "host/flock/plan.h"

enum { DUCKS = 3 };

static struct plan plan_of(enum fp9_format format)
{
    const struct model_config c = {.hidden_size = 64,
                                   .layers = 3,
                                   .first_dense_layers = 1,
                                   .dense_width = 120,
                                   .experts = 4,
                                   .shared_experts = 1,
                                   .expert_width = 40};
    const struct plan_duck d = {.weight = 1, .memory_bytes = UINT64_MAX}, ducks[DUCKS] = {d, d, d};
    struct plan p;
    assert_int_equal(plan_make(&p, &c, format, 0, ducks, DUCKS, NULL), 0);
    return p;
}

/* Who holds something in one format returns to it in that format, and whole. */
static void a_part_is_a_plan_of_one_duck(void **state)
{
    (void)state;
    for (int format = 0; format < FP9_FORMATS; format++) {
        struct plan p = plan_of((enum fp9_format)format), part;
        uint32_t runs = 0;
        for (uint32_t d = 0; d < DUCKS; d++) {
            assert_int_equal(plan_part(&part, &p, d, NULL), 0);
            assert_int_equal(part.format, format);
            assert_int_equal(part.hidden, p.hidden);
            assert_int_equal(part.banks, p.banks);
            assert_int_equal(part.ducks, 1);
            assert_memory_equal(part.bank, p.bank, p.banks * sizeof *p.bank);
            for (uint32_t i = 0, k = 0; i < p.runs; i++) {
                if (p.run[i].duck != d) continue;
                assert_true(k < part.runs);
                assert_int_equal(part.run[k].duck, 0);
                assert_int_equal(part.run[k].bank, p.run[i].bank);
                assert_int_equal(part.run[k].first, p.run[i].first);
                assert_int_equal(part.run[k++].count, p.run[i].count);
            }
            runs += part.runs;
            plan_free(&part);
        }
        assert_int_equal(runs, p.runs);
        plan_free(&p);
    }
}

/* Of the whole plan and of the part alone: the same duck, with the same name for its weights. */
static void a_shape_is_the_same_of_the_whole_and_of_the_part(void **state)
{
    (void)state;
    for (int format = 0; format < FP9_FORMATS; format++) {
        struct plan p = plan_of((enum fp9_format)format), part;
        struct duck_run *run = calloc(2 * p.runs, sizeof *run);
        assert_non_null(run);
        for (uint32_t d = 0; d < DUCKS; d++) {
            assert_int_equal(plan_part(&part, &p, d, NULL), 0);
            struct duck_shape a = plan_shape(&p, d, run), b = plan_shape(&part, 0, run + p.runs);
            assert_int_equal(a.format, format);
            assert_int_equal(b.format, format);
            assert_int_equal(a.runs, part.runs);
            assert_int_equal(b.runs, part.runs);
            assert_memory_equal(a.run, b.run, a.runs * sizeof *a.run);
            assert_true(duck_core_bytes(&a) == duck_core_bytes(&b) && duck_core_bytes(&a) > 0);
            plan_free(&part);
        }
        free(run);
        plan_free(&p);
    }
}

static void a_copy_outlives_what_it_was_made_of(void **state)
{
    (void)state;
    struct plan p = plan_of(FP9_E4M3), copy;
    uint32_t runs = p.runs;
    assert_int_equal(plan_copy(&copy, &p, NULL), 0);
    plan_free(&p);
    assert_int_equal(copy.format, FP9_E4M3);
    assert_int_equal(copy.runs, runs);
    assert_int_equal(copy.bank[copy.banks - 1].routed, 4);
    plan_free(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_is_a_plan_of_one_duck),
        cmocka_unit_test(a_shape_is_the_same_of_the_whole_and_of_the_part),
        cmocka_unit_test(a_copy_outlives_what_it_was_made_of),
    };
    return cmocka_run_group_tests_name("plan part", tests, NULL, NULL);
}
