// load_bar_test.c: which duck is shown as the slowest while weights go, and what is shown of it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "host/flock/load_bar.h"

enum { MB = 1000000 };
#define SECOND 1000000000ull

static void the_one_that_needs_longest(void **state)
{
    (void)state;
    // Less done, but at ten times the rate: it only waits for the others.
    const struct duck_loading d[] = {
        {.total = 100 * MB, .held = 20 * MB, .under_way = MB, .ns = SECOND / 5},
        {.total = 100 * MB, .held = 50 * MB, .under_way = MB, .ns = 5 * SECOND},
        {.total = 10 * MB, .held = 10 * MB, .ns = 5 * SECOND},
        {.total = 0},
    };
    assert_int_equal(load_bar__slowest(d, 4, -1), 1);
    assert_int_equal(load_bar__slowest(d, 4, 0), 1);
    assert_int_equal(load_bar__slowest(d, 1, -1), 0);
    assert_int_equal(load_bar__slowest(d + 2, 2, -1), -1);
    assert_int_equal(load_bar__slowest(d + 2, 2, 0), -1);
}

static void the_line_does_not_jump(void **state)
{
    (void)state;
    struct duck_loading d[] = {
        {.total = 100 * MB, .held = 50 * MB, .under_way = MB, .ns = 5 * SECOND},
        {.total = 100 * MB, .held = 50 * MB, .under_way = MB, .ns = 5 * SECOND},
    };
    assert_int_equal(load_bar__slowest(d, 2, -1), 0);
    for (int i = 0, shown = 0; i < 100; i++) { // now this one is a little behind, now that one
        d[i % 2].held = 48 * MB;
        d[(i + 1) % 2].held = 52 * MB;
        shown = load_bar__slowest(d, 2, shown);
        assert_int_equal(shown, 0);
    }
    d[0].held = 50 * MB;
    d[1].held = 40 * MB; // 7.5 s against 5
    assert_int_equal(load_bar__slowest(d, 2, 0), 1);
    d[1].held = 100 * MB; // the one shown is done
    assert_int_equal(load_bar__slowest(d, 2, 1), 0);
}

static void one_that_has_got_nothing_yet(void **state)
{
    (void)state;
    struct duck_loading d[] = {
        {.total = 100 * MB, .held = 50 * MB, .under_way = MB, .ns = 5 * SECOND},
        {.total = 100 * MB, .under_way = MB, .ns = SECOND / 100}, // its first part has just been sent
        {.total = 100 * MB},                                      // not its turn
    };
    assert_int_equal(load_bar__slowest(d, 3, -1), 0);
    d[1].ns = SECOND; // a part that is on its way for a second: 100 s at least
    assert_int_equal(load_bar__slowest(d, 3, 0), 1);
}

/* ---- the bar over a transport ---- */

static _Atomic uint64_t held[2];

static void tell(struct transport *t, uint32_t duck, struct duck_loading *out)
{
    (void)t;
    *out = (struct duck_loading){.total = 4 * MB, .held = held[duck], .under_way = 1, .ns = 2 * SECOND};
}

static void wait_until(double done)
{
    struct progress_state s;
    for (int i = 0; i < 6000; i++) {
        progress_look(&s);
        if (s.all.done >= done) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("the bar stands at %g, not %g", s.all.done, done);
}

static void all_ducks_and_the_slowest(void **state)
{
    (void)state;
    const struct transport_ops ops = {.loading = tell};
    struct transport t = {&ops};
    const struct spec_duck duck[2] = {{.name = "quick"}, {.name = "slow"}};
    struct load_bar b;
    struct progress_state s;
    held[0] = 2 * MB;
    held[1] = MB;
    assert_int_equal(load_bar_begin(&b, &t, duck, 2, NULL, 0, NULL), 0);
    wait_until(3 * MB);
    progress_look(&s);
    assert_int_equal(s.all.total, 8 * MB);
    assert_string_equal(s.slowest.name, "slow");
    assert_int_equal(s.slowest.amount.done, MB);
    assert_int_equal(s.slowest.amount.total, 4 * MB);
    assert_int_equal(s.slowest.amount.rate, MB / 2);
    held[0] = held[1] = 4 * MB;
    load_bar_end(&b); // the last look is at the end
    progress_look(&s);
    assert_int_equal(s.all.done, 8 * MB);
    assert_string_equal(s.slowest.name, "");

    // With nothing to send nothing begins; one duck is not its own slowest.
    assert_int_equal(
        load_bar_begin(&b, &(struct transport){&(struct transport_ops){.name = "x"}}, duck, 2, NULL, 0, NULL),
        0);
    load_bar_end(&b);
    held[0] = 2 * MB;
    assert_int_equal(load_bar_begin(&b, &t, duck, 1, NULL, 0, NULL), 0);
    load_bar_end(&b);
    progress_look(&s);
    assert_int_equal(s.all.done, 2 * MB);
    assert_int_equal(s.all.total, 4 * MB);
    assert_string_equal(s.slowest.name, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_that_needs_longest),
        cmocka_unit_test(the_line_does_not_jump),
        cmocka_unit_test(one_that_has_got_nothing_yet),
        cmocka_unit_test(all_ducks_and_the_slowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
