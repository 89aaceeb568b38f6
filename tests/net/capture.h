/* capture.h: datagrams as a pcap file: what Wireshark reads, and net_pcap replays. */
#ifndef TESTS_NET_CAPTURE_H
#define TESTS_NET_CAPTURE_H

#include <stdint.h>
#include <stdio.h>

#include "host/flock/net/net.h"

FILE *capture_open(const char *path); // aborts if it cannot be written
void capture_add(FILE *f, const struct net_peer *from, const struct net_peer *to, const uint8_t *datagram,
                 uint32_t bytes, uint64_t ns);
void capture_close(FILE *f);

#endif
