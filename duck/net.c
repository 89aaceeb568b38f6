/* net.c: Ethernet, ARP, IPv4, UDP and ICMP echo for one address (RFC 826, 791, 768, 792). */
#include "duck/net.h"

#include <string.h>

#include "duck/packet.h"
#include "duck/wire.h"

/* Of the UDP datagram in a frame with complete IP header. */
static uint16_t udp_sum(const uint8_t *f, uint32_t udp_bytes)
{
    uint32_t sum = packet_sum(0, f + PACKET_IP_FROM, 8) + PACKET_UDP + udp_bytes;
    return packet_folded(packet_sum(sum, f + PACKET_L4, udp_bytes));
}

uint32_t net_udp_frame(uint8_t *f, const uint8_t from_mac[6], uint32_t from, uint16_t from_port,
                       const struct peer *to, const uint8_t *data, uint32_t bytes)
{
    if (data != f + PACKET_UDP_DATA) memmove(f + PACKET_UDP_DATA, data, bytes);
    packet_headers(f, (struct packet_end){from_mac, from, from_port},
                   (struct packet_end){to->mac, to->address, to->port}, bytes);
    uint16_t sum = udp_sum(f, 8 + bytes);
    packet_put16(f + PACKET_UDP_SUM, sum ? sum : 0xffff); // 0 would mean: none
    return PACKET_UDP_DATA + bytes;
}

enum ip_verdict { IP_OK, IP_SHORT, IP_BAD_SUM, IP_FRAGMENT };

/* Header checks; *end is where the packet ends (Ethernet pads short frames). Options are not accepted. */
static enum ip_verdict check_ip(const struct frame *in, uint32_t *end)
{
    const uint8_t *f = in->data;
    if (in->bytes < PACKET_L4 || f[PACKET_IP] != 0x45) return IP_SHORT;
    uint32_t length = packet_get16(f + PACKET_IP_LENGTH);
    if (length < 20 || PACKET_IP + length > in->bytes) return IP_SHORT;
    if (packet_folded(packet_sum(0, f + PACKET_IP, 20)) != 0) return IP_BAD_SUM;
    if (packet_get16(f + PACKET_IP_FRAGMENT) & PACKET_FRAGMENT)
        return IP_FRAGMENT; // more fragments, or an offset
    *end = PACKET_IP + length;
    return IP_OK;
}

/* 0: not for `port`, or cut; -1: bad checksum. */
static int check_udp(uint8_t *f, uint32_t end, uint16_t port, struct datagram *out)
{
    if (end < PACKET_UDP_DATA || f[PACKET_IP_PROTOCOL] != PACKET_UDP ||
        packet_get16(f + PACKET_L4 + 2) != port)
        return 0;
    uint32_t bytes = packet_get16(f + PACKET_UDP_LENGTH);
    if (bytes < 8 || PACKET_L4 + bytes > end) return 0;
    if (packet_get16(f + PACKET_UDP_SUM) != 0 && udp_sum(f, bytes) != 0) return -1;
    out->peer =
        (struct peer){.address = packet_get32(f + PACKET_IP_FROM), .port = packet_get16(f + PACKET_L4)};
    memcpy(out->peer.mac, f + 6, 6);
    out->data = f + PACKET_UDP_DATA;
    out->bytes = bytes - 8;
    return 1;
}

int net_udp_parse(const struct frame *in, uint16_t port, struct datagram *out)
{
    uint32_t end;
    if (in->bytes < PACKET_IP || packet_get16(in->data + PACKET_ETHER_TYPE) != PACKET_TYPE_IP ||
        check_ip(in, &end) != IP_OK)
        return 0;
    return check_udp(in->data, end, port, out) == 1;
}

/* ---- answers ---- */

/* Who has our address? Returns bytes of the answer; 0: none. */
static uint32_t answer_arp(struct net *n, const struct frame *in, uint8_t *out)
{
    if (n->address == 0 || !packet_asks_for(in->data, in->bytes, n->address)) return 0;
    packet_answer_arp(out, in->data, n->nic->mac, n->address);
    n->count.arp++;
    return PACKET_ARP_BYTES;
}

/* Echo requests of up to 86 bytes: what ping and a switch's monitoring send. */
static uint32_t answer_ping(struct net *n, const uint8_t *f, uint32_t end, uint8_t *out)
{
    if (end < PACKET_L4 + 8 || end > sizeof n->reply[0] || f[PACKET_L4] != 8 ||
        packet_folded(packet_sum(0, f + PACKET_L4, end - PACKET_L4)) != 0)
        return 0;
    memcpy(out, f, end);
    memcpy(out, f + 6, 6);
    memcpy(out + 6, n->nic->mac, 6);
    packet_put32(out + PACKET_IP_FROM, n->address);
    packet_put32(out + PACKET_IP_TO, packet_get32(f + PACKET_IP_FROM));
    out[PACKET_IP + 8] = 64;
    packet_put16(out + PACKET_IP_SUM, 0);
    packet_put16(out + PACKET_IP_SUM, packet_folded(packet_sum(0, out + PACKET_IP, 20)));
    out[PACKET_L4] = 0; // echo reply
    packet_put16(out + PACKET_L4 + 2, 0);
    packet_put16(out + PACKET_L4 + 2, packet_folded(packet_sum(0, out + PACKET_L4, end - PACKET_L4)));
    n->count.ping++;
    return end;
}

/* 1: a datagram for the duck. Other frames may leave an answer in `out`. */
static int take(struct net *n, const struct frame *in, struct datagram *d, struct frame *out)
{
    uint8_t *f = in->data;
    uint32_t end = 0;
    out->bytes = 0;
    if (in->bytes < PACKET_IP) {
        n->count.short_frame++;
        return 0;
    }
    if (packet_get16(f + PACKET_ETHER_TYPE) == PACKET_TYPE_ARP) {
        out->bytes = answer_arp(n, in, out->data);
        return 0;
    }
    if (packet_get16(f + PACKET_ETHER_TYPE) != PACKET_TYPE_IP) {
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
    uint32_t to = packet_get32(f + PACKET_IP_TO);
    int to_all = f[0] & 1; // broadcast or multicast on the wire: subnet masks are not our business
    if (n->address == 0 || (to != n->address && !to_all)) {
        n->count.other_address++;
        return 0;
    }
    if (f[PACKET_IP_PROTOCOL] == PACKET_ICMP) {
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
