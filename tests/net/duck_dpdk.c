/* duck_dpdk.c: a duck on a DPDK device: the other end of a memif, or of a recorded conversation (net_pcap).
 *
 * The same duck as duck-linux with another NIC under it, polling always, so that a test can count what a step
 * costs in system calls when there is no kernel between host and duck.
 *
 * With "looks" as a fifth argument it says at the end how long the duck did not look at its NIC, in CPU time
 * of its thread (others' use of the CPU does not count; the clock is a system call), while frames or tasks
 * kept it busy.
 *
 * usage: duck-dpdk DEVICE ADDRESS KEY MEGABYTES [looks]      e.g.
 * net_memif0,role=client,socket=/tmp/s 10.21.0.101 <32 digits> 64 */
#include <arpa/inet.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "duck/duck.h"
#include "duck/linux/platform_linux.h"
#include "duck/net.h"
#include "host/util/clock.h"

enum { BATCH = 32, BUFFERS = 2047, DESCRIPTORS = 512, NEVER_MS = 3600000 };

static struct {
    uint16_t device;
    struct rte_mempool *pool;
    struct rte_mbuf *lent[BATCH];
    uint16_t lents;
    struct nic_stats stats;
} the;

/* ---- how often it looks ---- */

enum { LOOK_US = 64 };
static struct {
    bool wanted;
    uint64_t last_ns, gap[LOOK_US + 1]; // of whole microseconds; the last: all longer ones
    uint64_t longest_ns;
} look;

static void note_look(void)
{
    uint64_t now = clock_thread_cpu_ns(), gap = now - look.last_ns;
    if (look.last_ns) look.gap[gap / 1000 < LOOK_US ? gap / 1000 : LOOK_US]++;
    if (look.last_ns && gap > look.longest_ns) look.longest_ns = gap;
    look.last_ns = now;
}

static void say_looks(void)
{
    static const unsigned steps[] = {2, 5, 10, 15, 20, 25, 30, 40, LOOK_US, LOOK_US + 1};
    uint64_t busy = 0, sum = 0;
    for (unsigned us = 2; us <= LOOK_US; us++) busy += look.gap[us]; // shorter ones: it had nothing to do
    for (unsigned i = 0, us = 2; i < sizeof steps / sizeof *steps; i++) {
        for (; us < steps[i]; us++) sum += look.gap[us];
        if (steps[i] > 2 && steps[i] <= LOOK_US)
            fprintf(stderr, "looks within %u us: %.3f %%\n", steps[i],
                    100.0 * (double)sum / (double)(busy + !busy));
    }
    fprintf(stderr, "looks: %llu gaps of 2 us and more, the longest %.1f us\n", (unsigned long long)busy,
            (double)look.longest_ns * 1e-3);
}

/* ---- the NIC ---- */

/* memif's driver frees its rings when the other end goes, in EAL's interrupt thread, whoever is looking into
 * them. So that thread says when it has something to do and waits until no burst is under way; what wants to
 * begin one finds nothing, or no room, until it is done. */
static atomic_bool interrupted, bursting;

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    atomic_store(&interrupted, false);
    int n = epoll_pwait(fd, events, most, timeout, NULL);
    atomic_store(&interrupted, true);
    while (atomic_load(&bursting)) sched_yield();
    return n;
}

static bool burst_begin(void)
{
    atomic_store(&bursting, true);
    if (!atomic_load(&interrupted)) return true;
    atomic_store(&bursting, false);
    return false;
}

static void burst_end(void)
{
    atomic_store(&bursting, false);
}

static uint32_t dpdk_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    if (look.wanted) note_look();
    while (the.lents) rte_pktmbuf_free(the.lent[--the.lents]);
    if (!burst_begin()) return 0;
    the.lents = rte_eth_rx_burst(the.device, 0, the.lent, (uint16_t)(max < BATCH ? max : BATCH));
    burst_end();
    for (uint16_t i = 0; i < the.lents; i++)
        out[i] = (struct frame){rte_pktmbuf_mtod(the.lent[i], uint8_t *), the.lent[i]->data_len};
    the.stats.in += the.lents;
    return the.lents;
}

