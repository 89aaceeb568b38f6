/* close_test.c: the end of a session reaches every duck, whatever fails in that moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>

#include "tests/net/world.h"

#define MS 1000000ull
#define GENEROUS_MS 60000 // of a machine that does other things

static const struct duck_bank_shape banks[] = {{4, 0, 64}};
static const struct duck_run whole[] = {{0, 0, 8}};
static const struct duck_shape shape = {.hidden = 512, .banks = 1, .bank = banks, .runs = 1, .run = whole};

static pthread_t worker;

static bool all_closed(struct world *w, int host)
{
    return net_all_reached(&w->host[host].flock, NET_CLOSED, NULL);
}

static void *work(void *w)
{
    return world_run(w, all_closed, 0, 1000 * MS) ? w : NULL;
}

/* The last round before it sees the new goal: another duck turns out to be lost as well. */
static void lose_another(void *w)
{
    struct net_flock *f = &((struct world *)w)->host[0].flock;
    net_fail(f, -EHOSTDOWN, "another one has not answered");
    assert_int_equal(pthread_create(&worker, NULL, work, w), 0);
}

/* Their own lease would keep them busy for seconds. */
static void ducks_are_told_whatever_fails_meanwhile(void **state)
{
    (void)state;
    for (int failed_before = 0; failed_before < 2; failed_before++) {
        static struct world w;
        void *in_time;
        world_make(&w, &shape, 1, 3, 1, 5);
        world_host_start(&w, 0, 1, 4, WIRE_F32);
        assert_true(world_open(&w, 0));
        struct net_flock *f = &w.host[0].flock;
        if (failed_before) net_fail(f, -EHOSTDOWN, "duck 1 has not answered");
        w.duck[1].paused_until = UINT64_MAX;
        atomic_store(&f->duck[1].gone, true);
        f->wake = lose_another;
        f->wake_self = &w;
        net_close_session(f, GENEROUS_MS);
        assert_true(all_closed(&w, 0));
        assert_int_equal(pthread_join(worker, &in_time), 0);
        assert_non_null(in_time);
        assert_int_equal(net_failure(f, NULL), -EHOSTDOWN);
        world_free(&w);
    }
}

/* One that is lost and has not been given up is waited for no longer than was said. */
static void a_silent_duck_is_waited_for_in_vain(void **state)
{
    (void)state;
    static struct world w;
    world_make(&w, &shape, 1, 2, 1, 6);
    world_host_start(&w, 0, 1, 4, WIRE_F32);
    assert_true(world_open(&w, 0));
    net_close_session(&w.host[0].flock, 1); // nobody runs the world
    assert_false(all_closed(&w, 0));
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ducks_are_told_whatever_fails_meanwhile),
        cmocka_unit_test(a_silent_duck_is_waited_for_in_vain),
    };
    return cmocka_run_group_tests_name("net close", tests, NULL, NULL);
}
