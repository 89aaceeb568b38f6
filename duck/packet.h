/* packet.h: where things lie in Ethernet, ARP, IPv4 and UDP headers, and the arithmetic on them (RFC 826,
 * 791, 768, 1071): what a duck's duck/net.c and a host's DPDK port have in common. Bytes as on the wire; no
 * alignment. */
#ifndef DUCK_PACKET_H
#define DUCK_PACKET_H

#include <stdint.h>
#include <string.h>

enum { PACKET_IP_BYTES = 20, PACKET_UDP_BYTES = 8 };

/* Offsets in a frame whose IPv4 header has no options. */
enum {
    PACKET_ETHER_TYPE = 12,
    PACKET_IP = 14,
    PACKET_IP_LENGTH = PACKET_IP + 2,
    PACKET_IP_FRAGMENT = PACKET_IP + 6,
    PACKET_IP_TIME_TO_LIVE = PACKET_IP + 8,
    PACKET_IP_PROTOCOL = PACKET_IP + 9,
    PACKET_IP_SUM = PACKET_IP + 10,
    PACKET_IP_FROM = PACKET_IP + 12,
    PACKET_IP_TO = PACKET_IP + 16,
    PACKET_L4 = PACKET_IP + PACKET_IP_BYTES,
    PACKET_UDP_TO = PACKET_L4 + 2,
    PACKET_UDP_LENGTH = PACKET_L4 + 4,
    PACKET_UDP_SUM = PACKET_L4 + 6,
    PACKET_UDP_DATA = PACKET_L4 + PACKET_UDP_BYTES,
    PACKET_ARP = 14,
    PACKET_ARP_OPERATION = PACKET_ARP + 6,
    PACKET_ARP_FROM_MAC = PACKET_ARP + 8,
    PACKET_ARP_FROM = PACKET_ARP + 14,
    PACKET_ARP_TO_MAC = PACKET_ARP + 18,
    PACKET_ARP_TO = PACKET_ARP + 24,
    PACKET_ARP_BYTES = PACKET_ARP + 28,
};
enum {
    PACKET_TYPE_IP = 0x0800,
    PACKET_TYPE_ARP = 0x0806,
    PACKET_ICMP = 1,
    PACKET_UDP = 17,
    PACKET_NOT_TO_FRAGMENT = 0x4000,
    PACKET_FRAGMENT = 0x3fff, // more fragments, or an offset
};

static inline uint16_t packet_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t packet_get32(const uint8_t *p)
{
    return (uint32_t)packet_get16(p) << 16 | packet_get16(p + 2);
}

static inline void packet_put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void packet_put32(uint8_t *p, uint32_t v)
{
    packet_put16(p, v >> 16);
    packet_put16(p + 2, v);
}

/* The Internet checksum of `bytes` bytes added to `sum`: not folded, not inverted. */
static inline uint32_t packet_sum(uint32_t sum, const uint8_t *data, uint32_t bytes)
{
    uint64_t s = sum; // folded at the end: 64 KB of data cannot overflow it
    uint32_t i = 0;
    for (; i + 2 <= bytes; i += 2) s += (uint32_t)(data[i] << 8 | data[i + 1]);
    if (i < bytes) s += (uint32_t)data[i] << 8;
    while (s >> 32) s = (s & 0xffffffffu) + (s >> 32);
    return (uint32_t)s;
}

/* What is written; 0 of data that have their checksum in them: they are sound. */
static inline uint16_t packet_folded(uint32_t sum)
{
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

struct packet_end {
    const uint8_t *mac;
    uint32_t address;
    uint16_t port;
};

/* All headers of a datagram of `bytes` bytes; without a UDP checksum. */
static inline void packet_headers(uint8_t *f, struct packet_end from, struct packet_end to, uint32_t bytes)
{
    memcpy(f, to.mac, 6);
    memcpy(f + 6, from.mac, 6);
    packet_put16(f + PACKET_ETHER_TYPE, PACKET_TYPE_IP);
    memset(f + PACKET_IP, 0, PACKET_UDP_DATA - PACKET_IP);
    f[PACKET_IP] = 0x45;
    packet_put16(f + PACKET_IP_LENGTH, PACKET_IP_BYTES + PACKET_UDP_BYTES + bytes);
    packet_put16(f + PACKET_IP_FRAGMENT, PACKET_NOT_TO_FRAGMENT);
    f[PACKET_IP_TIME_TO_LIVE] = 64;
    f[PACKET_IP_PROTOCOL] = PACKET_UDP;
    packet_put32(f + PACKET_IP_FROM, from.address);
    packet_put32(f + PACKET_IP_TO, to.address);
    packet_put16(f + PACKET_IP_SUM, packet_folded(packet_sum(0, f + PACKET_IP, PACKET_IP_BYTES)));
    packet_put16(f + PACKET_L4, from.port);
    packet_put16(f + PACKET_UDP_TO, to.port);
    packet_put16(f + PACKET_UDP_LENGTH, PACKET_UDP_BYTES + bytes);
}

/* 1: an ARP request of `bytes` bytes for an address. */
static inline int packet_asks_for(const uint8_t *f, uint64_t bytes, uint32_t address)
{
    static const uint8_t request[8] = {0, 1, 8, 0, 6, 4, 0, 1}; // Ethernet, IPv4, asks
    return bytes >= PACKET_ARP_BYTES && memcmp(f + PACKET_ARP, request, sizeof request) == 0 &&
           packet_get32(f + PACKET_ARP_TO) == address;
}

/* The answer, PACKET_ARP_BYTES bytes, to such a request: the address is at `mac`. */
static inline void packet_answer_arp(uint8_t *out, const uint8_t *request, const uint8_t mac[6],
                                     uint32_t address)
{
    memcpy(out, request + PACKET_ARP_FROM_MAC, 6);
    memcpy(out + 6, mac, 6);
    packet_put16(out + PACKET_ETHER_TYPE, PACKET_TYPE_ARP);
    memcpy(out + PACKET_ARP, request + PACKET_ARP, 6);
    packet_put16(out + PACKET_ARP_OPERATION, 2);
    memcpy(out + PACKET_ARP_FROM_MAC, mac, 6);
    packet_put32(out + PACKET_ARP_FROM, address);
    memcpy(out + PACKET_ARP_TO_MAC, request + PACKET_ARP_FROM_MAC, 10); // and the asker's IP address
}

#endif