static uint32_t dpdk_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    for (uint32_t i = 0; i < count; i++) {
        struct rte_mbuf *m = rte_pktmbuf_alloc(the.pool);
        if (!m) return i;
        memcpy(rte_pktmbuf_append(m, (uint16_t)f[i].bytes), f[i].data, f[i].bytes);
        bool taken = false;
        if (burst_begin()) {
            taken = rte_eth_tx_burst(the.device, 0, &m, 1) == 1;
            burst_end();
        }
        if (!taken) {
            rte_pktmbuf_free(m);
            return i;
        }
        the.stats.out++;
    }
    return count;
}

static uint32_t dpdk_mbps(void *self)
{
    (void)self;
    struct rte_eth_link link;
    return rte_eth_link_get_nowait(the.device, &link) == 0 ? link.link_speed : 0;
}

static void dpdk_stats(void *self, struct nic_stats *out)
{
    (void)self;
    *out = the.stats;
}

static int open_device(const char *name, struct nic *out)
{
    static const struct rte_eth_conf conf;
    struct rte_ether_addr mac;
    the.pool = rte_pktmbuf_pool_create("duck", BUFFERS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!the.pool || rte_eth_dev_get_port_by_name(name, &the.device) ||
        rte_eth_dev_configure(the.device, 1, 1, &conf) ||
        rte_eth_rx_queue_setup(the.device, 0, DESCRIPTORS, 0, NULL, the.pool) ||
        rte_eth_tx_queue_setup(the.device, 0, DESCRIPTORS, 0, NULL) || rte_eth_dev_start(the.device) ||
        rte_eth_macaddr_get(the.device, &mac))
        return -1;
    *out = (struct nic){
        .mtu = 1500, .recv = dpdk_recv, .send = dpdk_send, .link_mbps = dpdk_mbps, .stats = dpdk_stats};
    memcpy(out->mac, mac.addr_bytes, sizeof out->mac);
    return 0;
}

static int start_eal(const char *device)
{
    char vdev[256], prefix[64], lcores[64]; // its CPUs: whichever are free
    snprintf(vdev, sizeof vdev, "--vdev=%s", device);
    snprintf(prefix, sizeof prefix, "--file-prefix=duck%d", (int)getpid());
    snprintf(lcores, sizeof lcores, "--lcores=0@(0-%ld)", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    char *argument[] = {"duck-dpdk",   lcores,           "--no-huge",         "-m",   "64", "--no-pci",
                        "--no-shconf", "--no-telemetry", "--log-level=error", prefix, vdev, NULL};
    return rte_eal_init(sizeof argument / sizeof *argument - 1, argument) < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    static struct platform platform;
    static struct nic nic;
    static struct net net;
    uint8_t key[16];
    struct in_addr address;
    look.wanted = argc == 6 && strcmp(argv[5], "looks") == 0;
    if (argc != 5 + look.wanted || inet_pton(AF_INET, argv[2], &address) != 1 ||
        strlen(argv[3]) != 2 * sizeof key) {
        fprintf(stderr, "usage: duck-dpdk DEVICE ADDRESS KEY MEGABYTES [looks]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof key; i++)
        if (sscanf(argv[3] + 2 * i, "%2hhx", &key[i]) != 1) return 2;
    char name[64];
    snprintf(name, sizeof name, "%s", argv[1]);
    name[strcspn(name, ",")] = 0;
    if (start_eal(argv[1]) || open_device(name, &nic)) {
        fprintf(stderr, "duck-dpdk: %s cannot be opened\n", argv[1]);
        return 1;
    }
    net_init(&net, &nic, ntohl(address.s_addr), WIRE_DUCK_PORT);
    struct linux_options machine = {.name = "duck-dpdk",
                                    .memory_bytes = (uint64_t)atoi(argv[4]) << 20,
                                    .cores = 1,
                                    .spin_ns = (uint64_t)NEVER_MS * 1000000,
                                    .fd = -1};
    if (platform_linux_open(&platform, &machine)) return 1;
    struct duck_options o = {
        .platform = &platform, .link = &net.link, .flock_key = siphash_key(key), .kernels = fp9_select(NULL)};
    struct duck *d = duck_start(&o);
    if (!d) return 1;
    linux_say("ready");
    duck_run(d, &platform_linux_stop);
    if (look.wanted) say_looks();
    rte_eth_dev_stop(the.device);
    rte_eth_dev_close(the.device);
    rte_eal_cleanup();
    return 0;
}
