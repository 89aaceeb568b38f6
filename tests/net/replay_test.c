/* replay_test.c: a captured session, replayed by DPDK's net_pcap into the real host: its worker, its engine
 * and the same steps come to the same bits as they did on the simulated wire.
 *
 * The host's nonce is the captured one, so keys and tags are right. The driver replays the capture again and
 * again as fast as it is read: answers come before they are asked for, much too late and a thousand times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host/flock/net/workers.h"
#include "host/util/clock.h"
#include "tests/net/world.h"

#define MS 1000000ull
enum { STEPS = 6, TOKENS = 3, WAIT_MS = 60000 };

static const struct duck_bank_shape banks[] = {{6, 1, 64}, {5, 2, 56}, {0, 1, 96}};
static const struct duck_run whole[] = {{0, 0, 8}, {1, 0, 7}, {2, 0, 12}};
static const struct duck_shape shape = {.hidden = 1024, .banks = 3, .bank = banks, .runs = 3, .run = whole};

static bool step_done(struct world *w, int host)
{
    return net_poll(&w->host[host].flock, 0, w->time, NULL) != 0;
}

/* A session with all of its steps on the simulated wire; what the duck sends goes to `path`. */
static void record(struct world *w, struct world_step *step, const char *path)
{
    world_make(w, &shape, 1, 1, 1, 5);
    w->faults.delay_ns = 5000;
    w->capture = capture_open(path);
    world_host_start(w, 0, 1, TOKENS, WIRE_BF16);
    assert_true(world_open(w, 0));
    for (uint32_t i = 0; i < STEPS; i++) {
        world_step_make(w, 0, &step[i], i % 3, TOKENS, i % 3 == 2 ? 0 : 3, 100 + i);
        assert_int_equal(net_submit(&w->host[0].flock, 0, &step[i].step, w->time, NULL), 0);
        assert_true(world_run(w, step_done, 0, 1000 * MS));
        assert_true(world_step_is_right(w, &step[i]));
    }
    world_run(w, NULL, 0, 10 * MS); // the last DONE
    capture_close(w->capture);
    w->capture = NULL;
}

static void reach(struct net_flock *f, enum net_duck_state state)
{
    const struct net_duck *missing;
    uint64_t until = clock_ns() + WAIT_MS * MS;
    while (!net_all_reached(f, state, &missing)) {
        struct error err = {"not in time"};
        if (net_failure(f, &err) || clock_ns() > until) fail_msg("%s", err.text);
        nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
    }
}

static void play_step(struct net_flock *f, struct world_step *s)
{
    struct error err = {""};
    uint64_t until = clock_ns() + WAIT_MS * MS;
    memset(s->y, 0, (size_t)s->step.tokens * shape.hidden * sizeof *s->y);
    assert_int_equal(net_submit(f, 0, &s->step, clock_ns(), &err), 0);
    int rc;
    while ((rc = net_poll(f, 0, clock_ns(), &err)) == 0 && clock_ns() < until) net_wait(f);
    if (rc != 1) fail_msg("step: %s", rc ? err.text : "not in time");
}

static void a_captured_session_replayed_gives_the_same_bits(void **state)
{
    (void)state;
    static struct world w;
    static struct world_step step[STEPS];
    char path[] = "/tmp/duckd-replay-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    record(&w, step, path);

    struct net_config config = w.host[0].config;
    config.wires = 1;
    config.memory_mb = 64;
    config.dead_ms = 60000;
    config.port[0].lcore = 2;
    config.port[0].broadcast = 0x0a1500ff;
    snprintf(config.port[0].device, sizeof config.port[0].device,
             "net_pcap0,rx_pcap=%s,tx_pcap=/dev/null,infinite_rx=1", path);
    struct net_flock f;
    struct error err = {""};
    void *running;
    assert_int_equal(net_flock_init(&f, &config, &err), 0);
    if (net_workers_dpdk.start(&running, &f, &err)) fail_msg("%s", err.text);
    reach(&f, NET_FOUND);
    struct net_session s = world_session(&w, 0);
    assert_int_equal(net_flock_prepare(&f, &s, w.host[0].flock.nonce, &err), 0);
    net_set_goal(&f, NET_OPEN);
    reach(&f, NET_READY);
    net_set_goal(&f, NET_RUN);
    world_load(&w, &f);
    if (net_load_finish(&f, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < STEPS; i++) {
        play_step(&f, &step[i]);
        if (!world_step_is_right(&w, &step[i])) fail_msg("step %u: wrong bits", i);
    }
    const struct net_counters *c = &f.duck[0].count;
    print_message("%llu frames replayed, %llu of them too late\n", (unsigned long long)c->frames_in,
                  (unsigned long long)c->late);
    assert_true(c->late > 0);
    assert_int_equal(f.port[0].malformed + f.port[0].wrong_tag, 0);
    net_set_goal(&f, NET_REST);
    net_workers_dpdk.stop(running);
    net_flock_free(&f);
    for (uint32_t i = 0; i < STEPS; i++) world_step_free(&step[i]);
    world_free(&w);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_captured_session_replayed_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
