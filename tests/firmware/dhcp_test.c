/* dhcp_test.c: the DHCP client against a small server: loss, refusal, renewal, the end of a lease, bad
 * answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "duck/dhcp.h"
#include "duck/net.h"

#define SECOND ((uint64_t)1000000000u)
enum { DISCOVER = 1, OFFER, REQUEST, ACK = 5, NAK, ADDRESS = 0x0a150105, SERVER = 0x0a150101 };

static struct {
    uint64_t now;
    uint8_t sent[600], answer[600], other[64];
    uint32_t sent_bytes, answer_bytes, other_bytes, count[8];
} the;

static uint64_t now(void *self)
{
    (void)self;
    return the.now;
}

static void not_random(void *self, uint8_t *out, size_t bytes)
{
    static uint8_t next;
    (void)self;
    memset(out, ++next, bytes);
}

static void quiet(void *self, const char *line)
{
    (void)self;
    (void)line;
}

static uint32_t below_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    uint32_t n = 0;
    assert_true(max >= 2);
    if (the.answer_bytes) out[n++] = (struct frame){the.answer, the.answer_bytes};
    if (the.other_bytes) out[n++] = (struct frame){the.other, the.other_bytes};
    the.answer_bytes = the.other_bytes = 0;
    return n;
}

static uint32_t below_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    assert_true(count == 1 && f->bytes <= sizeof the.sent);
    memcpy(the.sent, f->data, f->bytes);
    the.sent_bytes = f->bytes;
    struct datagram d;
    assert_true(net_udp_parse(f, 67, &d)); // sound, checksums included
    assert_int_equal(d.peer.port, 68);
    assert_true(d.bytes >= 300 && d.data[240] == 53);
    the.count[d.data[242] & 7]++;
    return 1;
}

static const struct nic below = {
    .mac = {2, 0, 0, 0, 1, 5}, .mtu = 1500, .recv = below_recv, .send = below_send};
static const struct platform platform = {.now = now, .random = not_random, .log = quiet};

/* Answers the message that was sent last. */
static void answer(uint8_t type, uint32_t address, uint32_t lease)
{
    uint8_t m[300] = {2, 1, 6};
    const uint8_t *asked = the.sent + NET_UDP_HEADERS;
    memcpy(m + 4, asked + 4, 4);
    memcpy(m + 28, asked + 28, 6);
    for (int i = 0; i < 4; i++) m[16 + i] = (uint8_t)(address >> (24 - 8 * i));
    const uint8_t options[] = {99,
                               130,
                               83,
                               99,
                               53,
                               1,
                               type,
                               0,
                               54,
                               4,
                               10,
                               21,
                               1,
                               1,
                               51,
                               4,
                               (uint8_t)(lease >> 24),
                               (uint8_t)(lease >> 16),
                               (uint8_t)(lease >> 8),
                               (uint8_t)lease,
                               255};
    memcpy(m + 236, options, sizeof options);
    struct peer to = {.address = 0xffffffff, .port = 68, .mac = {2, 0, 0, 0, 1, 5}};
    static const uint8_t server_mac[6] = {2, 9, 9, 9, 9, 9};
    the.answer_bytes = net_udp_frame(the.answer, server_mac, SERVER, 67, &to, m, sizeof m);
}

static uint32_t poll_at(struct dhcp *d, uint64_t at)
{
    struct frame f[4];
    the.now = at;
    return d->nic.recv(d->nic.self, f, 4);
}

static void begin(struct dhcp *d, uint32_t *address)
{
    memset(&the, 0, sizeof the);
    the.now = SECOND;
    *address = 77;
    dhcp_start(d, &below, &platform, address);
    assert_int_equal(*address, 0);
    poll_at(d, SECOND);
    assert_int_equal(the.count[DISCOVER], 1);
}

static void bind_it(struct dhcp *d, uint32_t *address, uint32_t lease)
{
    begin(d, address);
    answer(OFFER, ADDRESS, lease);
    poll_at(d, the.now + 1000);
    assert_int_equal(the.count[REQUEST], 1);
    assert_int_equal(*address, 0); // an offer is no lease
    answer(ACK, ADDRESS, lease);
    poll_at(d, the.now + 1000);
    assert_int_equal(*address, ADDRESS);
    assert_int_equal(d->state, DHCP_BOUND);
}

