/* port.c: a port's frames: sealing what goes out, checking and sorting what comes in. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/flock/net/internal.h"

#define IDLE_NS (10 * NET_MS) // longest time between two calls of net_port_work()

uint8_t *net__room(struct net_port *p)
{
    uint8_t *datagram = p->io.buffer(p->io.self);
    return datagram ? datagram + WIRE_HEADER : NULL;
}

void net__send(struct net_port *p, struct net_duck *duck, struct wire_header h, size_t length, bool inside)
{
    struct net_flock *f = p->flock;
    h.length = (uint16_t)length;
    h.source = WIRE_HOST;
    h.session = inside ? f->session : 0;
    uint32_t bytes = wire_seal(p->io.buffer(p->io.self), h, inside ? &f->key : &f->flock_key);
    p->io.send(p->io.self, duck ? &duck->peer : NULL, bytes);
    net__count(&p->frames_out, 1);
    net__count(&p->bytes_out, bytes);
    if (duck) {
        net__count(&duck->count.frames_out, 1);
        net__count(&duck->count.bytes_out, bytes);
    } else {
        net__count(&p->broadcasts, 1);
    }
}

bool net__message(struct net_port *p, struct net_duck *duck, enum wire_type type, uint32_t sequence,
                  const void *payload, size_t length, bool inside)
{
    uint8_t *room = net__room(p);
    if (!room) return false;
    if (length) memcpy(room, payload, length);
    net__send(p, duck, (struct wire_header){.type = (uint8_t)type, .sequence = sequence}, length, inside);
    return true;
}

/* The smallest payload of each type that a duck sends; types it never sends have none. */
static bool is_whole(const struct wire_header *h)
{
    static const uint16_t smallest[WIRE_TYPES] = {
        [WIRE_HELLO] = sizeof(struct wire_hello),
        [WIRE_OPENED] = sizeof(struct wire_opened),
        [WIRE_REFUSED] = sizeof(struct wire_refused),
        [WIRE_PUT_ACK] = sizeof(struct wire_put_ack),
        [WIRE_UNIT_HASHES] = sizeof(struct wire_unit_hashes),
        [WIRE_STEP_ACK] = sizeof(struct wire_step_ack),
        [WIRE_RESULT] = 1,
        [WIRE_STATS_REPLY] = sizeof(struct wire_stats),
        [WIRE_DONE] = sizeof(struct wire_done),
        [WIRE_RESEND] = sizeof(struct wire_resend),
        [WIRE_FAULT] = sizeof(struct wire_fault),
        [WIRE_KAT_REPLY] = sizeof(struct wire_kat),
    };
    return h->length >= smallest[h->type];
}

static void outside(struct net_port *p, const struct net_peer *from, const struct wire_header *h,
                    const uint8_t *payload, uint64_t now)
{
    if (h->type == WIRE_HELLO) {
        struct wire_hello hello;
        memcpy(&hello, payload, sizeof hello);
        net__hello(p, from, &hello);
    } else if (h->type == WIRE_REFUSED) {
        struct wire_refused refused;
        memcpy(&refused, payload, sizeof refused);
        net__refused(p, from, &refused, now);
    } else if (h->type == WIRE_STATS_REPLY || h->type == WIRE_KAT_REPLY || h->type == WIRE_POWER_ACK) {
        net__care_answer(p, from, h, payload);
    }
}

static void inside(struct net_duck *d, const struct wire_header *h, const uint8_t *payload, uint64_t now)
{
    union {
        struct wire_opened opened;
        struct wire_put_ack put_ack;
        struct wire_step_ack step_ack;
        struct wire_done done;
        struct wire_fault fault;
        struct wire_kat kat;
    } u;
    memcpy(&u, payload, h->length < sizeof u ? h->length : sizeof u);
    switch (h->type) {
    case WIRE_OPENED:
        net__opened(d, &u.opened, now);
        return;
    case WIRE_CLOSED:
        atomic_store(&d->state, NET_CLOSED);
        return;
    case WIRE_PUT_ACK:
        net__put_ack(d, &u.put_ack, now);
        return;
    case WIRE_UNIT_HASHES:
        net__unit_hashes(d, payload, h->length, now);
        return;
    case WIRE_STEP_ACK:
        net__step_ack(d, h->sequence, &u.step_ack, now);
        return;
    case WIRE_RESULT:
        net__result(d, h, payload, now);
        return;
    case WIRE_DONE:
        net__done(d, h->sequence, &u.done, now);
        return;
    case WIRE_RESEND:
        net__step_resend(d, h->sequence, payload, h->length);
        return;
    case WIRE_KAT_REPLY:
        net__kat(d, &u.kat, now);
        return;
    case WIRE_FAULT:
        net__fault(d, &u.fault);
        return;
    default:
        return; // PONG: that it came is enough
    }
}

