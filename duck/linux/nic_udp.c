/* nic_udp.c: datagrams through a UDP socket, in batches. */
#include "duck/linux/nic_udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "duck/linux/platform_linux.h"
#include "duck/wire.h"

enum { BATCH = 32, ROOM = WIRE_DATAGRAM_MAX + 1, RECEIVE_BUFFER = 8 << 20 };

static struct {
    int fd;
    struct link_state state;
    uint8_t datagram[BATCH][ROOM];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(uint32_t))];
    } control[BATCH];
} the;

static uint32_t udp_recv(void *self, struct datagram *out, uint32_t max)
{
    (void)self;
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    struct sockaddr_in from[BATCH] = {0};
    if (max > BATCH) max = BATCH;
    for (uint32_t i = 0; i < max; i++) {
        v[i] = (struct iovec){the.datagram[i], ROOM};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_name = &from[i],
                                            .msg_namelen = sizeof from[i],
                                            .msg_iov = &v[i],
                                            .msg_iovlen = 1,
                                            .msg_control = &the.control[i],
                                            .msg_controllen = sizeof the.control[i]}};
    }
    int n = recvmmsg(the.fd, m, max, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        out[i] = (struct datagram){
            .peer = {.address = ntohl(from[i].sin_addr.s_addr), .port = ntohs(from[i].sin_port)},
            .bytes = m[i].msg_len, // one longer than allowed is cut to one byte more: malformed
            .data = the.datagram[i]};
        struct cmsghdr *c = CMSG_FIRSTHDR(&m[i].msg_hdr);
        if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_RXQ_OVFL) continue;
        uint32_t dropped;
        memcpy(&dropped, CMSG_DATA(c), sizeof dropped);
        the.state.dropped = dropped;
    }
    return n > 0 ? (uint32_t)n : 0;
}

static uint32_t udp_send(void *self, struct datagram *d, uint32_t count)
{
    (void)self;
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    struct sockaddr_in to[BATCH];
    if (count > BATCH) count = BATCH;
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (struct sockaddr_in){.sin_family = AF_INET,
                                     .sin_port = htons(d[i].peer.port),
                                     .sin_addr.s_addr = htonl(d[i].peer.address)};
        v[i] = (struct iovec){d[i].data, d[i].bytes};
        m[i] = (struct mmsghdr){
            .msg_hdr = {.msg_name = &to[i], .msg_namelen = sizeof to[i], .msg_iov = &v[i], .msg_iovlen = 1}};
    }
    int n = sendmmsg(the.fd, m, count, MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != ENOBUFS)
        return 1; // nobody there: this one is lost, as on a wire
    return n > 0 ? (uint32_t)n : 0;
}

static void udp_state(void *self, struct link_state *out)
{
    (void)self;
    *out = the.state;
}

int nic_udp_open(struct link *out, uint32_t address, uint16_t port, uint32_t mtu)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
    int on = 1, room = RECEIVE_BUFFER, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        linux_say("UDP socket: %s", strerror(errno));
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on); // counts losses; without, they are not counted
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) < 0) // else what is allowed
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        char text[INET_ADDRSTRLEN];
        linux_say("UDP %s:%u: %s", inet_ntop(AF_INET, &a.sin_addr, text, sizeof text), port, strerror(errno));
        close(fd);
        return -1;
    }
    the.fd = fd;
    the.state.payload = wire_payload_of_mtu(mtu);
    *out = (struct link){.recv = udp_recv, .send = udp_send, .state = udp_state};
    return fd;
}