static void gets_an_address(void **state)
{
    (void)state;
    struct dhcp d;
    uint32_t address;
    bind_it(&d, &address, 3600);
    poll_at(&d, the.now + 100 * SECOND);
    assert_int_equal(the.count[DISCOVER] + the.count[REQUEST], 2); // quiet now
    memset(the.other, 5, sizeof the.other);                        // frames of others pass
    the.other_bytes = sizeof the.other;
    assert_int_equal(poll_at(&d, the.now), 1);
}

static void asks_ever_more_slowly(void **state)
{
    (void)state;
    struct dhcp d;
    uint32_t address;
    begin(&d, &address);
    for (uint64_t t = 0; t < 120; t++) poll_at(&d, SECOND + t * SECOND / 2 + 1);
    assert_in_range(the.count[DISCOVER], 5, 9); // 1, 2, 4, 8, 16, 16 ... within a minute
    answer(OFFER, ADDRESS, 60);
    poll_at(&d, the.now + 1);
    for (uint64_t t = 0; t < 80; t++) poll_at(&d, the.now + SECOND / 2); // no ACK comes
    assert_int_equal(the.count[REQUEST], 4);
    assert_int_equal(d.state, DHCP_SELECTING);
}

static void renews_and_loses(void **state)
{
    (void)state;
    struct dhcp d;
    uint32_t address;
    bind_it(&d, &address, 100);
    uint64_t start = the.now;
    poll_at(&d, start + 49 * SECOND);
    assert_int_equal(the.count[REQUEST], 1);
    poll_at(&d, start + 51 * SECOND);
    assert_int_equal(the.count[REQUEST], 2);
    static const uint8_t server_mac[6] = {2, 9, 9, 9, 9, 9};
    assert_memory_equal(the.sent, server_mac, 6);         // to the server alone
    assert_int_equal(the.sent[NET_UDP_HEADERS + 12], 10); // from the address it is about
    answer(ACK, ADDRESS, 100);
    poll_at(&d, start + 52 * SECOND);
    assert_int_equal(d.state, DHCP_BOUND);
    poll_at(&d, start + 110 * SECOND); // the server is gone
    assert_int_equal(address, ADDRESS);
    poll_at(&d, start + 153 * SECOND);
    assert_int_equal(address, 0);
    assert_int_equal(d.state, DHCP_SELECTING);
}

static void takes_a_refusal(void **state)
{
    (void)state;
    struct dhcp d;
    uint32_t address;
    begin(&d, &address);
    answer(OFFER, ADDRESS, 100);
    poll_at(&d, the.now + 1);
    answer(NAK, 0, 0);
    poll_at(&d, the.now + 1);
    assert_int_equal(d.state, DHCP_SELECTING);
    assert_int_equal(address, 0);
    assert_int_equal(the.count[DISCOVER], 1); // not at once
    poll_at(&d, the.now + SECOND);
    assert_int_equal(the.count[DISCOVER], 2);
}

static void ignores_bad_answers(void **state)
{
    (void)state;
    struct dhcp d;
    uint32_t address;
    static const uint32_t at[] = {0, 4, 28, 236, 241, 256}; // op, transaction, MAC, cookie, option lengths
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        begin(&d, &address);
        answer(OFFER, ADDRESS, 100);
        the.answer[NET_UDP_HEADERS + at[i]] ^= 0xff;
        memset(the.answer + 40, 0, 2); // no UDP checksum: the field itself must be noticed
        poll_at(&d, the.now + 1);
        if (at[i] != 256) assert_int_equal(d.state, DHCP_SELECTING);
        assert_int_equal(address, 0);
    }
    begin(&d, &address);
    answer(ACK, ADDRESS, 100); // nobody asked
    poll_at(&d, the.now + 1);
    assert_int_equal(address, 0);
    assert_int_equal(d.ignored, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gets_an_address),     cmocka_unit_test(asks_ever_more_slowly),
        cmocka_unit_test(renews_and_loses),    cmocka_unit_test(takes_a_refusal),
        cmocka_unit_test(ignores_bad_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
