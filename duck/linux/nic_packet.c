/* nic_packet.c: frames through an AF_PACKET socket: received from a ring that the kernel fills (no system
 * call while frames come), sent in batches. */
#include "duck/linux/nic_packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "duck/linux/platform_linux.h"

enum {
    BATCH = 32,
    BLOCK = 64 << 10, // of the ring: what the kernel allocates in one piece
    RING = 8 << 20,   // 3 ms of a link of 20 Gb/s, 30 ms of 2.5 Gb/s
    FRAME_AT = 96,    // largest offset of a frame in its slot: the kernel's header, alignment
    ETHER_AND_TAG = 18,
    UDP_SUM_AT = 40,
    IP_PROTOCOL_AT = 23,
    STUCK_NS = 20000000, // a frame that a queue has not taken for so long holds up the others for nothing
};

static struct {
    int fd, index;
    char interface[IFNAMSIZ];
    struct nic_stats stats;
    uint8_t *ring;
    uint32_t slot_bytes, slots, next; // next: that the kernel fills
    uint32_t lent;                    // slots before it that the last recv() handed out
    uint64_t stuck_ns;                // since when the next frame to send has not been taken; 0: it has
    uint32_t hopeless;                // frames of so many bytes or more get one try each; 0: none do
} the;

static struct tpacket2_hdr *slot(uint32_t i)
{
    uint32_t in_block = BLOCK / the.slot_bytes;
    return (struct tpacket2_hdr *)(void *)(the.ring + (size_t)(i / in_block) * BLOCK +
                                           (size_t)(i % in_block) * the.slot_bytes);
}

/* The kernel's word about a slot. */
static _Atomic uint32_t *status_of(struct tpacket2_hdr *h)
{
    return (_Atomic uint32_t *)&h->tp_status;
}

/* A frame that a local socket sent over veth has no checksum yet: its sender's NIC would have made it. */
static void forgive_checksum(uint8_t *frame, uint32_t bytes)
{
    int udp = bytes > UDP_SUM_AT + 2 && frame[IP_PROTOCOL_AT] == IPPROTO_UDP && frame[14] == 0x45;
    if (udp) memset(frame + UDP_SUM_AT, 0, 2);
}

static uint32_t packet_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    for (; the.lent; the.lent--)
        atomic_store_explicit(status_of(slot((the.next + the.slots - the.lent) % the.slots)),
                              TP_STATUS_KERNEL, memory_order_release);
    uint32_t kept = 0;
    while (the.lent < max) {
        struct tpacket2_hdr *h = slot(the.next);
        uint32_t status = atomic_load_explicit(status_of(h), memory_order_acquire);
        if (!(status & TP_STATUS_USER)) break;
        the.next = (the.next + 1) % the.slots;
        the.lent++;
        if (h->tp_snaplen < h->tp_len) { // longer than any frame we asked for
            the.stats.errors++;
            continue;
        }
        uint8_t *frame = (uint8_t *)h + h->tp_mac;
        if (status & TP_STATUS_CSUMNOTREADY) forgive_checksum(frame, h->tp_len);
        out[kept++] = (struct frame){frame, h->tp_len};
    }
    the.stats.in += kept;
    return kept;
}

/* What the kernel calls "no buffers" may be a queue that is full, or a frame that will never pass: too long
 * for the other end of a veth. True: it is given up, and whatever is as long at its first failure, or else a
 * host that asks again and again for what cannot come takes all of the duck's time. */
static bool is_hopeless(uint32_t bytes)
{
    if (the.hopeless && bytes >= the.hopeless) return true;
    const uint64_t now = linux_clock_ns();
    if (the.stuck_ns == 0) the.stuck_ns = now;
    if (now - the.stuck_ns <= STUCK_NS) return false;
    the.stuck_ns = 0;
    the.hopeless = bytes;
    return true;
}

/* Frames that were taken: what is as long may hope again. */
static void taken(const struct frame *f, uint32_t count)
{
    the.stuck_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        if (f[i].bytes >= the.hopeless) the.hopeless = 0;
    the.stats.out += count;
}

