/* nic_udp.h: a UDP socket as the duck's link: no privileges, works on loopback. */
#ifndef DUCK_LINUX_NIC_UDP_H
#define DUCK_LINUX_NIC_UDP_H

#include "duck/platform.h"

/* address most significant byte first, 0: any. Returns the socket, or -1 with a line on stderr. One per
 * process. */
int nic_udp_open(struct link *out, uint32_t address, uint16_t port, uint32_t mtu);

#endif
