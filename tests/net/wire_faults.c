/* wire_faults.c: a bad wire between two interfaces: delays all frames, loses, repeats and reorders some, both
 * ways, by a seed.
 *
 * wire-faults SEED LOSE TWICE ASTRAY JITTER_US LOSE_STEP A B [A B ...]
 * Every frame takes 0 .. JITTER_US, drawn anew, but in a direction none arrives before one that went earlier:
 * jitter as of a queue. LOSE, TWICE, ASTRAY: share of all frames; those astray keep no order: they arrive
 * when their own time is over and overtake what queues. LOSE_STEP: share of steps whose broadcast is lost
 * whole. Runs until SIGTERM, then says what it did.
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "duck/wire.h"
#include "host/util/clock.h"
#include "tests/fp9/fp9_random.h"

enum { PAIRS = 8, ROOM = 9300, HEADERS = 42 };

struct held {
    uint64_t at;
    int fd;
    uint32_t bytes;
    uint8_t *data;
};

static struct {
    uint64_t seed;
    double lose, twice, astray, lose_step;
    uint64_t jitter_ns;
    uint64_t queue_ns[2 * PAIRS]; // when the last one that keeps its order arrives
    int fd[2 * PAIRS];
    int count;
    uint32_t lost_step[2 * PAIRS];
    struct held *held; // ascending by time
    size_t helds, room;
    uint64_t frames, lost, repeated, overtook, steps_lost, delayed, delays_ns;
} wire;

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static int chance(double p)
{
    return p > 0 && (double)(random_next(&wire.seed) >> 11) * 0x1p-53 < p;
}

static int open_interface(const char *name)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
    struct sockaddr_ll a = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    struct packet_mreq all = {.mr_ifindex = a.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    int bytes = 32 << 20;
    if (fd < 0 || a.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
        fprintf(stderr, "wire-faults: %s: %s\n", name, strerror(errno));
        exit(1);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    return fd;
}

static void hold(struct held h)
{
    if (wire.helds == wire.room) {
        wire.room = wire.room ? 2 * wire.room : 64;
        wire.held = realloc(wire.held, wire.room * sizeof *wire.held);
        if (!wire.held) abort();
    }
    size_t i = wire.helds++;
    for (; i > 0 && wire.held[i - 1].at > h.at; i--) wire.held[i] = wire.held[i - 1];
    wire.held[i] = h;
}

static void release(uint64_t now)
{
    size_t n = 0;
    for (; n < wire.helds && wire.held[n].at <= now; n++) {
        if (send(wire.held[n].fd, wire.held[n].data, wire.held[n].bytes, 0) < 0) wire.lost++;
        free(wire.held[n].data);
    }
    wire.helds -= n;
    memmove(wire.held, wire.held + n, wire.helds * sizeof *wire.held);
}

/* Whether it belongs to a broadcast of a step that is lost whole. */
static int of_lost_step(int from, const uint8_t *frame, uint32_t bytes)
{
    struct wire_header h;
    if (bytes < HEADERS + WIRE_HEADER || frame[0] != 0xff) return 0;
    memcpy(&h, frame + HEADERS, sizeof h);
    if (h.magic != WIRE_MAGIC || h.type != WIRE_STEP) return 0;
    if (h.fragment == 0) {
        wire.lost_step[from] = chance(wire.lose_step) ? h.sequence : 0;
        wire.steps_lost += wire.lost_step[from] != 0;
    }
    return wire.lost_step[from] == h.sequence;
}

static void delay(int from, const uint8_t *frame, uint32_t bytes)
{
    uint64_t now = clock_ns(), at = now + random_next(&wire.seed) % (wire.jitter_ns + 1);
    bool astray = chance(wire.astray);
    wire.overtook += astray && at < wire.queue_ns[from];
    if (!astray && at < wire.queue_ns[from]) at = wire.queue_ns[from];
    if (!astray) wire.queue_ns[from] = at;
    struct held h = {at, wire.fd[from ^ 1], bytes, malloc(bytes)};
    if (!h.data) abort();
    memcpy(h.data, frame, bytes);
    hold(h);
    wire.delayed++;
    wire.delays_ns += at - now;
}

static void pass(int from, const uint8_t *frame, uint32_t bytes)
{
    wire.frames++;
    if (of_lost_step(from, frame, bytes) || chance(wire.lose)) {
        wire.lost++;
        return;
    }
    int copies = 1 + chance(wire.twice);
    wire.repeated += (uint64_t)copies - 1;
    for (; copies; copies--) delay(from, frame, bytes);
}

static void drain(int from)
{
    static uint8_t frame[ROOM];
    for (int i = 0; i < 64; i++) {
        struct sockaddr_ll a;
        socklen_t n = sizeof a;
        ssize_t bytes = recvfrom(wire.fd[from], frame, sizeof frame, MSG_DONTWAIT, (struct sockaddr *)&a, &n);
        if (bytes <= 0) return;
        if (a.sll_pkttype != PACKET_OUTGOING) pass(from, frame, (uint32_t)bytes);
    }
}

static void run(void)
{
    struct pollfd p[2 * PAIRS];
    for (int i = 0; i < wire.count; i++) p[i] = (struct pollfd){.fd = wire.fd[i], .events = POLLIN};
    while (!stop) {
        uint64_t now = clock_ns(), wait = wire.helds ? wire.held[0].at - now : 100000000;
        if (wire.helds && wire.held[0].at <= now) wait = 0;
        struct timespec t = {.tv_nsec = (long)(wait < 100000000 ? wait : 100000000)};
        if (ppoll(p, (nfds_t)wire.count, &t, NULL) < 0) continue;
        release(clock_ns());
        for (int i = 0; i < wire.count; i++)
            if (p[i].revents) drain(i);
    }
}

int main(int argc, char **argv)
{
    if (argc < 9 || argc % 2 == 0 || argc - 7 > 2 * PAIRS) {
        fputs("usage: wire-faults SEED LOSE TWICE ASTRAY JITTER_US LOSE_STEP A B [A B ...]\n", stderr);
        return 2;
    }
    wire.seed = strtoull(argv[1], NULL, 10);
    wire.lose = atof(argv[2]);
    wire.twice = atof(argv[3]);
    wire.astray = atof(argv[4]);
    wire.jitter_ns = 1000 * strtoull(argv[5], NULL, 10);
    wire.lose_step = atof(argv[6]);
    for (int i = 7; i < argc; i++) wire.fd[wire.count++] = open_interface(argv[i]);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    run();
    printf("%llu frames: %llu lost, %llu repeated, %llu overtook others, %llu broadcasts of steps lost; "
           "%llu delayed by %llu us on average\n",
           (unsigned long long)wire.frames, (unsigned long long)wire.lost, (unsigned long long)wire.repeated,
           (unsigned long long)wire.overtook, (unsigned long long)wire.steps_lost,
           (unsigned long long)wire.delayed,
           (unsigned long long)(wire.delays_ns / 1000 / (wire.delayed ? wire.delayed : 1)));
    return 0;
}
