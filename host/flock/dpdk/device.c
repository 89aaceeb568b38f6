/* device.c: a port's device: found by name, one queue each way, started; its tap; its link. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ether.h>
#include <rte_lcore.h>

#include "host/flock/dpdk/dpdk.h"
#include "host/util/log.h"

#define BUFFERS 4095u // of a port's pool; 2^n - 1 wastes no memory
#define DESCRIPTORS 1024u
#define JUMBO_ROOM 9216u // of a frame, in whole: net_af_packet wants room for its framesz

/* The name DPDK knows a device by: the PCI address, or a vdev's name without its arguments. */
static void device_name(const struct net_port_config *c, char *out, size_t size)
{
    snprintf(out, size, "%s", *c->pci ? c->pci : c->device);
    out[strcspn(out, ",")] = 0;
}

static int start(uint16_t device, struct rte_mempool *pool, uint32_t mtu, const char *name, struct error *err)
{
    struct rte_eth_conf conf = {0};
    struct rte_eth_dev_info info;
    int known = rte_eth_dev_info_get(device, &info);
    // net_af_packet names 1518 bytes whatever its framesz is, and takes what framesz allows without being
    // told.
    bool large = mtu > RTE_ETHER_MTU && known == 0 && info.max_rx_pktlen >= mtu + RTE_ETHER_HDR_LEN;
    if (large) conf.rxmode.mtu = mtu;
    uint16_t in = DESCRIPTORS, out = DESCRIPTORS;
    int socket = rte_eth_dev_socket_id(device);
    unsigned node = socket < 0 ? 0 : (unsigned)socket;
    int rc = rte_eth_dev_configure(device, 1, 1, &conf);
    if (!rc) rc = rte_eth_dev_adjust_nb_rx_tx_desc(device, &in, &out);
    if (!rc) rc = rte_eth_rx_queue_setup(device, 0, in, node, NULL, pool);
    if (!rc) rc = rte_eth_tx_queue_setup(device, 0, out, node, NULL);
    if (!rc && large) rc = rte_eth_dev_set_mtu(device, (uint16_t)mtu);
    if (!rc) rc = rte_eth_dev_start(device);
    return rc ? error_set(err, rc, "device %s cannot be started: %s", name, rte_strerror(-rc)) : 0;
}

static struct rte_mempool *make_pool(uint32_t index, uint32_t frame_bytes)
{
    char name[32];
    snprintf(name, sizeof name, "duckd-port-%u", index);
    uint32_t room = RTE_MBUF_DEFAULT_BUF_SIZE;
    if (frame_bytes > RTE_MBUF_DEFAULT_DATAROOM) room = JUMBO_ROOM + RTE_PKTMBUF_HEADROOM;
    return rte_pktmbuf_pool_create(name, BUFFERS, 250, 0, (uint16_t)room, SOCKET_ID_ANY);
}

/* A tap with the port's own MAC address, so that the kernel answers for it. */
static int open_tap(struct dpdk_port *p, struct error *err)
{
    char name[32], arguments[128];
    const uint8_t *m = p->self.mac;
    snprintf(name, sizeof name, "net_tap%u", p->port->index);
    snprintf(arguments, sizeof arguments, "iface=duckd%u,mac=%02x:%02x:%02x:%02x:%02x:%02x", p->port->index,
             m[0], m[1], m[2], m[3], m[4], m[5]);
    int rc = rte_eal_hotplug_add("vdev", name, arguments);
    if (!rc) rc = rte_eth_dev_get_port_by_name(name, &p->tap);
    if (rc)
        return error_set(err, rc, "port %u: no tap duckd%u: %s", p->port->index, p->port->index,
                         rte_strerror(-rc));
    return start(p->tap, p->pool, 0, name, err);
}

