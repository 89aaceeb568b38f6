/* net.c: Ethernet, ARP, IPv4, UDP and ICMP echo for one address (RFC 826, 791, 768, 792). */
#include "duck/net.h"

#include <string.h>

#include "duck/wire.h"

/* Offsets in a frame. */
enum {
    ETHER_TYPE = 12,
    IP = 14,
    IP_LENGTH = IP + 2,
    IP_FLAGS = IP + 6,
    IP_PROTOCOL = IP + 9,
    IP_SUM = IP + 10,
    IP_FROM = IP + 12,
    IP_TO = IP + 16,
    L4 = IP + 20,
    UDP_LENGTH = L4 + 4,
    UDP_SUM = L4 + 6,
    UDP_DATA = L4 + 8,
    ARP_BYTES = IP + 28,
};
enum { TYPE_IP = 0x0800, TYPE_ARP = 0x0806, PROTOCOL_ICMP = 1, PROTOCOL_UDP = 17 };

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v >> 16);
    put16(p + 2, v);
}

uint32_t net_sum(uint32_t sum, const uint8_t *data, uint32_t bytes)
{
    uint64_t s = sum; // folded at the end: 64 KB of data cannot overflow it
    uint32_t i = 0;
    for (; i + 2 <= bytes; i += 2) s += (uint32_t)(data[i] << 8 | data[i + 1]);
    if (i < bytes) s += (uint32_t)data[i] << 8;
    while (s >> 32) s = (s & 0xffffffffu) + (s >> 32);
    return (uint32_t)s;
}

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* Of the UDP datagram in a frame with complete IP header. */
static uint16_t udp_sum(const uint8_t *f, uint32_t udp_bytes)
{
    uint32_t sum = net_sum(0, f + IP_FROM, 8) + PROTOCOL_UDP + udp_bytes;
    return folded(net_sum(sum, f + L4, udp_bytes));
}

uint32_t net_udp_frame(uint8_t *f, const uint8_t from_mac[6], uint32_t from, uint16_t from_port,
                       const struct peer *to, const uint8_t *data, uint32_t bytes)
{
    if (data != f + UDP_DATA) memmove(f + UDP_DATA, data, bytes);
    memcpy(f, to->mac, 6);
    memcpy(f + 6, from_mac, 6);
    put16(f + ETHER_TYPE, TYPE_IP);
    memset(f + IP, 0, UDP_DATA - IP);
    f[IP] = 0x45;
    put16(f + IP_LENGTH, 28 + bytes);
    put16(f + IP_FLAGS, 0x4000); // do not fragment
    f[IP + 8] = 64;              // time to live
    f[IP_PROTOCOL] = PROTOCOL_UDP;
    put32(f + IP_FROM, from);
    put32(f + IP_TO, to->address);
    put16(f + IP_SUM, folded(net_sum(0, f + IP, 20)));
    put16(f + L4, from_port);
    put16(f + L4 + 2, to->port);
    put16(f + UDP_LENGTH, 8 + bytes);
    uint16_t sum = udp_sum(f, 8 + bytes);
    put16(f + UDP_SUM, sum ? sum : 0xffff); // 0 would mean: none
    return UDP_DATA + bytes;
}

enum ip_verdict { IP_OK, IP_SHORT, IP_BAD_SUM, IP_FRAGMENT };

/* Header checks; *end is where the packet ends (Ethernet pads short frames). Options are not accepted. */
static enum ip_verdict check_ip(const struct frame *in, uint32_t *end)
{
    const uint8_t *f = in->data;
    if (in->bytes < L4 || f[IP] != 0x45) return IP_SHORT;
    uint32_t length = get16(f + IP_LENGTH);
    if (length < 20 || IP + length > in->bytes) return IP_SHORT;
    if (folded(net_sum(0, f + IP, 20)) != 0) return IP_BAD_SUM;
    if (get16(f + IP_FLAGS) & 0x3fff) return IP_FRAGMENT; // more fragments, or an offset
    *end = IP + length;
    return IP_OK;
}

/* 0: not for `port`, or cut; -1: bad checksum. */
static int check_udp(uint8_t *f, uint32_t end, uint16_t port, struct datagram *out)
{
    if (end < UDP_DATA || f[IP_PROTOCOL] != PROTOCOL_UDP || get16(f + L4 + 2) != port) return 0;
    uint32_t bytes = get16(f + UDP_LENGTH);
    if (bytes < 8 || L4 + bytes > end) return 0;
    if (get16(f + UDP_SUM) != 0 && udp_sum(f, bytes) != 0) return -1;
    out->peer = (struct peer){.address = get32(f + IP_FROM), .port = get16(f + L4)};
    memcpy(out->peer.mac, f + 6, 6);
    out->data = f + UDP_DATA;
    out->bytes = bytes - 8;
    return 1;
}

int net_udp_parse(const struct frame *in, uint16_t port, struct datagram *out)
{
    uint32_t end;
    if (in->bytes < IP || get16(in->data + ETHER_TYPE) != TYPE_IP || check_ip(in, &end) != IP_OK) return 0;
    return check_udp(in->data, end, port, out) == 1;
}

/* ---- answers ---- */

