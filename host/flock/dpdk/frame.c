/* frame.c: headers out and in. Everything on the wire is big-endian and written byte by byte. */
#include "host/flock/dpdk/frame.h"

#include <string.h>

enum {
    TYPE_AT = 12,
    IP_AT = 14,
    IP_TOTAL_AT = IP_AT + 2,
    IP_FRAGMENT_AT = IP_AT + 6,
    IP_TTL_AT = IP_AT + 8,
    IP_PROTOCOL_AT = IP_AT + 9,
    IP_SUM_AT = IP_AT + 10,
    IP_FROM_AT = IP_AT + 12,
    IP_TO_AT = IP_AT + 16,
    IP_BYTES = 20,
    UDP_BYTES = 8,
    ARP_AT = 14,
    ARP_OPERATION_AT = ARP_AT + 6,
    ARP_FROM_MAC_AT = ARP_AT + 8,
    ARP_FROM_AT = ARP_AT + 14,
    ARP_TO_MAC_AT = ARP_AT + 18,
    ARP_TO_AT = ARP_AT + 24,
    IPV4 = 0x0800,
    ARP = 0x0806,
    UDP = 17,
};

static void put16(uint8_t *to, uint32_t v)
{
    to[0] = (uint8_t)(v >> 8);
    to[1] = (uint8_t)v;
}

static void put32(uint8_t *to, uint32_t v)
{
    put16(to, v >> 16);
    put16(to + 2, v & 0xffff);
}

static uint32_t get16(const uint8_t *from)
{
    return (uint32_t)from[0] << 8 | from[1];
}

static uint32_t get32(const uint8_t *from)
{
    return get16(from) << 16 | get16(from + 2);
}

static uint32_t header_sum(const uint8_t *ip, uint32_t bytes)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < bytes; i += 2) sum += get16(ip + i);
    sum = (sum & 0xffff) + (sum >> 16);
    return ((sum & 0xffff) + (sum >> 16)) ^ 0xffff;
}

uint32_t frame_write(const struct frame_self *self, const struct net_peer *to, uint8_t *frame, uint32_t bytes)
{
    memset(frame, 0, FRAME_HEADERS);
    if (to) {
        memcpy(frame, to->mac, 6);
    } else {
        memset(frame, 0xff, 6);
    }
    memcpy(frame + 6, self->mac, 6);
    put16(frame + TYPE_AT, IPV4);
    frame[IP_AT] = 0x45;
    put16(frame + IP_TOTAL_AT, IP_BYTES + UDP_BYTES + bytes);
    put16(frame + IP_FRAGMENT_AT, 0x4000); // never to be fragmented
    frame[IP_TTL_AT] = 64;
    frame[IP_PROTOCOL_AT] = UDP;
    put32(frame + IP_FROM_AT, self->address);
    put32(frame + IP_TO_AT, to ? to->address : self->broadcast);
    put16(frame + IP_SUM_AT, header_sum(frame + IP_AT, IP_BYTES) & 0xffff);
    uint8_t *udp = frame + IP_AT + IP_BYTES;
    put16(udp, self->udp);
    put16(udp + 2, to ? to->port : WIRE_DUCK_PORT);
    put16(udp + 4, UDP_BYTES + bytes);
    return FRAME_HEADERS + bytes;
}

static enum frame_kind read_arp(const struct frame_self *self, const uint8_t *frame, size_t bytes)
{
    static const uint8_t ethernet_ipv4[6] = {0, 1, 8, 0, 6, 4};
    if (bytes < FRAME_ARP || memcmp(frame + ARP_AT, ethernet_ipv4, sizeof ethernet_ipv4) != 0)
        return FRAME_OTHER;
    bool asks = get16(frame + ARP_OPERATION_AT) == 1 && get32(frame + ARP_TO_AT) == self->address;
    return asks ? FRAME_ASKS : FRAME_OTHER;
}

enum frame_kind frame_read(const struct frame_self *self, const uint8_t *frame, size_t bytes,
                           struct net_peer *from, const uint8_t **payload, size_t *length)
{
    if (bytes < IP_AT) return FRAME_OTHER;
    if (get16(frame + TYPE_AT) == ARP) return read_arp(self, frame, bytes);
    if (bytes < FRAME_HEADERS || get16(frame + TYPE_AT) != IPV4 || frame[IP_AT] >> 4 != 4) return FRAME_OTHER;
    size_t ip_bytes = 4 * (size_t)(frame[IP_AT] & 15), total = get16(frame + IP_TOTAL_AT);
    bool fragment = (get16(frame + IP_FRAGMENT_AT) & 0x3fff) != 0;
    if (frame[IP_PROTOCOL_AT] != UDP || fragment || ip_bytes < IP_BYTES || total < ip_bytes + UDP_BYTES ||
        IP_AT + total > bytes || header_sum(frame + IP_AT, (uint32_t)ip_bytes) != 0)
        return FRAME_OTHER;
    const uint8_t *udp = frame + IP_AT + ip_bytes;
    size_t udp_bytes = get16(udp + 4);
    if (get32(frame + IP_TO_AT) != self->address || get16(udp + 2) != self->udp || udp_bytes < UDP_BYTES ||
        udp_bytes > total - ip_bytes)
        return FRAME_OTHER;
    *from = (struct net_peer){.address = get32(frame + IP_FROM_AT), .port = (uint16_t)get16(udp)};
    memcpy(from->mac, frame + 6, 6);
    *payload = udp + UDP_BYTES;
    *length = udp_bytes - UDP_BYTES;
    return FRAME_OURS;
}

void frame_answer_arp(const struct frame_self *self, const uint8_t *request, uint8_t *answer)
{
    memcpy(answer, request + ARP_FROM_MAC_AT, 6);
    memcpy(answer + 6, self->mac, 6);
    put16(answer + TYPE_AT, ARP);
    memcpy(answer + ARP_AT, request + ARP_AT, 6);
    put16(answer + ARP_OPERATION_AT, 2);
    memcpy(answer + ARP_FROM_MAC_AT, self->mac, 6);
    put32(answer + ARP_FROM_AT, self->address);
    memcpy(answer + ARP_TO_MAC_AT, request + ARP_FROM_MAC_AT, 6);
    memcpy(answer + ARP_TO_AT, request + ARP_FROM_AT, 4);
}
