/* nic_packet.h: a Linux interface as a raw-frame NIC, through an AF_PACKET socket (needs CAP_NET_RAW). The
 * duck has an IP address of its own that the kernel does not know, and maybe a MAC address of its own. */
#ifndef DUCK_LINUX_NIC_PACKET_H
#define DUCK_LINUX_NIC_PACKET_H

#include "duck/platform.h"

/* mac NULL: the interface's; mtu 0: the interface's. Returns the socket, or -1 with a line on stderr. One per
 * process. */
int nic_packet_open(struct nic *out, const char *interface, const uint8_t *mac, uint32_t mtu);
/* struct linux_options.gone */
int nic_packet_gone(int error);

#endif
