/* udp.c: ports as UDP sockets, one thread for all of them. For machines and tests without DPDK. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "host/flock/net/workers.h"
#include "host/util/clock.h"

#define ROOMS 64u // datagrams sent by one call
#define BATCH 32u // datagrams received by one call
#define SOCKET_BYTES (32 << 20)
#define SEND_WAIT_US 100000 // for room in the socket, longer than a switch pauses a link

struct udp_port {
    struct net_port *port;
    int fd;
    uint32_t broadcast;
    uint32_t rooms, messages, most;
    uint8_t *room;         // (ROOMS, WIRE_DATAGRAM_MAX)
    struct mmsghdr *out;   // (most)
    struct iovec *out_vec; // (most)
    struct sockaddr_in *to;
    struct mmsghdr in[BATCH];
    struct iovec in_vec[BATCH];
    struct sockaddr_in from[BATCH];
    uint8_t *in_bytes; // (BATCH, WIRE_DATAGRAM_MAX + 1)
};

struct udp {
    struct net_flock *flock;
    struct udp_port *port;
    pthread_t thread;
    bool running;
    int wake_fd;
    _Atomic bool stop;
};

static struct sockaddr_in address_of(uint32_t address, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(address)}};
}

/* ---- sending ---- */

static void flush(struct udp_port *u)
{
    for (uint32_t at = 0; at < u->messages;) {
        int n = sendmmsg(u->fd, u->out + at, u->messages - at, 0);
        // One that cannot be sent (no route, refused by a peer that is gone) is lost like any other frame;
        // so are all while the link takes nothing.
        if (n < 0 && errno == EAGAIN) break;
        at += n > 0 ? (uint32_t)n : 1;
    }
    u->messages = u->rooms = 0;
}

static uint8_t *buffer(void *self)
{
    struct udp_port *u = self;
    if (u->rooms == ROOMS || u->messages + u->port->ducks + 1 > u->most) flush(u);
    return u->room + (size_t)u->rooms * WIRE_DATAGRAM_MAX;
}

static void add(struct udp_port *u, struct sockaddr_in to, uint32_t bytes)
{
    uint32_t i = u->messages++;
    u->to[i] = to;
    u->out_vec[i] = (struct iovec){u->room + (size_t)u->rooms * WIRE_DATAGRAM_MAX, bytes};
    u->out[i] = (struct mmsghdr){.msg_hdr = {.msg_name = &u->to[i],
                                             .msg_namelen = sizeof u->to[i],
                                             .msg_iov = &u->out_vec[i],
                                             .msg_iovlen = 1}};
}

static void send_room(void *self, const struct net_peer *to, uint32_t bytes)
{
    struct udp_port *u = self;
    if (to) {
        add(u, address_of(to->address, to->port), bytes);
    } else if (u->broadcast) {
        add(u, address_of(u->broadcast, WIRE_DUCK_PORT), bytes);
    } else {
        for (uint32_t i = 0; i < u->port->ducks; i++) {
            if (u->port->duck[i]->gone) continue;
            const struct net_peer *peer = &u->port->duck[i]->peer;
            add(u, address_of(peer->address, peer->port), bytes);
        }
    }
    u->rooms++;
}

/* ---- the thread ---- */

static bool receive(struct udp_port *u)
{
    int n = recvmmsg(u->fd, u->in, BATCH, MSG_DONTWAIT, NULL);
    uint64_t now = clock_ns();
    for (int i = 0; i < n; i++) {
        struct net_peer from = {.address = ntohl(u->from[i].sin_addr.s_addr),
                                .port = ntohs(u->from[i].sin_port)};
        net_port_input(u->port, &from, u->in_vec[i].iov_base, u->in[i].msg_len, now);
        u->in[i].msg_hdr.msg_namelen = sizeof u->from[i];
    }
    return n > 0;
}

static void *work(void *arg)
{
    struct udp *u = arg;
    struct pollfd fds[NET_MAX_PORTS + 1];
    uint32_t ports = u->flock->wires;
    for (uint32_t i = 0; i < ports; i++) fds[i] = (struct pollfd){.fd = u->port[i].fd, .events = POLLIN};
    fds[ports] = (struct pollfd){.fd = u->wake_fd, .events = POLLIN};
    while (!atomic_load(&u->stop)) {
        bool busy = false;
        uint64_t wait = UINT64_MAX;
        for (uint32_t i = 0; i < ports; i++) {
            busy |= receive(&u->port[i]);
            uint64_t t = net_port_work(u->port[i].port, clock_ns());
            if (t < wait) wait = t;
            flush(&u->port[i]);
        }
        if (busy || wait == 0) continue;
        struct timespec timeout = {.tv_sec = (time_t)(wait / 1000000000),
                                   .tv_nsec = (long)(wait % 1000000000)};
        uint64_t count;
        if (ppoll(fds, ports + 1, &timeout, NULL) > 0 && fds[ports].revents &&
            read(u->wake_fd, &count, sizeof count) < 0)
            break; // cannot happen: it is readable
    }
    return NULL;
}