static uint32_t packet_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    if (count > BATCH) count = BATCH;
    for (uint32_t i = 0; i < count; i++) {
        v[i] = (struct iovec){f[i].data, f[i].bytes};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}};
    }
    int n = sendmmsg(the.fd, m, count, MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != ENOBUFS) { // link down and the like: a NIC would lose them too
        the.stats.errors += count;
        return count;
    }
    if (n < 0 && (errno != ENOBUFS || !is_hopeless(f[0].bytes))) return 0;
    if (n < 0) {
        the.stats.errors++;
        return 1;
    }
    taken(f, (uint32_t)n);
    return (uint32_t)n;
}

static uint32_t packet_mbps(void *self)
{
    (void)self;
    char path[64];
    unsigned mbps = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", the.interface);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%u", &mbps) != 1) mbps = 0;
    fclose(f);
    return mbps;
}

static void packet_stats(void *self, struct nic_stats *out)
{
    (void)self;
    struct tpacket_stats st;
    socklen_t size = sizeof st;
    if (getsockopt(the.fd, SOL_PACKET, PACKET_STATISTICS, &st, &size) == 0) the.stats.dropped += st.tp_drops;
    *out = the.stats;
}

static int failed(const char *what)
{
    linux_say("%s: %s: %s", the.interface, what, strerror(errno));
    if (the.ring) munmap(the.ring, RING);
    if (the.fd >= 0) close(the.fd);
    return -1;
}

static int map_ring(uint32_t mtu)
{
    int version = TPACKET_V2;
    the.slot_bytes =
        (mtu + ETHER_AND_TAG + FRAME_AT + TPACKET_ALIGNMENT - 1) / TPACKET_ALIGNMENT * TPACKET_ALIGNMENT;
    the.slots = RING / BLOCK * (BLOCK / the.slot_bytes);
    struct tpacket_req r = {.tp_block_size = BLOCK,
                            .tp_block_nr = RING / BLOCK,
                            .tp_frame_size = the.slot_bytes,
                            .tp_frame_nr = the.slots};
    if (setsockopt(the.fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0 ||
        setsockopt(the.fd, SOL_PACKET, PACKET_RX_RING, &r, sizeof r) < 0)
        return -1;
    void *ring = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED, the.fd, 0);
    if (ring == MAP_FAILED) return -1;
    the.ring = ring;
    return 0;
}

int nic_packet_open(struct nic *out, const char *interface, const uint8_t *mac, uint32_t mtu)
{
    struct ifreq r = {0};
    int on = 1;
    the.fd = -1;
    snprintf(the.interface, sizeof the.interface, "%s", interface);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", interface);
    the.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); // protocol 0: receives nothing before bind
    if (the.fd < 0) return failed("packet socket");
    if (ioctl(the.fd, SIOCGIFINDEX, &r) < 0) return failed("no such interface");
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = r.ifr_ifindex};
    the.index = r.ifr_ifindex;
    *out = (struct nic){
        .recv = packet_recv, .send = packet_send, .link_mbps = packet_mbps, .stats = packet_stats};
    if (ioctl(the.fd, SIOCGIFMTU, &r) < 0) return failed("MTU");
    out->mtu = mtu ? mtu : (uint32_t)r.ifr_mtu;
    if (ioctl(the.fd, SIOCGIFHWADDR, &r) < 0) return failed("MAC address");
    memcpy(out->mac, mac ? mac : (const uint8_t *)r.ifr_hwaddr.sa_data, 6);
    struct packet_mreq all = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    if (mac && setsockopt(the.fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) < 0)
        return failed("promiscuous mode");
    if (setsockopt(the.fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0)
        return failed("PACKET_IGNORE_OUTGOING");
    if (map_ring(out->mtu) < 0) return failed("receive ring");
    if (bind(the.fd, (struct sockaddr *)&address, sizeof address) < 0) return failed("bind");
    return the.fd;
}

int nic_packet_gone(int error)
{
    char name[IF_NAMESIZE];
    if (if_indextoname((unsigned)the.index, name)) {
        if (error == ENETDOWN) linux_say("the interface %s is down", name);
        return 0; // it may come back, and the socket with it
    }
    linux_say("the interface %s is gone: this duck ends", the.interface);
    return 1;
}
