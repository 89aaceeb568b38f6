/* config_check.c: what each part of a flock's file says may be sound, and all of it together impossible. */
#include "host/flock/net/config.h"

#include <errno.h>
#include <string.h>

/* "net_af_packet0" of "net_af_packet0,iface=p0": what DPDK knows a virtual device by. */
static size_t device_name(const char *device)
{
    return strcspn(device, ",");
}

static bool same_device(const struct net_port_config *a, const struct net_port_config *b)
{
    size_t n = device_name(a->device);
    if (*a->pci || *b->pci) return strcmp(a->pci, b->pci) == 0;
    return n == device_name(b->device) && memcmp(a->device, b->device, n) == 0;
}

static int check_ports(const struct net_config *c, const char *name, struct error *err)
{
    for (uint32_t j = 0; j < c->wires; j++) {
        for (uint32_t i = 0; i < j; i++) {
            const struct net_port_config *a = &c->port[i];
            if (!same_device(a, &c->port[j])) continue;
            const char *device = *a->pci ? a->pci : a->device;
            return error_set(err, -EINVAL, "%s: ports %u and %u have the same device, %.*s", name, i, j,
                             (int)device_name(device), device);
        }
    }
    return 0;
}

/* A duck that a DPDK port cannot reach: its network is that of the port's broadcasts. */
static int check_network(const struct net_config *c, uint32_t i, const char *name, struct error *err)
{
    const struct net_match *m = &c->match[i];
    const struct net_port_config *p = &c->port[m->port];
    char own[16], duck[16];
    net_show_address(p->address, own);
    net_show_address(m->address, duck);
    if (m->address == p->address)
        return error_set(err, -EINVAL, "%s: duck %u has the address of its port, %s", name, i, own);
    uint32_t mask = p->prefix ? 0xffffffffu << (32 - p->prefix) : 0;
    if (((m->address ^ p->address) & mask) == 0) return 0;
    return error_set(err, -EINVAL, "%s: duck %u: %s is not in the network of its port, %s/%u", name, i, duck,
                     own, p->prefix);
}

/* On two DPDK ports, which are networks of their own, the same address is two. */
static int check_pair(const struct net_config *c, uint32_t i, uint32_t j, bool dpdk, const char *name,
                      struct error *err)
{
    const struct net_match *a = &c->match[i], *b = &c->match[j];
    char address[16];
    if (a->address && a->address == b->address && a->udp == b->udp && (!dpdk || a->port == b->port)) {
        net_show_address(a->address, address);
        return error_set(err, -EINVAL, "%s: ducks %u and %u have the same address, %s", name, i, j, address);
    }
    if (!a->has_mac || !b->has_mac || memcmp(a->mac, b->mac, sizeof a->mac) != 0) return 0;
    return error_set(err, -EINVAL, "%s: ducks %u and %u have the same mac, %s", name, i, j,
                     net_show_mac(a->mac).s);
}

int net_config_check(const struct net_config *c, bool dpdk, const char *name, struct error *err)
{
    int rc = dpdk ? check_ports(c, name, err) : 0;
    for (uint32_t j = 0; j < c->ducks && !rc; j++) {
        const struct net_match *m = &c->match[j];
        if (m->has_mac && m->mac[0] & 1)
            rc = error_set(err, -EINVAL, "%s: duck %u: %s is no duck's mac but that of a group", name, j,
                           net_show_mac(m->mac).s);
        if (!rc && dpdk && m->address) rc = check_network(c, j, name, err);
        for (uint32_t i = 0; i < j && !rc; i++) rc = check_pair(c, i, j, dpdk, name, err);
    }
    return rc;
}
