/* bench_sender.c: a DPDK sender without a protocol: full frames to one machine as fast as its device takes
 * them. What bench-net's weights reach is a share of this.
 *
 * The frames are those of weights in size and addresses; what they carry is no frame of the protocol, so a
 * duck drops it at the first look. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "duck/wire.h"
#include "host/flock/dpdk/frame.h"
#include "host/util/clock.h"

enum { BUFFERS = 4095, DESCRIPTORS = 1024, BURST = 32, LINK_MS = 2000 };

static int start_eal(const char *device)
{
    char vdev[256], prefix[64], lcores[64]; // any CPU, as the flock's workers
    snprintf(vdev, sizeof vdev, "--vdev=%s", device);
    snprintf(prefix, sizeof prefix, "--file-prefix=sender%d", (int)getpid());
    snprintf(lcores, sizeof lcores, "--lcores=0@(0-%ld)", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    char *argument[] = {"bench-sender", lcores,           "--no-huge",         "-m",   "64", "--no-pci",
                        "--no-shconf",  "--no-telemetry", "--log-level=error", prefix, vdev, NULL};
    return rte_eal_init(sizeof argument / sizeof *argument - 1, argument) < 0 ? -1 : 0;
}

static int open_device(const char *name, uint16_t *device, struct rte_mempool **pool)
{
    static const struct rte_eth_conf conf;
    uint16_t in = DESCRIPTORS, out = DESCRIPTORS;
    *pool = rte_pktmbuf_pool_create("sender", BUFFERS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!*pool || rte_eth_dev_get_port_by_name(name, device) || rte_eth_dev_configure(*device, 1, 1, &conf) ||
        rte_eth_dev_adjust_nb_rx_tx_desc(*device, &in, &out) ||
        rte_eth_rx_queue_setup(*device, 0, in, 0, NULL, *pool) ||
        rte_eth_tx_queue_setup(*device, 0, out, 0, NULL) || rte_eth_dev_start(*device))
        return -1;
    struct rte_eth_link link = {0};
    for (uint64_t until = clock_ns() + LINK_MS * 1000000ull; clock_ns() < until && !link.link_status;)
        if (rte_eth_link_get_nowait(*device, &link)) return -1;
    return 0;
}

/* Frames that the device has taken within `seconds`; *took: how long exactly. */
static uint64_t send_for(uint16_t device, struct rte_mempool *pool, const struct frame_self *self,
                         const struct net_peer *to, double seconds, double *took)
{
    uint64_t sent = 0, begun = clock_ns(), until = begun + (uint64_t)(seconds * 1e9);
    while (clock_ns() < until) {
        struct rte_mbuf *m[BURST], *in[BURST];
        for (uint16_t n = rte_eth_rx_burst(device, 0, in, BURST); n > 0;) rte_pktmbuf_free(in[--n]);
        if (rte_pktmbuf_alloc_bulk(pool, m, BURST)) continue; // all are on their way
        for (int i = 0; i < BURST; i++) {
            uint8_t *frame = rte_pktmbuf_mtod(m[i], uint8_t *);
            memset(frame + FRAME_HEADERS, 0, WIRE_HEADER + WIRE_PAYLOAD);
            uint32_t length = frame_write(self, to, frame, WIRE_HEADER + WIRE_PAYLOAD);
            m[i]->data_len = (uint16_t)length;
            m[i]->pkt_len = length;
        }
        uint16_t n = rte_eth_tx_burst(device, 0, m, BURST);
        sent += n;
        for (; n < BURST; n++) rte_pktmbuf_free(m[n]);
    }
    *took = (double)(clock_ns() - begun) * 1e-9;
    return sent;
}

int main(int argc, char **argv)
{
    struct net_peer to = {.port = WIRE_DUCK_PORT};
    struct frame_self self = {.address = 0x0a150001, .udp = WIRE_HOST_PORT}; // 10.21.0.1
    struct in_addr address;
    double seconds = argc > 4 ? atof(argv[4]) : 1;
    unsigned m[6];
    if (argc < 4 || argc > 5 ||
        sscanf(argv[2], "%2x:%2x:%2x:%2x:%2x:%2x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5]) != 6 ||
        inet_pton(AF_INET, argv[3], &address) != 1 || !(seconds > 0 && seconds <= 60)) {
        const bool asked = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(asked ? stdout : stderr,
                "usage: bench-sender DEVICE MAC ADDRESS [SECONDS]\n"
                "Sends full frames to a duck's address as fast as a DPDK device takes them.\n");
        return asked ? 0 : 2;
    }
    for (int i = 0; i < 6; i++) to.mac[i] = (uint8_t)m[i];
    to.address = ntohl(address.s_addr);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argv[1], ","), argv[1]);
    uint16_t device;
    struct rte_mempool *pool;
    struct rte_ether_addr mac;
    if (start_eal(argv[1]) || open_device(name, &device, &pool) || rte_eth_macaddr_get(device, &mac)) {
        fprintf(stderr, "bench-sender: %s cannot be opened\n", argv[1]);
        return 1;
    }
    memcpy(self.mac, mac.addr_bytes, sizeof self.mac);
    double took;
    uint64_t sent = send_for(device, pool, &self, &to, seconds, &took);
    double payload = (double)sent * (WIRE_HEADER + WIRE_PAYLOAD), headers = (double)sent * FRAME_HEADERS;
    printf("bare: %.0f frames/s, %.1f MB/s on the wire\n", (double)sent / took,
           (payload + headers) * 1e-6 / took);
    rte_eth_dev_stop(device);
    rte_eth_dev_close(device);
    rte_eal_cleanup();
    return 0;
}
