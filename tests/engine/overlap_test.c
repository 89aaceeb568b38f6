/* overlap_test.c: two lanes of one sequence on a slow backend and slow ducks: whoever is slower must never
 * wait, so a pair's layer takes at most twice as long as the slower of the two, plus 10 %. Read off a trace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "delayed.h"
#include "host/util/trace.h"

#define LAYERS 40
#define SLOWER_US 300.0

struct ratio {
    double backend_over_duck, wire_over_slower;
};

/* Where a wire is set, two lanes can still hide it: backend + ducks + 2 wires <= 2 x the slower. */
static const struct ratio ratios[] = {{0.1, 0},   {0.25, 0},  {0.5, 0},  {0.8, 0}, {0.95, 0},
                                      {1, 0},     {1.05, 0},  {1.25, 0}, {2, 0},   {3, 0},
                                      {0.1, 0.4}, {0.5, 0.2}, {1, 0.05}, {2, 0.2}};

static void ended(void *ctx, uint32_t lane, int rc, const struct error *err)
{
    (void)lane;
    (void)err;
    assert_int_equal(rc, 0);
    ++*(uint32_t *)ctx;
}

static void run_jobs(struct delayed *d, uint32_t jobs)
{
    static const int32_t ids[] = {17, 400};
    const struct flock_seam flock = delayed_flock(d);
    struct lanes *l = lanes_open(&d->backend, &flock, DELAYED_LANES, 5000);
    struct error err;
    uint32_t done = 0;
    assert_non_null(l);
    lanes__set_clock(l, delayed_clock_ns);
    for (uint32_t i = 0; i < jobs; i++) {
        const struct backend_job job = {.position = i, .tokens = 1, .ids = &ids[i]};
        assert_int_equal(lanes_start(l, i, &job, i ? i - 1 : LANE_NONE, &err), 0);
    }
    lanes_run(l, ended, &done);
    assert_int_equal(done, jobs);
    for (uint32_t i = 0; i < jobs; i++) assert_true(d->lane[i].x == delayed_expected(LAYERS, (float)ids[i]));
    lanes_close(l);
}

/* When the last lane's step of a layer came back from the flock. */
static void read_trace(const char *json, size_t length, double *left_us)
{
    cJSON *root = cJSON_ParseWithLength(json, length), *e;
    assert_non_null(root);
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(root, "traceEvents"))
    {
        int row = cJSON_GetObjectItem(e, "tid") ? cJSON_GetObjectItem(e, "tid")->valueint : 0;
        const char *phase = cJSON_GetStringValue(cJSON_GetObjectItem(e, "ph"));
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(e, "name"));
        if (*phase != 'X' || row < 1000 || row >= 2000 || strcmp(name, "flock") != 0) continue;
        int layer = cJSON_GetObjectItem(cJSON_GetObjectItem(e, "args"), "layer")->valueint;
        double end = cJSON_GetObjectItem(e, "ts")->valuedouble + cJSON_GetObjectItem(e, "dur")->valuedouble;
        left_us[layer] = fmax(left_us[layer], end);
    }
    cJSON_Delete(root);
}

/* Mean time from layer to layer, of the traced run. */
static double layer_us(const struct ratio *r, uint32_t jobs)
{
    double backend = r->backend_over_duck > 1 ? SLOWER_US : SLOWER_US * r->backend_over_duck;
    double duck = r->backend_over_duck > 1 ? SLOWER_US / r->backend_over_duck : SLOWER_US;
    struct delayed d;
    struct error err;
    delayed_init(&d, LAYERS, (uint64_t)(1e3 * backend), (uint64_t)(1e3 * duck),
                 (uint64_t)(1e3 * SLOWER_US * r->wire_over_slower));
    assert_int_equal(trace_start(&err), 0);
    run_jobs(&d, jobs);
    char *json;
    size_t length;
    FILE *f = open_memstream(&json, &length);
    assert_non_null(f);
    assert_int_equal(trace_write(f), 0);
    fclose(f);
    double left[LAYERS]; // simulated time may lie before the trace's start
    for (int i = 0; i < LAYERS; i++) left[i] = -INFINITY;
    read_trace(json, length, left);
    free(json);
    return (left[LAYERS - 1] - left[0]) / (LAYERS - 1);
}

static void the_slower_one_never_waits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
        double limit = 1.1 * 2 * SLOWER_US, spent = layer_us(&ratios[i], 2);
        print_message("backend %4.2f x ducks, wire %.2f: a pair's layer %.3f x 2 x the slower one\n",
                      ratios[i].backend_over_duck, ratios[i].wire_over_slower, spent / (2 * SLOWER_US));
        assert_true(spent <= limit);
        assert_true(spent >= 0.99 * 2 * SLOWER_US); // or the trace says less than there was
    }
}

/* What the bound above is worth: one lane alone takes backend and ducks one after the other. */
static void one_lane_waits_for_both(void **state)
{
    (void)state;
    static const struct ratio even = {1.0, 0};
    assert_true(layer_us(&even, 1) >= 2 * SLOWER_US);
}

static void assert_about(uint64_t got_ns, double want_us)
{
    if (fabs(1e-3 * (double)got_ns - want_us) > 0.01 * want_us)
        fail_msg("%.1f us instead of %.1f", 1e-3 * (double)got_ns, want_us);
}

/* What a lane has been doing since it was opened adds up, also for one without a job. */
static void lanes_know_where_they_were(void **state)
{
    (void)state;
    static const int32_t ids[] = {17};
    const struct backend_job job = {.position = 0, .tokens = 1, .ids = ids};
    struct delayed d;
    struct error err;
    uint32_t done = 0;
    delayed_init(&d, LAYERS, 200000, 100000, 50000);
    const struct flock_seam flock = delayed_flock(&d);
    struct lanes *l = lanes_open(&d.backend, &flock, 2, 5000);
    assert_non_null(l);
    lanes__set_clock(l, delayed_clock_ns);
    const uint64_t began = delayed_clock_ns();
    for (uint32_t i = 1; i <= 3; i++) {
        while (delayed_clock_ns() < began + i * 50000000ull) {
        }
        assert_int_equal(lanes_start(l, 0, &job, LANE_NONE, &err), 0);
        lanes_run(l, ended, &done);
        struct lane_totals all[2];
        lanes_totals(l, all, 2);
        const struct lane_totals t = all[0], other = all[1];
        const double open_us = 1e-3 * (double)(delayed_clock_ns() - began);
        assert_int_equal(t.jobs, i);
        assert_int_equal(t.tokens, i);
        assert_about(t.backend_ns, i * (LAYERS + 1) * 200.0);
        assert_about(t.flock_ns, i * LAYERS * 200.0);
        assert_about(t.backend_ns + t.flock_ns + t.idle_ns, open_us);
        assert_int_equal(other.jobs + other.backend_ns + other.flock_ns, 0);
        assert_about(other.idle_ns, open_us);
    }
    lanes_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slower_one_never_waits),
        cmocka_unit_test(one_lane_waits_for_both),
        cmocka_unit_test(lanes_know_where_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
