/* nic_test.c: NIC drivers against models of their devices: registers, ownership of descriptors, bad frames.
 *
 * The models reject what the hardware would not accept: rings that are not set up, descriptors that the
 * device does not own, registers out of order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/firmware/nic_models.h"

enum { BATCH = 32 };

static uint32_t drain(struct nic *n, uint8_t *first_byte)
{
    struct frame f[BATCH];
    uint32_t got, total = 0;
    while ((got = n->recv(n->self, f, BATCH))) {
        for (uint32_t i = 0; i < got; i++) {
            assert_in_range(f[i].bytes, 14, 9014);
            for (uint32_t k = 0; k < f[i].bytes; k++)
                assert_int_equal(f[i].data[k], (uint8_t)(f[i].data[0] + k));
            if (first_byte) first_byte[total] = f[i].data[0];
            total++;
        }
    }
    return total;
}

static void fill(uint8_t *frame, uint32_t bytes, uint8_t first)
{
    for (uint32_t i = 0; i < bytes; i++) frame[i] = (uint8_t)(first + i);
}

static struct nic open_nic(const struct nic_model *m)
{
    struct nic n;
    const char *why = "";
    struct nic_device d = m->make();
    if (m->driver->open(&n, &d, &why)) fail_msg("%s: %s", m->driver->name, why);
    return n;
}

static void opens(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    static const uint8_t mac[6] = {2, 0, 0, 0, 1, 5};
    assert_memory_equal(n.mac, mac, 6);
    assert_int_equal(n.mtu, 9000);
    assert_true(n.link_mbps(n.self) > 0);
    m->set_link(0);
    assert_int_equal(n.link_mbps(n.self), 0);
    m->set_link(1);
    assert_true(n.link_mbps(n.self) > 0);
    struct frame f[BATCH];
    assert_int_equal(n.recv(n.self, f, BATCH), 0);
}

static void a_dead_device_is_refused(void **state)
{
    const struct nic_model *m = *state;
    struct nic n;
    const char *why = NULL;
    struct nic_device d = m->make();
    m->set_dead(1);
    assert_int_equal(m->driver->open(&n, &d, &why), -1);
    assert_non_null(why);
    m->set_dead(0);
}

/* More frames than a ring holds, in bursts of every size, always in order. */
static void receives_for_ever(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    uint8_t frame[9014], first[NIC_RING], next = 0;
    uint32_t total = 0;
    for (uint32_t burst = 1; burst < 100; burst++) {
        uint8_t expected = next;
        for (uint32_t i = 0; i < burst; i++, next++) {
            uint32_t bytes = 14 + (burst * 31 + i * 97) % 9001;
            fill(frame, bytes, next);
            assert_int_equal(m->arrive(frame, bytes), 1);
        }
        assert_int_equal(drain(&n, first), burst);
        for (uint32_t i = 0; i < burst; i++) assert_int_equal(first[i], (uint8_t)(expected + i));
        total += burst;
    }
    struct nic_stats s;
    n.stats(n.self, &s);
    assert_int_equal(s.in, total);
    assert_int_equal(s.errors, 0);
}

/* A burst larger than the ring: what finds no descriptor is lost, everything after it comes again. */
static void survives_a_burst_larger_than_the_ring(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    uint8_t frame[60];
    for (int round = 0; round < 3; round++) {
        uint32_t taken = 0;
        for (uint32_t i = 0; i < 3 * NIC_RING; i++) {
            fill(frame, sizeof frame, (uint8_t)i);
            taken += (uint32_t)m->arrive(frame, sizeof frame);
        }
        assert_in_range(taken, NIC_RING / 2 - 1, NIC_RING);
        assert_int_equal(drain(&n, NULL), taken);
        drain(&n, NULL);
        fill(frame, sizeof frame, 7);
        assert_int_equal(m->arrive(frame, sizeof frame), 1);
        assert_int_equal(drain(&n, NULL), 1);
    }
}

static void drops_what_is_no_frame(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    static uint8_t frame[20000];
    struct nic_stats s;
    fill(frame, sizeof frame, 3);
    static const uint32_t bad[] = {1, 13, 9015, 10000, 20000};
    for (uint32_t i = 0; i < 5; i++) {
        m->arrive(frame, bad[i]); // a device may refuse it itself
        fill(frame, 64, (uint8_t)i);
        assert_int_equal(m->arrive(frame, 64), 1);
        fill(frame, 64, 3);
    }
    assert_int_equal(drain(&n, NULL), 5); // the good ones
    n.stats(n.self, &s);
    assert_int_equal(s.in, 5);
    assert_int_equal(s.errors, 5);
}

