/* probe_test.c: rates of ducks that tell what a step was only after it is answered, as those on a network do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "host/engine/probe.h"
#include "host/flock/flock_internal.h"
#include "setup.h"

enum { DUCKS = 3, TOP_K = 2, HIDDEN = 32, WIDTH = 8 };
#define BYTES 3000u // that a duck reads for a row
#define TOOK_NS 500u

/* What is done is told at the next settle() or, by itself, just after somebody has looked. */
static struct slow {
    struct transport transport;
    uint64_t done_rows, told_rows[DUCKS];
} slow;

static int submit(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    (void)flock, (void)lane, (void)err;
    slow.done_rows += step->tokens;
    return 0;
}

static int poll(void *flock, uint32_t lane, bool wait, struct error *err)
{
    (void)flock, (void)lane, (void)wait, (void)err;
    return 1;
}

static void settle(const struct transport *t)
{
    (void)t;
    for (uint32_t i = 0; i < DUCKS; i++) slow.told_rows[i] = slow.done_rows;
}

static void stats(const struct transport *t, uint32_t duck, struct duck_stats *out)
{
    (void)t;
    out->expert_bytes = BYTES * slow.told_rows[duck];
    out->compute_ns = TOOK_NS * slow.told_rows[duck];
    out->networked = true;
    slow.told_rows[duck] = slow.done_rows;
}

static const struct transport_ops ops = {.settle = settle, .stats = stats};

/* All that ducks tell of a step counts, and to that step. */
static void ducks_that_tell_late_are_timed_right(void **state)
{
    (void)state;
    struct setup t = setup_open(1, 8, false, MTP_ONE_JOB);
    struct spec_duck duck[DUCKS] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    struct flock flock = {.transport = &slow.transport, .plan.ducks = DUCKS, .spec.duck = duck};
    const struct flock_seam seam = {submit, poll, NULL, false};
    struct model_config *c = &t.fake->model.config;
    struct engine_probe *probe;
    struct error err;
    slow.transport.ops = &ops;
    lanes_close(t.engine->lanes);
    t.engine->lanes = lanes_open(&t.fake->backend, &seam, 1, 5000);
    t.engine->parts.flock = &flock;
    c->experts = 8;
    c->top_k = TOP_K;
    c->hidden_size = HIDDEN;
    c->expert_width = WIDTH;
    assert_int_equal(engine_probe_open(&probe, t.engine, 8, &err), 0);
    for (int i = 0; i < 20; i++)
        if (engine_probe_slice(probe, i % 3 == 0, &err)) fail_msg("%s", err.text);
    const enum probe_rows kinds[] = {PROBE_ONE, PROBE_MANY};
    for (int i = 0; i < 2; i++) {
        const struct probe_rates r = engine_probe_rates(probe, kinds[i], false);
        assert_true(r.networked);
        // bytes / ns are GB/s; a row's operations are those of all ducks, and so is their time
        assert_float_equal(r.duck_gb_s, (double)BYTES / TOOK_NS, 1e-6);
        assert_float_equal(r.duck_gflops, 6.0 * HIDDEN * TOP_K * WIDTH / (DUCKS * TOOK_NS), 1e-6);
    }
    engine_probe_close(probe);
    t.engine->parts.flock = NULL;
    setup_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ducks_that_tell_late_are_timed_right)};
    return cmocka_run_group_tests_name("probe", tests, NULL, NULL);
}
