/* dhcp.h: an IPv4 address from a DHCP server (RFC 2131), for a duck whose identity is nothing but its MAC.
 *
 * Sits between a NIC and duck/net.c: passes frames through and keeps those that are its own; sends what is
 * due with every recv(). Asks for ever, ever more slowly; renews at half of the lease; without an answer the
 * address ends with the lease and everything begins again. Never blocks, never allocates. */
#ifndef DUCK_DHCP_H
#define DUCK_DHCP_H

#include "duck/platform.h"

enum dhcp_state { DHCP_SELECTING, DHCP_REQUESTING, DHCP_BOUND, DHCP_RENEWING };

struct dhcp {
    struct nic nic; // for net_init()
    const struct nic *below;
    const struct platform *p;
    uint32_t *address; // of struct net: set and cleared as the lease comes and goes
    enum dhcp_state state;
    uint32_t tries;              // since the state began
    uint64_t next_ns;            // when to send again
    uint64_t begun_ns, lease_ns; // of the lease
    uint32_t transaction, offered, server;
    struct peer renew_from;
    uint64_t sent, taken, refused, ignored;
    uint8_t out[LINK_HEADROOM + 320];
};

void dhcp_start(struct dhcp *d, const struct nic *below, const struct platform *p, uint32_t *address);

#endif