static void sends_in_batches(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    static uint8_t bytes[BATCH][9014];
    struct frame f[BATCH];
    uint32_t before = m->doorbells();
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t size = 14 + (round * 53 + i * 71) % 1501;
            fill(bytes[i], size, (uint8_t)(round + i));
            f[i] = (struct frame){bytes[i], size};
        }
        assert_int_equal(n.send(n.self, f, BATCH), BATCH);
        memset(bytes, 0xee, sizeof bytes);           // copied: the caller may reuse them
        assert_int_equal(m->transmit(BATCH), BATCH); // the model checks their bytes
    }
    assert_int_equal(m->doorbells() - before, 40); // one a batch
    struct nic_stats s;
    n.stats(n.self, &s);
    assert_int_equal(s.out, 40 * BATCH);
}

/* Nobody sends: the ring fills, then takes no more, and goes on when there is room. */
static void a_full_ring_takes_no_more(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    uint8_t bytes[60], large[9100] = {0};
    struct frame f = {bytes, sizeof bytes}, too_large = {large, sizeof large};
    uint32_t taken = 0;
    fill(bytes, sizeof bytes, 9);
    while (taken < 2 * NIC_RING && n.send(n.self, &f, 1)) taken++;
    assert_in_range(taken, NIC_RING - 1, NIC_RING);
    assert_int_equal(m->transmit(10), 10);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(n.send(n.self, &f, 1), 1);
    assert_int_equal(n.send(n.self, &f, 1), 0);
    assert_int_equal(m->transmit(2 * NIC_RING), taken);
    struct nic_stats s;
    assert_int_equal(n.send(n.self, &too_large, 1), 1); // counted and dropped
    n.stats(n.self, &s);
    assert_int_equal(s.errors, 1);
    assert_int_equal(m->transmit(1), 0);
}

/* What is sent meanwhile waits or is lost; afterwards frames go both ways as before. */
static void the_link_goes_down_and_up(void **state)
{
    const struct nic_model *m = *state;
    struct nic n = open_nic(m);
    uint8_t bytes[60];
    struct frame f[5], in[BATCH];
    fill(bytes, sizeof bytes, 9);
    for (uint32_t i = 0; i < 5; i++) f[i] = (struct frame){bytes, sizeof bytes};
    for (uint32_t round = 0; round < NIC_RING;
         round++) { // often enough to fill a ring that is not given back
        m->set_link(0);
        assert_int_equal(n.link_mbps(n.self), 0);
        assert_int_equal(n.send(n.self, f, 5), 5);
        assert_int_equal(m->transmit(5), 0);
        assert_int_equal(m->arrive(bytes, sizeof bytes), 0);
        assert_int_equal(n.recv(n.self, in, BATCH), 0);
        m->set_link(1);
        assert_true(n.link_mbps(n.self) > 0);
        m->transmit(5);
        assert_int_equal(n.send(n.self, f, 5), 5);
        assert_int_equal(m->transmit(10), 5);
        assert_int_equal(m->arrive(bytes, sizeof bytes), 1);
        assert_int_equal(drain(&n, NULL), 1);
    }
}

int main(void)
{
    static const struct nic_model *const models[] = {&virtio_net_model, &e1000e_model};
    int failed = 0;
    for (size_t i = 0; i < 2; i++) {
        void *m = (void *)(uintptr_t)models[i];
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(opens, m),
            cmocka_unit_test_prestate(a_dead_device_is_refused, m),
            cmocka_unit_test_prestate(receives_for_ever, m),
            cmocka_unit_test_prestate(survives_a_burst_larger_than_the_ring, m),
            cmocka_unit_test_prestate(drops_what_is_no_frame, m),
            cmocka_unit_test_prestate(sends_in_batches, m),
            cmocka_unit_test_prestate(a_full_ring_takes_no_more, m),
            cmocka_unit_test_prestate(the_link_goes_down_and_up, m),
        };
        failed += cmocka_run_group_tests_name(models[i]->driver->name, tests, NULL, NULL);
    }
    nic_models_free();
    return failed;
}
