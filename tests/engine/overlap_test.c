/* overlap_test.c: two lanes of one sequence on a slow backend and slow ducks: whoever is slower must never
 * wait, so a pair's layer takes at most twice as long as the slower of the two, plus 10 %. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "delayed.h"

#define LAYERS 40
#define SLOWER_NS 300000.0
#define ATTEMPTS 5 // the best counts: interrupts are not what is tested

struct ratio {
    double backend_over_duck, wire_over_slower;
};

/* Where a wire is set, two lanes can still hide it: backend + ducks + 2 wires <= 2 x the slower. */
static const struct ratio ratios[] = {{0.1, 0}, {0.25, 0}, {0.5, 0},   {0.8, 0},   {1.25, 0},
                                      {2, 0},   {3, 0},    {0.1, 0.4}, {0.5, 0.2}, {2, 0.2}};

static void ended(void *ctx, uint32_t lane, int rc, const struct error *err)
{
    (void)lane;
    (void)err;
    assert_int_equal(rc, 0);
    ++*(uint32_t *)ctx;
}

/* ns from the first start to the last end. */
static uint64_t run_pair(struct delayed *d, uint32_t jobs)
{
    static const int32_t ids[] = {17, 400};
    const struct flock_seam flock = delayed_flock(d);
    struct lanes *l = lanes_open(&d->backend, &flock, DELAYED_LANES, 5000);
    struct error err;
    uint32_t done = 0;
    assert_non_null(l);
    uint64_t began = delayed_clock_ns();
    for (uint32_t i = 0; i < jobs; i++) {
        const struct backend_job job = {.position = i, .tokens = 1, .ids = &ids[i]};
        assert_int_equal(lanes_start(l, i, &job, i ? i - 1 : LANE_NONE, &err), 0);
    }
    lanes_run(l, ended, &done);
    uint64_t spent = delayed_clock_ns() - began;
    assert_int_equal(done, jobs);
    for (uint32_t i = 0; i < jobs; i++) assert_true(d->lane[i].x == delayed_expected(LAYERS, (float)ids[i]));
    lanes_close(l);
    return spent;
}

static double best(const struct ratio *r, uint32_t jobs, double enough_ns)
{
    double backend = r->backend_over_duck > 1 ? SLOWER_NS : SLOWER_NS * r->backend_over_duck;
    double duck = r->backend_over_duck > 1 ? SLOWER_NS / r->backend_over_duck : SLOWER_NS;
    double least = 1e18;
    for (int i = 0; i < ATTEMPTS && least > enough_ns; i++) {
        struct delayed d;
        delayed_init(&d, LAYERS, (uint64_t)backend, (uint64_t)duck,
                     (uint64_t)(SLOWER_NS * r->wire_over_slower));
        double spent = (double)run_pair(&d, jobs);
        if (spent < least) least = spent;
    }
    return least;
}

static void the_slower_one_never_waits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
        double limit = 1.1 * 2 * SLOWER_NS * LAYERS, spent = best(&ratios[i], 2, limit);
        if (spent > limit)
            print_error("backend %g x ducks, wire %g: %.1f us a layer, at most %.1f\n",
                        ratios[i].backend_over_duck, ratios[i].wire_over_slower, spent / LAYERS * 1e-3,
                        limit / LAYERS * 1e-3);
        assert_true(spent <= limit);
    }
}

/* What the bound above is worth: one lane alone takes backend and ducks one after the other. */
static void one_lane_waits_for_both(void **state)
{
    (void)state;
    static const struct ratio even = {1.0, 0};
    assert_true(best(&even, 1, 0) >= 2 * SLOWER_NS * LAYERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slower_one_never_waits),
        cmocka_unit_test(one_lane_waits_for_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
