/* net_test.c: Ethernet, ARP, IPv4, UDP and ICMP of a duck, frame by frame. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "duck/net.h"
#include "duck/packet.h"
#include "duck/wire.h"

static const uint8_t duck_mac[6] = {2, 0, 0, 0, 0, 9}, host_mac[6] = {2, 0, 0, 0, 0, 1};
enum { DUCK = 0x0a150105, HOST = 0x0a150101 };

static uint8_t in[2048], sent[4][2048];
static uint32_t in_bytes, sent_bytes[4], sents;

static uint32_t nic_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self, (void)max;
    *out = (struct frame){in, in_bytes};
    return 1;
}

static uint32_t nic_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(sents < 4 && f[i].bytes <= sizeof sent[0]);
        memcpy(sent[sents], f[i].data, f[i].bytes);
        sent_bytes[sents++] = f[i].bytes;
    }
    return count;
}

static uint32_t nic_mbps(void *self)
{
    (void)self;
    return 2500;
}

static void nic_stats(void *self, struct nic_stats *out)
{
    (void)self;
    *out = (struct nic_stats){.dropped = 7};
}

static const struct nic nic = {.mac = {2, 0, 0, 0, 0, 9},
                               .mtu = 1500,
                               .recv = nic_recv,
                               .send = nic_send,
                               .link_mbps = nic_mbps,
                               .stats = nic_stats};
static struct net net;

static int set_up(void **state)
{
    (void)state;
    net_init(&net, &nic, DUCK, WIRE_DUCK_PORT);
    sents = 0;
    return 0;
}

/* A datagram "hello" to the duck, as a host would send it. */
static void make_udp(uint32_t to, uint16_t port)
{
    struct peer peer = {.address = to, .port = port};
    memcpy(peer.mac, duck_mac, 6);
    in_bytes = net_udp_frame(in, host_mac, HOST, 4000, &peer, (const uint8_t *)"hello", 5);
}

static uint32_t receive(struct datagram *d)
{
    return net.link.recv(net.link.self, d, 1);
}

static uint32_t once(uint32_t sum)
{
    return (sum & 0xffff) + (sum >> 16);
}

static void put_sum(uint8_t *at, uint32_t sum)
{
    at[0] = (uint8_t)(~once(sum) >> 8);
    at[1] = (uint8_t)~once(sum);
}

static void a_datagram_arrives_and_is_answered(void **state)
{
    (void)state;
    struct datagram d;
    static uint8_t buffer[LINK_HEADROOM + 100];
    make_udp(DUCK, WIRE_DUCK_PORT);
    assert_int_equal(receive(&d), 1);
    assert_int_equal(d.bytes, 5);
    assert_memory_equal(d.data, "hello", 5);
    assert_int_equal(d.peer.address, HOST);
    assert_int_equal(d.peer.port, 4000);
    assert_memory_equal(d.peer.mac, host_mac, 6);
    struct datagram answer = {.peer = d.peer, .bytes = 7, .data = buffer + LINK_HEADROOM};
    memcpy(answer.data, "quack!!", 7);
    assert_int_equal(net.link.send(net.link.self, &answer, 1), 1);
    assert_memory_equal(sent[0], host_mac, 6);
    assert_memory_equal(sent[0] + 6, duck_mac, 6);
    struct frame f = {sent[0], sent_bytes[0]};
    assert_int_equal(net_udp_parse(&f, 4000, &d), 1); // checksums and all
    assert_int_equal(d.peer.address, DUCK);
    assert_int_equal(d.peer.port, WIRE_DUCK_PORT);
    assert_memory_equal(d.data, "quack!!", 7);
}

/* Sums worked out here word by word, so that sender and receiver cannot agree on an error. */
static void checksums_are_the_internets(void **state)
{
    (void)state;
    static const uint8_t rfc1071[8] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    assert_int_equal(once(packet_sum(0, rfc1071, 8)), 0xddf2);
    make_udp(DUCK, WIRE_DUCK_PORT);
    uint32_t ip = 0x4500 + 0x0021 + 0x0000 + 0x4000 + 0x4011 + 0x0a15 + 0x0101 + 0x0a15 + 0x0105;
    assert_int_equal(in[24] << 8 | in[25], (uint16_t)~once(ip));
    uint32_t udp =
        0x0a15 + 0x0101 + 0x0a15 + 0x0105 + 17 + 13 + 4000 + WIRE_DUCK_PORT + 13 + 0x6865 + 0x6c6c + 0x6f00;
    assert_int_equal(in[40] << 8 | in[41], (uint16_t)~once(udp));
}

