/* nic_packet.c: frames through an AF_PACKET socket, in batches. */
#include "duck/linux/nic_packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "duck/linux/platform_linux.h"

enum { BATCH = 32, ROOM = 9216, RECEIVE_BUFFER = 8 << 20, UDP_SUM_AT = 40, IP_PROTOCOL_AT = 23 };

static struct {
    int fd;
    char interface[IFNAMSIZ];
    struct nic_stats stats;
    uint8_t frame[BATCH][ROOM];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    } control[BATCH];
} the;

/* A frame that a local socket sent over veth has no checksum yet: its sender's NIC would have made it. */
static void forgive_checksum(struct msghdr *m, uint8_t *frame, uint32_t bytes)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        int udp = bytes > UDP_SUM_AT + 2 && frame[IP_PROTOCOL_AT] == IPPROTO_UDP && frame[14] == 0x45;
        if (aux.tp_status & TP_STATUS_CSUMNOTREADY && udp) memset(frame + UDP_SUM_AT, 0, 2);
    }
}

static uint32_t packet_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self;
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    if (max > BATCH) max = BATCH;
    for (uint32_t i = 0; i < max; i++) {
        v[i] = (struct iovec){the.frame[i], ROOM};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i],
                                            .msg_iovlen = 1,
                                            .msg_control = &the.control[i],
                                            .msg_controllen = sizeof the.control[i]}};
    }
    int n = recvmmsg(the.fd, m, max, MSG_DONTWAIT, NULL);
    uint32_t kept = 0;
    for (int i = 0; i < n; i++) {
        if (m[i].msg_hdr.msg_flags & MSG_TRUNC) { // longer than any frame we asked for
            the.stats.errors++;
            continue;
        }
        forgive_checksum(&m[i].msg_hdr, the.frame[i], m[i].msg_len);
        out[kept++] = (struct frame){the.frame[i], m[i].msg_len};
    }
    the.stats.in += kept;
    return kept;
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
    if (n > 0) the.stats.out += (uint64_t)n;
    return n > 0 ? (uint32_t)n : 0;
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
    if (the.fd >= 0) close(the.fd);
    return -1;
}

int nic_packet_open(struct nic *out, const char *interface, const uint8_t *mac, uint32_t mtu)
{
    struct ifreq r = {0};
    int on = 1, room = RECEIVE_BUFFER;
    the.fd = -1;
    snprintf(the.interface, sizeof the.interface, "%s", interface);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", interface);
    the.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); // protocol 0: receives nothing before bind
    if (the.fd < 0) return failed("packet socket");
    if (ioctl(the.fd, SIOCGIFINDEX, &r) < 0) return failed("no such interface");
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = r.ifr_ifindex};
    *out = (struct nic){
        .recv = packet_recv, .send = packet_send, .link_mbps = packet_mbps, .stats = packet_stats};
    if (ioctl(the.fd, SIOCGIFMTU, &r) < 0) return failed("MTU");
    out->mtu = mtu ? mtu : (uint32_t)r.ifr_mtu;
    if (ioctl(the.fd, SIOCGIFHWADDR, &r) < 0) return failed("MAC address");
    memcpy(out->mac, mac ? mac : (const uint8_t *)r.ifr_hwaddr.sa_data, 6);
    struct packet_mreq all = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    if (mac && setsockopt(the.fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) < 0)
        return failed("promiscuous mode");
    if (setsockopt(the.fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof on) < 0) return failed("PACKET_AUXDATA");
    if (setsockopt(the.fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0)
        return failed("PACKET_IGNORE_OUTGOING");
    if (setsockopt(the.fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) < 0) // else what is allowed
        setsockopt(the.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (bind(the.fd, (struct sockaddr *)&address, sizeof address) < 0) return failed("bind");
    return the.fd;
}
