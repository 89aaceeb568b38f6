/* frame.h: Ethernet, IPv4, UDP and ARP as far as a duck's port needs them. Plain bytes, no DPDK types, so
 * that tests and fuzzers run it without EAL. */
#ifndef DUCKD_HOST_FLOCK_DPDK_FRAME_H
#define DUCKD_HOST_FLOCK_DPDK_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "host/flock/net/net.h"

#define FRAME_HEADERS 42u // Ethernet 14, IPv4 20, UDP 8
#define FRAME_ARP 42u

struct frame_self {
    uint8_t mac[6];
    uint16_t udp;
    uint32_t address, broadcast;
};

/* Writes the headers in front of `bytes` of UDP payload that lie at frame + FRAME_HEADERS. `to` NULL:
 * broadcast to the ducks' port. Returns the frame's length. No UDP checksum: frames have a tag and Ethernet's
 * CRC. */
uint32_t frame_write(const struct frame_self *self, const struct net_peer *to, uint8_t *frame,
                     uint32_t bytes);

enum frame_kind {
    FRAME_OURS,  // *from, *payload, *length are set
    FRAME_ASKS,  // an ARP request for our address
    FRAME_OTHER, // of somebody else's business
};
enum frame_kind frame_read(const struct frame_self *self, const uint8_t *frame, size_t bytes,
                           struct net_peer *from, const uint8_t **payload, size_t *length);
/* The answer to an ARP request, FRAME_ARP bytes. */
void frame_answer_arp(const struct frame_self *self, const uint8_t *request, uint8_t *answer);

#endif