static void every_flipped_bit_of_ip_and_udp_is_noticed(void **state)
{
    (void)state;
    struct datagram d;
    make_udp(DUCK, WIRE_DUCK_PORT);
    for (uint32_t bit = 12 * 8; bit < in_bytes * 8; bit++) {
        in[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(receive(&d), 0);
        in[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(receive(&d), 1);
    assert_int_equal(sents, 0);
}

static void cut_frames_are_dropped(void **state)
{
    (void)state;
    struct datagram d;
    make_udp(DUCK, WIRE_DUCK_PORT);
    uint32_t whole = in_bytes;
    for (in_bytes = 0; in_bytes < whole; in_bytes++) assert_int_equal(receive(&d), 0);
    in_bytes = 60; // Ethernet's padding is not part of the datagram
    assert_int_equal(receive(&d), 1);
    assert_int_equal(d.bytes, 5);
}

static void others_datagrams_are_counted(void **state)
{
    (void)state;
    struct datagram d;
    make_udp(DUCK + 1, WIRE_DUCK_PORT);
    assert_int_equal(receive(&d), 0);
    assert_int_equal(net.count.other_address, 1);
    make_udp(DUCK, 53);
    assert_int_equal(receive(&d), 0);
    assert_int_equal(net.count.other_port, 1);
    make_udp(0x0a1501ff, WIRE_DUCK_PORT); // a broadcast: whatever the mask
    memset(in, 0xff, 6);
    assert_int_equal(receive(&d), 1);
    net_init(&net, &nic, 0, WIRE_DUCK_PORT); // no address yet
    assert_int_equal(receive(&d), 0);
}

static void who_has_is_answered(void **state)
{
    (void)state;
    struct datagram d;
    static const uint8_t request[42] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0,  1,  8, 6,
                                        0,    1,    8,    0,    6,    4,    0, 1, 2, 0, 0,  0,  0, 1,
                                        10,   21,   1,    1,    0,    0,    0, 0, 0, 0, 10, 21, 1, 5};
    static const uint8_t reply[42] = {2, 0, 0, 0, 0, 1, 2, 0,  0,  0, 0, 9, 8, 6, 0, 1, 8, 0,  6,  4, 0,
                                      2, 2, 0, 0, 0, 0, 9, 10, 21, 1, 5, 2, 0, 0, 0, 0, 1, 10, 21, 1, 1};
    memcpy(in, request, in_bytes = sizeof request);
    assert_int_equal(receive(&d), 0);
    assert_int_equal(sents, 1);
    assert_int_equal(sent_bytes[0], 42);
    assert_memory_equal(sent[0], reply, 42);
    in[41] = 6; // somebody else's address
    receive(&d);
    assert_int_equal(sents, 1);
}

static void ping_is_answered(void **state)
{
    (void)state;
    struct datagram d;
    make_udp(DUCK, 0); // its IP header with another protocol and length
    memcpy(in + 34, "\x08\x00\x00\x00\x12\x34\x00\x01pingpong", 16);
    in[23] = 1;
    in[17] = 20 + 16;
    memset(in + 24, 0, 2);
    put_sum(in + 24, packet_sum(0, in + 14, 20));
    put_sum(in + 36, packet_sum(0, in + 34, 16));
    in_bytes = 50;
    assert_int_equal(receive(&d), 0);
    assert_int_equal(sents, 1);
    assert_int_equal(sent_bytes[0], 50);
    assert_int_equal(sent[0][34], 0); // echo reply
    assert_memory_equal(sent[0] + 38, in + 38, 12);
    assert_memory_equal(sent[0], host_mac, 6);
    assert_int_equal(once(packet_sum(0, sent[0] + 34, 16)), 0xffff);
    assert_int_equal(once(packet_sum(0, sent[0] + 14, 20)), 0xffff);
}

static void the_links_state_is_the_nics(void **state)
{
    (void)state;
    struct link_state s;
    net.link.state(net.link.self, &s);
    assert_int_equal(s.mbps, 2500);
    assert_int_equal(s.payload, WIRE_PAYLOAD);
    assert_int_equal(s.dropped, 7);
    assert_memory_equal(s.mac, duck_mac, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_datagram_arrives_and_is_answered, set_up),
        cmocka_unit_test_setup(checksums_are_the_internets, set_up),
        cmocka_unit_test_setup(every_flipped_bit_of_ip_and_udp_is_noticed, set_up),
        cmocka_unit_test_setup(cut_frames_are_dropped, set_up),
        cmocka_unit_test_setup(others_datagrams_are_counted, set_up),
        cmocka_unit_test_setup(who_has_is_answered, set_up),
        cmocka_unit_test_setup(ping_is_answered, set_up),
        cmocka_unit_test_setup(the_links_state_is_the_nics, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