/* Whoever looks for ducks cannot use it; a session that runs can go on without. */
static void other_version(struct net_port *p, const struct net_peer *from, const struct wire_header *h)
{
    int goal = atomic_load_explicit(&p->seen_goal, memory_order_relaxed);
    if (h->type != WIRE_HELLO || goal != NET_FIND) return;
    char address[16];
    net_show_address(from->address, address);
    net_fail(p->flock, -EPROTO,
             "the duck at %s speaks version %u of the protocol, this duckd speaks %u: update one of them",
             address, h->version, WIRE_VERSION);
}

void net_port_input(struct net_port *p, const struct net_peer *from, const uint8_t *datagram, size_t bytes,
                    uint64_t now)
{
    struct net_flock *f = p->flock;
    struct wire_header h;
    net__count(&p->frames_in, 1);
    net__count(&p->bytes_in, bytes);
    enum wire_verdict verdict = wire_parse(datagram, bytes, &h);
    struct net_port *guest = atomic_load_explicit(&p->guest, memory_order_acquire);
    // At rest the engine thread rebuilds what a frame would touch, and before OPEN what one of a session
    // would: the session's number, too.
    int goal = atomic_load_explicit(&p->seen_goal, memory_order_relaxed);
    bool ours = verdict == WIRE_OK && goal >= NET_OPEN && h.session == f->session;
    if (guest && verdict == WIRE_OK && !ours) {
        net_port_input(guest, from, datagram, bytes, now);
        if (h.session != 0) return;
    }
    if (verdict == WIRE_OTHER_VERSION && wire_check_tag(datagram, &f->flock_key) == WIRE_OK) {
        other_version(p, from, &h);
        if (guest) other_version(guest, from, &h);
    }
    if (verdict != WIRE_OK || !is_whole(&h)) {
        net__count(&p->malformed, 1);
        return;
    }
    if (goal == NET_REST ||
        (h.session != 0 && (!ours || h.source >= f->ducks || f->duck[h.source].port != p))) {
        net__count(&p->stranger, 1);
        return;
    }
    if (wire_check_tag(datagram, h.session ? &f->key : &f->flock_key) != WIRE_OK) {
        net__count(&p->wrong_tag, 1);
        return;
    }
    if (h.session == 0) {
        outside(p, from, &h, datagram + WIRE_HEADER, now);
        return;
    }
    struct net_duck *d = &f->duck[h.source];
    d->heard_ns = now;
    d->ping = 0;
    net__count(&d->count.frames_in, 1);
    net__count(&d->count.bytes_in, bytes);
    inside(d, &h, datagram + WIRE_HEADER, now);
}

/* While it runs; pings aside. */
static bool awaits(const struct net_port *p)
{
    const struct net_flock *f = p->flock;
    for (uint32_t i = 0; i < p->ducks; i++)
        if (p->duck[i]->actives || atomic_load_explicit(&p->duck[i]->queued, memory_order_relaxed))
            return true;
    for (uint32_t i = 0; i < f->slots; i++)
        if (atomic_load_explicit(&f->slot[i].users, memory_order_relaxed)) return true;
    return false;
}

void net_port_heard(struct net_port *p, const uint8_t mac[6])
{
    for (uint32_t i = 0; i < p->ducks; i++)
        if (p->duck[i]->match->has_mac && memcmp(p->duck[i]->match->mac, mac, 6) == 0)
            atomic_fetch_add_explicit(&p->duck[i]->other_frames, 1, memory_order_relaxed);
}

uint64_t net_port_work(struct net_port *p, uint64_t now)
{
    uint64_t deadline = now + IDLE_NS;
    int goal = atomic_load_explicit(&p->flock->goal, memory_order_acquire);
    atomic_store_explicit(&p->seen_goal, goal, memory_order_release);
    struct net_port *guest = atomic_load_explicit(&p->guest, memory_order_acquire);
    if (guest) net__sooner(&deadline, now + net_port_work(guest, now));
    p->awaits = guest && guest->awaits;
    // Whoever sees the second round from now on may free the guest.
    atomic_fetch_add_explicit(&p->rounds, 1, memory_order_release);
    if (goal == NET_REST) return deadline - now;
    net__session_work(p, goal, now, &deadline);
    if (goal == NET_RUN) net__steps_work(p, now, &deadline);
    for (uint32_t i = 0; i < p->ducks && goal < NET_CLOSE; i++)
        if (!p->duck[i]->gone) net__put_work(p->duck[i], now, &deadline);
    p->awaits |= goal != NET_RUN || awaits(p);
    return deadline > now ? deadline - now : 0;
}

struct net_name net_duck_name(const struct net_duck *d)
{
    struct net_name n;
    char address[16];
    const struct net_match *m = d->match;
    uint32_t a = d->peer.address ? d->peer.address : m->address;
    net_show_address(a, address);
    const char *name = m->has_name ? m->name : d->hello.name;
    if (!a) { // not seen yet
        snprintf(n.s, sizeof n.s, "duck %u (%.31s)", d->index,
                 m->has_mac    ? net_show_mac(m->mac).s
                 : m->has_name ? name
                               : "any");
        return n;
    }
    snprintf(n.s, sizeof n.s, "duck %u (%.31s%s%s:%u)", d->index, name, *name ? ", " : "", address,
             d->peer.port ? d->peer.port : d->match->udp);
    return n;
}
