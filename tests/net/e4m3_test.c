/* e4m3_test.c: ducks on a simulated wire that keep experts as e4m3: the bits of fp9, and who cannot is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "tests/net/world.h"

#define MS 1000000ull

static const struct duck_bank_shape banks[] = {{6, 1, 64}, {5, 2, 56}, {0, 1, 96}};
static const struct duck_run whole[] = {{0, 0, 8}, {1, 0, 7}, {2, 0, 12}};
static const struct duck_shape shape = {.hidden = 1024, .banks = 3, .bank = banks, .runs = 3, .run = whole};

static bool step_done(struct world *w, int host)
{
    struct net_flock *f = &w->host[host].flock;
    return atomic_load(&f->failed) || net_poll(f, 0, w->time, NULL) == 1;
}

static void run_step(struct world *w, uint32_t bank, uint32_t tokens)
{
    struct net_flock *f = &w->host[0].flock;
    struct world_step step;
    world_step_make(w, 0, &step, bank, tokens, bank == 2 ? 0 : 3, tokens);
    assert_int_equal(net_submit(f, 0, &step.step, w->time, NULL), 0);
    bool done = world_run(w, step_done, 0, 20000 * MS);
    struct error err = {""};
    if (net_failure(f, &err)) fail_msg("%s", err.text);
    assert_true(done && world_step_is_right(w, &step));
    world_step_free(&step);
}

/* Experts kept as e4m3 by ducks on a bad wire: the bits are those of fp9, the known answer too. */
static void ducks_keep_e4m3(void **state)
{
    (void)state;
    struct duck_shape eight = shape;
    eight.format = FP9_E4M3;
    struct world *w = calloc(1, sizeof *w), *nine = calloc(1, sizeof *nine);
    assert_true(w && nine);
    world_make(w, &eight, 2, 3, 1, 9);
    world_make(nine, &shape, 2, 3, 1, 9);
    w->faults = (struct wire_faults){.delay_ns = 5000, .jitter_ns = 100000, .lose = 0.02, .twice = 0.02};
    world_host_start(w, 0, 2, 4, WIRE_BF16);
    if (!world_open(w, 0)) fail_msg("the flock does not open");
    for (uint32_t round = 0; round < 12; round++) run_step(w, round % 3, 1 + round % 4);
    size_t values;
    for (uint32_t bank = 0; bank < 2; bank++) {
        size_t bytes, more;
        uint8_t *step = layers_step(w->layers, bank, 4, 3, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, bank, &bytes);
        float *a = layers_expect(w->layers, step, WIRE_PAYLOAD, &values),
              *b = layers_expect(nine->layers, step, WIRE_PAYLOAD, &more);
        assert_int_equal(values, more);
        assert_memory_equal(a, b, values * sizeof *a);
        free(step), free(a), free(b);
    }
    assert_true(duck_core_bytes(&w->layers->shape) < duck_core_bytes(&nine->layers->shape));
    world_free(w);
    world_free(nine);
    free(w);
    free(nine);
}

static bool all_found(struct world *w, int host)
{
    const struct net_flock *f = &w->host[host].flock;
    for (uint32_t i = 0; i < f->ducks; i++)
        if (atomic_load(&f->duck[i].state) != NET_FOUND) return false;
    return true;
}

/* One whose firmware does not know of e4m3 is refused in one line. */
static void an_old_duck_does_not_keep_e4m3(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        struct world *w = calloc(1, sizeof *w);
        assert_non_null(w);
        world_make(w, &shape, 1, 2, 1, 9);
        w->plan.format = FP9_E4M3;
        world_host_start(w, 0, 1, 4, WIRE_BF16);
        assert_true(world_run(w, all_found, 0, 1000 * MS));
        struct net_flock *f = &w->host[0].flock;
        const struct net_session s = world_session(w, 0);
        const uint8_t nonce[WIRE_NONCE] = {1};
        struct error err = {""};
        if (old) f->duck[1].hello.features &= ~(uint32_t)WIRE_E4M3;
        assert_int_equal(net_flock_prepare(f, &s, nonce, &err), old ? -EPROTO : 0);
        if (old) assert_non_null(strstr(err.text, "keeps experts as fp9 only: it needs a newer one"));
        assert_null(strchr(err.text, '\n'));
        world_free(w);
        free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ducks_keep_e4m3),
        cmocka_unit_test(an_old_duck_does_not_keep_e4m3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