/* Who has our address? Returns bytes of the answer; 0: none. */
static uint32_t answer_arp(struct net *n, const struct frame *in, uint8_t *out)
{
    static const uint8_t ether_ip_request[8] = {0, 1, 8, 0, 6, 4, 0, 1};
    const uint8_t *f = in->data, *a = f + IP;
    if (in->bytes < ARP_BYTES || memcmp(a, ether_ip_request, 8) != 0 || n->address == 0 ||
        get32(a + 24) != n->address)
        return 0;
    memcpy(out, a + 8, 6);
    memcpy(out + 6, n->nic->mac, 6);
    put16(out + ETHER_TYPE, TYPE_ARP);
    memcpy(out + IP, ether_ip_request, 8);
    out[IP + 7] = 2; // reply
    memcpy(out + IP + 8, n->nic->mac, 6);
    put32(out + IP + 14, n->address);
    memcpy(out + IP + 18, a + 8, 10); // the asker's MAC and IP address
    n->count.arp++;
    return ARP_BYTES;
}

/* Echo requests of up to 86 bytes: what ping and a switch's monitoring send. */
static uint32_t answer_ping(struct net *n, const uint8_t *f, uint32_t end, uint8_t *out)
{
    if (end < L4 + 8 || end > sizeof n->reply[0] || f[L4] != 8 || folded(net_sum(0, f + L4, end - L4)) != 0)
        return 0;
    memcpy(out, f, end);
    memcpy(out, f + 6, 6);
    memcpy(out + 6, n->nic->mac, 6);
    put32(out + IP_FROM, n->address);
    put32(out + IP_TO, get32(f + IP_FROM));
    out[IP + 8] = 64;
    put16(out + IP_SUM, 0);
    put16(out + IP_SUM, folded(net_sum(0, out + IP, 20)));
    out[L4] = 0; // echo reply
    put16(out + L4 + 2, 0);
    put16(out + L4 + 2, folded(net_sum(0, out + L4, end - L4)));
    n->count.ping++;
    return end;
}

/* 1: a datagram for the duck. Other frames may leave an answer in `out`. */
static int take(struct net *n, const struct frame *in, struct datagram *d, struct frame *out)
{
    uint8_t *f = in->data;
    uint32_t end = 0;
    out->bytes = 0;
    if (in->bytes < IP) {
        n->count.short_frame++;
        return 0;
    }
    if (get16(f + ETHER_TYPE) == TYPE_ARP) {
        out->bytes = answer_arp(n, in, out->data);
        return 0;
    }
    if (get16(f + ETHER_TYPE) != TYPE_IP) {
        n->count.other_protocol++;
        return 0;
    }
    switch (check_ip(in, &end)) {
    case IP_SHORT:
        n->count.short_frame++;
        return 0;
    case IP_BAD_SUM:
        n->count.bad_checksum++;
        return 0;
    case IP_FRAGMENT:
        n->count.fragmented++;
        return 0;
    case IP_OK:
        break;
    }
    uint32_t to = get32(f + IP_TO);
    int to_all = f[0] & 1; // broadcast or multicast on the wire: subnet masks are not our business
    if (n->address == 0 || (to != n->address && !to_all)) {
        n->count.other_address++;
        return 0;
    }
    if (f[IP_PROTOCOL] == PROTOCOL_ICMP) {
        if (to == n->address) out->bytes = answer_ping(n, f, end, out->data);
        return 0;
    }
    int rc = check_udp(f, end, n->port, d);
    if (rc < 0) n->count.bad_checksum++;
    if (rc == 0) n->count.other_port++;
    return rc > 0;
}

static uint32_t net_recv(void *self, struct datagram *out, uint32_t max)
{
    struct net *n = self;
    struct frame in[NET_BATCH], answer[NET_BATCH];
    uint32_t got = n->nic->recv(n->nic->self, in, max < NET_BATCH ? max : NET_BATCH), taken = 0, answers = 0;
    for (uint32_t i = 0; i < got; i++) {
        answer[answers].data = n->reply[answers];
        taken += (uint32_t)take(n, &in[i], &out[taken], &answer[answers]);
        if (answer[answers].bytes) answers++;
    }
    if (answers) n->nic->send(n->nic->self, answer, answers); // what does not fit is asked again
    return taken;
}

static uint32_t net_send(void *self, struct datagram *d, uint32_t count)
{
    struct net *n = self;
    struct frame out[NET_BATCH];
    if (count > NET_BATCH) count = NET_BATCH;
    for (uint32_t i = 0; i < count; i++) {
        out[i].data = d[i].data - NET_UDP_HEADERS;
        out[i].bytes =
            net_udp_frame(out[i].data, n->nic->mac, n->address, n->port, &d[i].peer, d[i].data, d[i].bytes);
    }
    return n->nic->send(n->nic->self, out, count);
}

static void net_state(void *self, struct link_state *out)
{
    struct net *n = self;
    struct nic_stats stats = {0};
    n->nic->stats(n->nic->self, &stats);
    *out = (struct link_state){.mbps = n->nic->link_mbps(n->nic->self),
                               .payload = wire_payload_of_mtu(n->nic->mtu),
                               .dropped = stats.dropped};
    memcpy(out->mac, n->nic->mac, 6);
}

void net_init(struct net *n, const struct nic *nic, uint32_t address, uint16_t port)
{
    *n = (struct net){.nic = nic, .address = address, .port = port};
    n->link = (struct link){.self = n, .recv = net_recv, .send = net_send, .state = net_state};
}