static void wake(void *self)
{
    struct udp *u = self;
    ssize_t n = write(u->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)n; // full means that the thread is about to wake anyway
}

/* ---- start and stop ---- */

static int open_socket(struct udp_port *u, const struct net_config *c, const struct net_port_config *p,
                       struct error *err)
{
    char address[16];
    net_show_address(p->address, address);
    u->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (u->fd < 0) return error_set(err, -errno, "no UDP socket: %s", strerror(errno));
    int one = 1, bytes = SOCKET_BYTES;
    const struct timeval wait = {.tv_usec = SEND_WAIT_US};
    setsockopt(u->fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof one);
    setsockopt(u->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    // The larger the buffers, the fewer frames are lost; root may exceed the limit.
    if (setsockopt(u->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
        setsockopt(u->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (setsockopt(u->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes))
        setsockopt(u->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    struct sockaddr_in own = address_of(p->address, c->host_udp);
    if (bind(u->fd, (struct sockaddr *)&own, sizeof own))
        return error_set(err, -errno, "UDP port %u of %s cannot be used: %s", c->host_udp, address,
                         strerror(errno));
    return 0;
}

static int open_port(struct udp_port *u, struct net_port *port, struct error *err)
{
    const struct net_config *c = port->flock->config;
    u->port = port;
    u->broadcast = c->port[port->index].broadcast;
    u->most = ROOMS * (u->broadcast ? 1 : port->ducks + 1);
    if (u->most < port->ducks + 2) u->most = port->ducks + 2;
    u->room = malloc((size_t)ROOMS * WIRE_DATAGRAM_MAX);
    u->out = calloc(u->most, sizeof *u->out);
    u->out_vec = calloc(u->most, sizeof *u->out_vec);
    u->to = calloc(u->most, sizeof *u->to);
    u->in_bytes = malloc((size_t)BATCH * (WIRE_DATAGRAM_MAX + 1));
    if (!u->room || !u->out || !u->out_vec || !u->to || !u->in_bytes)
        return error_set(err, -ENOMEM, "no memory for the frames of port %u", port->index);
    for (uint32_t i = 0; i < BATCH; i++) {
        u->in_vec[i] =
            (struct iovec){u->in_bytes + (size_t)i * (WIRE_DATAGRAM_MAX + 1), WIRE_DATAGRAM_MAX + 1};
        u->in[i].msg_hdr = (struct msghdr){.msg_name = &u->from[i],
                                           .msg_namelen = sizeof u->from[i],
                                           .msg_iov = &u->in_vec[i],
                                           .msg_iovlen = 1};
    }
    port->io = (struct net_io){.self = u, .buffer = buffer, .send = send_room};
    return open_socket(u, c, &c->port[port->index], err);
}

static void stop(void *self)
{
    struct udp *u = self;
    if (u->running) {
        atomic_store(&u->stop, true);
        wake(u);
        pthread_join(u->thread, NULL);
    }
    u->flock->wake = NULL;
    for (uint32_t i = 0; u->port && i < u->flock->wires; i++) {
        if (u->port[i].fd >= 0) close(u->port[i].fd);
        free(u->port[i].room);
        free(u->port[i].out);
        free(u->port[i].out_vec);
        free(u->port[i].to);
        free(u->port[i].in_bytes);
    }
    if (u->wake_fd >= 0) close(u->wake_fd);
    free(u->port);
    free(u);
}

static int start(void **out, struct net_flock *f, struct error *err)
{
    struct udp *u = calloc(1, sizeof *u);
    struct udp_port *port = calloc(f->wires, sizeof *port);
    if (!u || !port) {
        free(u);
        free(port);
        return error_set(err, -ENOMEM, "no memory for %u ports", f->wires);
    }
    u->flock = f;
    u->port = port;
    for (uint32_t i = 0; i < f->wires; i++) port[i].fd = -1;
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = u->wake_fd < 0 ? error_set(err, -errno, "no eventfd: %s", strerror(errno)) : 0;
    for (uint32_t i = 0; i < f->wires && !rc; i++) rc = open_port(&port[i], &f->port[i], err);
    if (!rc) {
        f->wake = wake;
        f->wake_self = u;
        rc = -pthread_create(&u->thread, NULL, work, u);
        if (rc) error_set(err, rc, "no thread for the network: %s", strerror(-rc));
        u->running = rc == 0;
    }
    if (rc) {
        stop(u);
        return rc;
    }
    *out = u;
    return 0;
}

const struct net_workers net_workers_udp = {.start = start, .stop = stop};
