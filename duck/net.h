/* net.h: datagrams over a NIC that speaks raw frames: Ethernet, ARP, IPv4, UDP, ICMP echo.
 *
 * Just what a duck needs: one address, given or learnt by DHCP elsewhere; answers ARP and ping; takes UDP for
 * one port, whole datagrams only (a fragmented one is dropped: the protocol never makes any). Answers go to
 * the MAC address a request came from, so nothing here waits for ARP. Bad frames are counted and dropped. No
 * state but struct net; never allocates. */
#ifndef DUCK_NET_H
#define DUCK_NET_H

#include "duck/platform.h"

enum { NET_BATCH = 32 };

struct net_counters {
    uint64_t short_frame, other_protocol, other_address, bad_checksum, fragmented, other_port, arp, ping;
};

struct net {
    const struct nic *nic;
    uint32_t address; // most significant byte first; 0: none yet, then only ARP and ping are silent
    uint16_t port;
    struct net_counters count;
    struct link link;              // what the duck sees
    uint8_t reply[NET_BATCH][128]; // ARP and ping answers of one batch
};

void net_init(struct net *n, const struct nic *nic, uint32_t address, uint16_t port);

/* For other protocols on the same NIC (DHCP): a UDP datagram into `frame`, headers included; returns its
 * bytes. `data` may lie at its place in the frame already. */
#define NET_UDP_HEADERS 42u
uint32_t net_udp_frame(uint8_t *frame, const uint8_t from_mac[6], uint32_t from, uint16_t from_port,
                       const struct peer *to, const uint8_t *data, uint32_t bytes);
/* 1: `frame` is a whole, sound UDP datagram to `port`; *out describes it. Any destination address. */
int net_udp_parse(const struct frame *frame, uint16_t port, struct datagram *out);

#endif
