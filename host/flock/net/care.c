/* care.c: what is asked of ducks outside of a session: counters, the known answer, a restart, power off; and
 * what wakes them. */
#include <string.h>

#include "host/flock/net/internal.h"

#define ASK_EVERY (100 * NET_MS)
#define WAKE_EVERY (1000 * NET_MS)

static struct net_duck *duck_at(struct net_port *p, const struct net_peer *from)
{
    for (uint32_t i = 0; i < p->ducks; i++) {
        const struct net_peer *peer = &p->duck[i]->peer;
        if (peer->address == from->address && peer->port == from->port &&
            memcmp(peer->mac, from->mac, sizeof from->mac) == 0)
            return p->duck[i];
    }
    return NULL;
}

/* A duck that keeps fp9 alone computes the same answer with that. */
static struct wire_kat question(const struct net_duck *d)
{
    const struct wire_kat *kat = &d->port->flock->kat;
    return (struct wire_kat){.seed = kat->seed,
                             .format = d->hello.features & WIRE_E4M3 ? kat->format : (uint32_t)FP9_FP9};
}

/* To the question, and not to one of an earlier daemon. */
static bool answers(const struct net_duck *d, const struct wire_kat *answer)
{
    const struct wire_kat asked = question(d);
    return answer->seed == asked.seed && answer->format == asked.format;
}

void net__care_answer(struct net_port *p, const struct net_peer *from, const struct wire_header *h,
                      const uint8_t *payload)
{
    struct net_duck *d = duck_at(p, from);
    uint32_t what = h->type == WIRE_STATS_REPLY ? NET_WANT_STATS
                    : h->type == WIRE_KAT_REPLY ? NET_WANT_KAT
                                                : p->flock->wants & (NET_WANT_REBOOT | NET_WANT_OFF);
    if (!d || !d->wanted || !(p->flock->wants & what) || atomic_load(&d->has) & what) return;
    if (what == NET_WANT_STATS) memcpy(&d->stats, payload, sizeof d->stats);
    if (what == NET_WANT_KAT) {
        memcpy(&d->kat, payload, sizeof d->kat);
        if (!answers(d, &d->kat)) return;
    }
    atomic_fetch_or(&d->has, what);
}

/* Six bytes of ones and sixteen times the MAC address, anywhere in a frame. */
static void wake(struct net_duck *d)
{
    struct net_io *io = &d->port->io;
    uint8_t *room = io->buffer(io->self);
    if (!room) return;
    memset(room, 0xff, 6);
    for (int i = 1; i <= 16; i++) memcpy(room + 6 * i, d->match->mac, 6);
    io->send(io->self, NULL, 17 * 6);
    net__count(&d->port->frames_out, 1);
}

static void ask(struct net_duck *d, uint32_t missing)
{
    struct net_port *p = d->port;
    const struct wire_kat kat = question(d);
    struct wire_power power = {.action = missing & NET_WANT_OFF ? WIRE_POWER_OFF : WIRE_REBOOT};
    memcpy(power.duck_nonce, d->hello.nonce, sizeof power.duck_nonce);
    if (missing & NET_WANT_STATS) net__message(p, d, WIRE_STATS, ++p->request, NULL, 0, false);
    if (d->hello.holder_session) return; // somebody works with it
    if (missing & NET_WANT_KAT) net__message(p, d, WIRE_KAT, ++p->request, &kat, sizeof kat, false);
    if (missing & (NET_WANT_REBOOT | NET_WANT_OFF))
        net__message(p, d, WIRE_POWER, ++p->request, &power, sizeof power, false);
}

void net__care_work(struct net_duck *d, uint64_t now, uint64_t *deadline)
{
    bool found = atomic_load(&d->state) == NET_FOUND;
    uint32_t wants = d->port->flock->wants,
             missing = wants & ~atomic_load(&d->has) & ~(uint32_t)NET_WANT_WAKE;
    bool sleeps = wants & NET_WANT_WAKE && !found;
    if (!d->wanted || (!sleeps && (!found || !missing))) return;
    if (now >= d->timer_ns) {
        if (sleeps)
            wake(d);
        else
            ask(d, missing);
        d->timer_ns = now + (sleeps ? WAKE_EVERY : ASK_EVERY);
    }
    net__sooner(deadline, d->timer_ns);
}
