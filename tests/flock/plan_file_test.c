// plan_file_test.c: small changes do not move slices, large ones do, and a file that is no plan does no harm.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/flock/plan_file.h"

#define DUCKS 5u

static const struct model_config config = {.hidden_size = 64,
                                           .layers = 9,
                                           .mtp_layers = 1,
                                           .first_dense_layers = 1,
                                           .dense_width = 768,
                                           .experts = 4,
                                           .shared_experts = 1,
                                           .expert_width = 256};
static char path[64];

static void make_ducks(struct spec_duck duck[DUCKS])
{
    for (uint32_t i = 0; i < DUCKS; i++) {
        duck[i] = (struct spec_duck){.plan = {.weight = 10 + i, .memory_bytes = UINT64_MAX}};
        snprintf(duck[i].name, sizeof duck[i].name, "duck %u", i);
    }
}

static void make(struct plan *p, const struct spec_duck *duck, int mtp)
{
    struct plan_duck d[DUCKS];
    struct error err;
    for (uint32_t i = 0; i < DUCKS; i++) d[i] = duck[i].plan;
    if (plan_make(p, &config, FP9_FP9, mtp, d, DUCKS, &err)) fail_msg("%s", err.text);
}

static void write_plan(const struct plan *p, const struct spec_duck *duck)
{
    struct error err;
    if (plan_file_write(p, duck, path, &err)) fail_msg("%s", err.text);
}

/* The first banks of a, all of b. */
static bool begins_with(const struct plan *a, const struct plan *b)
{
    return a->runs >= b->runs && memcmp(a->run, b->run, b->runs * sizeof *b->run) == 0;
}

static void mtp_moves_nothing(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct spec_duck duck[DUCKS];
        struct plan with, without, again;
        make_ducks(duck);
        unlink(path);
        make(&with, duck, 1);
        make(&without, duck, 0);
        assert_false(begins_with(&with, &without)); // left alone they differ
        struct plan *one = first ? &with : &without, *other = first ? &without : &with;
        assert_false(plan_file_stay(one, duck, path));
        write_plan(one, duck);
        assert_true(plan_file_stay(other, duck, path));
        write_plan(other, duck);
        assert_true(begins_with(&with, &without));
        make(&again, duck, 1);
        assert_true(
            plan_file_stay(&again, duck, path)); // the MTP layer's bank has stayed in the file as well
        assert_true(again.runs == with.runs && begins_with(&again, &with));
        plan_free(&with);
        plan_free(&without);
        plan_free(&again);
    }
}

static void a_plan_stays_while_it_is_nearly_as_good(void **state)
{
    (void)state;
    struct spec_duck duck[DUCKS];
    struct plan old, new;
    make_ducks(duck);
    unlink(path);
    make(&old, duck, 1);
    write_plan(&old, duck);
    for (int change = 0; change < 3; change++) {
        make_ducks(duck);
        if (change == 0) duck[1].plan.weight *= 1.05;
        if (change == 1) duck[1].plan.weight *= 2;
        if (change == 2) duck[4].plan.memory_bytes = plan_run_bytes(FP9_FP9, 64, &old.bank[1], 8);
        make(&new, duck, 1);
        assert_false(begins_with(&new, &old));
        assert_int_equal(plan_file_stay(&new, duck, path), change == 0);
        assert_int_equal(begins_with(&new, &old), change == 0);
        plan_free(&new);
    }
    plan_free(&old);
}

static void no_plan_is_no_harm(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "something else\n",
        "duckd plan 1\nhidden 64 banks 10 ducks 4\n",
        "duckd plan 1\nhidden 64 banks 1 ducks 5\nduck duck 0\nduck duck 1\nduck duck 2\nduck duck 3\nduck "
        "duck 5\n",
        "duckd plan 1\nhidden 64 banks 1 ducks 5\nduck duck 0\nduck duck 1\nduck duck 2\nduck duck 3\nduck "
        "duck 4\n"
        "bank 4 1 256\nrun 0 0 31\n",
        "duckd plan 1\nhidden 64 banks 1 ducks 5\nduck duck 0\nduck duck 1\nduck duck 2\nduck duck 3\nduck "
        "duck 4\n"
        "bank 4 1 256\nrun 0 0 31\nrun 5 31 1\n",
        "duckd plan 1\nhidden 64 banks 1 ducks 5\nduck duck 0\nduck duck 1\nduck duck 2\nduck duck 3\nduck "
        "duck 4\n"
        "bank 4 1 256\nrun 0 0 31\nrun 1 30 2\n",
        "duckd plan 1\nhidden 64 banks 1 ducks 5\nduck duck 0\nduck duck 1\nduck duck 2\nduck duck 3\nduck "
        "duck 4\n"
        "bank 4 1 256\nrun 0 0 4294967295\n",
    };
    struct spec_duck duck[DUCKS];
    struct plan p, made;
    make_ducks(duck);
    make(&made, duck, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(bad[i], f);
        fclose(f);
        make(&p, duck, 1);
        assert_false(plan_file_stay(&p, duck, path));
        assert_true(p.runs == made.runs && begins_with(&p, &made));
        write_plan(&p, duck);
        assert_true(plan_file_stay(&p, duck, path));
        plan_free(&p);
    }
    struct error err;
    assert_int_not_equal(plan_file_write(&made, duck, "/nowhere/plan", &err), 0);
    plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mtp_moves_nothing),
        cmocka_unit_test(a_plan_stays_while_it_is_nearly_as_good),
        cmocka_unit_test(no_plan_is_no_harm),
    };
    snprintf(path, sizeof path, "/tmp/plan-file-test-%d", (int)getpid());
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