static void note_interface(struct dpdk_port *p)
{
    const char *device = p->config->device, *at = strstr(device, ",iface=");
    if (strncmp(device, "net_af_packet", strlen("net_af_packet")) != 0 || !at) return;
    at += strlen(",iface=");
    size_t n = strcspn(at, ",");
    if (n >= sizeof p->interface) return;
    memcpy(p->interface, at, n);
    p->interface[n] = 0;
    p->interface_number = (int)if_nametoindex(p->interface);
}

int dpdk_port_open(struct dpdk_port *p, struct error *err)
{
    const struct net_config *c = p->port->flock->config;
    char name[64];
    device_name(p->config, name, sizeof name);
    p->device = p->tap = RTE_MAX_ETHPORTS;
    uint16_t device;
    if (rte_eth_dev_get_port_by_name(name, &device) != 0) {
        return error_set(
            err, -ENODEV,
            "port %u: DPDK has no device %s (is the interface there, the driver bound, the right given?)",
            p->port->index, *p->config->pci ? p->config->pci : p->config->device);
    }
    uint32_t mtu = c->payload + WIRE_HEADER + FRAME_HEADERS - 14;
    p->pool = make_pool(p->port->index, mtu + RTE_ETHER_HDR_LEN);
    if (!p->pool) {
        return error_set(err, -ENOMEM, "port %u: no memory for %u frames: raise memory_mb (%u)",
                         p->port->index, BUFFERS, c->memory_mb);
    }
    int rc = start(device, p->pool, mtu, name, err);
    if (rc) return rc;
    p->device = device;
    rte_eth_promiscuous_enable(device); // where it is not supported, nothing is filtered either
    struct rte_ether_addr mac;
    rc = rte_eth_macaddr_get(device, &mac);
    if (rc) return error_set(err, rc, "device %s has no MAC address", name);
    memcpy(p->self.mac, mac.addr_bytes, sizeof p->self.mac);
    p->self.address = p->config->address;
    p->self.broadcast = p->config->broadcast;
    p->self.udp = c->host_udp;
    p->link = DPDK_UP;
    note_interface(p);
    return p->config->exception_tap ? open_tap(p, err) : 0;
}

void dpdk_port_close(struct dpdk_port *p)
{
    if (p->tap != RTE_MAX_ETHPORTS) {
        rte_eth_dev_stop(p->tap);
        rte_eth_dev_close(p->tap);
    }
    if (p->device != RTE_MAX_ETHPORTS) {
        rte_eth_dev_stop(p->device);
        rte_eth_dev_close(p->device);
    }
}

/* net_af_packet takes every link for up, and goes on with an interface that is gone. */
static enum dpdk_link interface_link(const struct dpdk_port *p)
{
    struct ifreq r = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return p->link; // not known this time
    strcpy(r.ifr_name, p->interface);
    bool there = ioctl(fd, SIOCGIFINDEX, &r) == 0 && r.ifr_ifindex == p->interface_number;
    bool up = there && ioctl(fd, SIOCGIFFLAGS, &r) == 0 && r.ifr_flags & IFF_RUNNING;
    close(fd);
    return !there ? DPDK_GONE : up ? DPDK_UP : DPDK_DOWN;
}

static enum dpdk_link device_link(const struct dpdk_port *p)
{
    struct rte_eth_link link;
    if (rte_eth_link_get_nowait(p->device, &link) != 0) return p->link;
    return link.link_status == RTE_ETH_LINK_UP ? DPDK_UP : DPDK_DOWN;
}

void dpdk_port_watch(struct dpdk_port *p)
{
    if (p->link == DPDK_GONE) return; // another one of its name is not this one
    enum dpdk_link link = *p->interface ? interface_link(p) : device_link(p);
    if (link == p->link) return;
    p->link = link;
    atomic_store(&p->port->link_down, link != DPDK_UP);
    if (link == DPDK_GONE) {
        log_notice("port %u: the interface %s is gone: duckd has to be started again once it is back",
                   p->port->index, p->interface);
        return;
    }
    log_notice("port %u: the link is %s", p->port->index, link == DPDK_UP ? "up again" : "down");
}
