/* worker.c: an lcore's loop: frames in, the protocol's work, frames out; sleeps only when nothing has
 * happened for a while, the longer the longer that is, and never in poll mode. */
#include <linux/futex.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host/flock/dpdk/dpdk.h"
#include "host/util/clock.h"

#define SPIN_NS 20000u       // without a frame before sleeping
#define NAP_NS 10000u        // first sleeps: what an answer to a step may cost more
#define LONG_NAP_NS 200000u  // of an answer that takes long
#define QUIET_NS 50000000u   // which is this
#define IDLE_NAP_NS 4000000u // where nobody waits for ducks: 250 looks a second take less than 1 % of a CPU
#define IDLE_NS 5000000u     // after so long without a frame
#define TIMER_SLACK_NS 1000u // the default of 50 us would make every nap that long

/* ---- out ---- */

static void flush(struct dpdk_port *p)
{
    if (p->pendings == 0) return;
    uint16_t sent = rte_eth_tx_burst(p->device, 0, p->pending, p->pendings);
    p->pendings = (uint16_t)(p->pendings - sent);
    if (sent) memmove(p->pending, p->pending + sent, p->pendings * sizeof *p->pending);
}

static uint8_t *buffer(void *self)
{
    struct dpdk_port *p = self;
    if (p->pendings == DPDK_PENDING) flush(p);
    if (p->pendings == DPDK_PENDING) return NULL;
    if (!p->room) p->room = rte_pktmbuf_alloc(p->pool);
    return p->room ? rte_pktmbuf_mtod(p->room, uint8_t *) + FRAME_HEADERS : NULL;
}

static void send_room(void *self, const struct net_peer *to, uint32_t bytes)
{
    struct dpdk_port *p = self;
    uint32_t length = frame_write(&p->self, to, rte_pktmbuf_mtod(p->room, uint8_t *), bytes);
    p->room->data_len = (uint16_t)length;
    p->room->pkt_len = length;
    p->pending[p->pendings++] = p->room;
    p->room = NULL;
    if (p->pendings % DPDK_BURST == 0) flush(p);
}

/* ---- in ---- */

static void answer_arp(struct dpdk_port *p, const uint8_t *request)
{
    uint8_t *room = buffer(p);
    if (!room) return;
    frame_answer_arp(&p->self, request, rte_pktmbuf_mtod(p->room, uint8_t *));
    p->room->data_len = FRAME_ARP;
    p->room->pkt_len = FRAME_ARP;
    p->pending[p->pendings++] = p->room;
    p->room = NULL;
}

/* True: the frame has a new owner. */
static bool take(struct dpdk_port *p, struct rte_mbuf *m, uint64_t now)
{
    struct net_peer from;
    const uint8_t *payload, *frame = rte_pktmbuf_mtod(m, uint8_t *);
    size_t length;
    enum frame_kind kind =
        m->nb_segs == 1 ? frame_read(&p->self, frame, m->data_len, &from, &payload, &length) : FRAME_OTHER;
    if (kind == FRAME_OURS) {
        net_port_input(p->port, &from, payload, length, now);
        return false;
    }
    atomic_fetch_add_explicit(&p->other, 1, memory_order_relaxed);
    if (m->data_len >= 12) net_port_heard(p->port, frame + 6);
    if (p->tap != RTE_MAX_ETHPORTS) return rte_eth_tx_burst(p->tap, 0, &m, 1) == 1;
    if (kind == FRAME_ASKS) answer_arp(p, frame);
    return false;
}

static uint16_t receive(struct dpdk_port *p)
{
    struct rte_mbuf *in[DPDK_BURST];
    uint16_t n = rte_eth_rx_burst(p->device, 0, in, DPDK_BURST);
    if (n == 0) return 0;
    uint64_t now = clock_ns();
    for (uint16_t i = 0; i < n; i++)
        if (!take(p, in[i], now)) rte_pktmbuf_free(in[i]);
    return n;
}

/* What the kernel sends through the tap. */
static uint16_t forward_tap(struct dpdk_port *p)
{
    if (p->tap == RTE_MAX_ETHPORTS || p->pendings > DPDK_PENDING - DPDK_BURST) return 0;
    uint16_t n = rte_eth_rx_burst(p->tap, 0, p->pending + p->pendings, DPDK_BURST);
    p->pendings = (uint16_t)(p->pendings + n);
    return n;
}

/* ---- the loop ---- */

/* Ends early when the bell is no longer `seen`: a step shall not wait for the end of a nap. */
static void nap(struct dpdk_port *p, uint32_t seen, uint64_t idle_ns, uint64_t may_ns)
{
    uint64_t ns = idle_ns > QUIET_NS ? LONG_NAP_NS : NAP_NS;
    if (!p->port->awaits && idle_ns > IDLE_NS) ns = IDLE_NAP_NS;
    if (ns > may_ns) ns = may_ns;
    if (ns == 0) return;
    const struct timespec t = {.tv_nsec = (long)ns};
    atomic_store(&p->asleep, true);
    syscall(SYS_futex, &p->bell, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
    atomic_store(&p->asleep, false);
}

void dpdk_port_wake(struct dpdk_port *p)
{
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->asleep)) syscall(SYS_futex, &p->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int dpdk_work(void *arg)
{
    struct dpdk_port *p = arg;
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    p->port->io = (struct net_io){.self = p, .buffer = buffer, .send = send_room};
    uint64_t busy_ns = clock_ns();
    while (!atomic_load_explicit(p->stop, memory_order_relaxed)) {
        uint32_t seen = atomic_load(&p->bell); // before the look at what the engine thread wants
        uint16_t frames = (uint16_t)(receive(p) + forward_tap(p));
        uint64_t now = clock_ns(), may_ns = net_port_work(p->port, now);
        if (p->pendings) frames++;
        flush(p);
        if (frames) busy_ns = now;
        if (!p->poll && now - busy_ns > SPIN_NS && p->pendings == 0) nap(p, seen, now - busy_ns, may_ns);
    }
    for (uint16_t i = 0; i < p->pendings; i++) rte_pktmbuf_free(p->pending[i]);
    if (p->room) rte_pktmbuf_free(p->room);
    p->pendings = 0;
    p->room = NULL;
    DPDK_WORKER_ENDS(p);
    return 0;
}
