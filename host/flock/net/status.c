/* status.c: finds ducks, asks, and goes. */
#include "host/flock/net/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "duck/kat.h"
#include "host/flock/net/workers.h"
#include "host/flock/transport.h"
#include "host/util/clock.h"

#define AGAIN_NS 1000000000ull // for counters that were told once

/* All that a duck can be expected to answer. */
static bool is_done(const struct net_flock *f, const struct net_duck *d)
{
    uint32_t wants = f->wants & ~(uint32_t)NET_WANT_WAKE;
    if (atomic_load(&d->state) < NET_FOUND) return !d->wanted;
    if (d->hello.holder_session) wants &= NET_WANT_STATS;
    return !d->wanted || (atomic_load(&d->has) & wants) == wants;
}

/* Asks those that have told their counters again: a duck tells its clock since it was last asked, and in
 * between it has computed the known answer. Here, because DPDK can be started once only. */
static void ask_again(struct net_flock *f, struct net_status *out)
{
    for (uint32_t i = 0; i < f->ducks; i++)
        out[i].counted = atomic_fetch_and(&f->duck[i].has, ~(uint32_t)NET_WANT_STATS) & NET_WANT_STATS;
}

static void note_found(const struct net_flock *f, struct net_status *out, uint64_t begun)
{
    for (uint32_t i = 0; i < f->ducks; i++)
        if (out[i].found_s == 0 && atomic_load(&f->duck[i].state) >= NET_FOUND)
            out[i].found_s = (double)(clock_ns() - begun) * 1e-9;
}

static void copy(const struct net_flock *f, const struct flock_spec *spec, uint64_t log_from,
                 struct net_status *out)
{
    struct net_boot_history boot[FLOCK_MAX_DUCKS];
    if (f->config->boot) net_boot_look_up(f->config, log_from, boot);
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct net_duck *d = &f->duck[i];
        struct net_status *s = &out[i];
        uint32_t has = atomic_load(&d->has);
        *s = (struct net_status){.port = d->match->port,
                                 .wanted = d->wanted,
                                 .found = atomic_load(&d->state) >= NET_FOUND,
                                 .counted = s->counted || has & NET_WANT_STATS,
                                 .tested = has & NET_WANT_KAT,
                                 .sound = has & NET_WANT_KAT && d->kat.hash == f->kat.hash,
                                 .format = (enum fp9_format)d->kat.format,
                                 .obeys = has & (NET_WANT_REBOOT | NET_WANT_OFF),
                                 .found_s = s->found_s,
                                 .has_mac = d->match->has_mac,
                                 .serves = f->config->boot && d->port->index < f->wires,
                                 .port_down = atomic_load(&d->port->link_down),
                                 .other_frames = atomic_load(&d->other_frames),
                                 .address = d->match->address,
                                 .udp = d->match->udp};
        if (s->serves) s->boot = boot[i];
        snprintf(s->name, sizeof s->name, "%s", spec->duck[i].name);
        if (!s->found) continue;
        s->address = d->peer.address;
        s->udp = d->peer.port;
        s->hello = d->hello;
        if (s->counted) s->stats = d->stats;
    }
}

static int prepare(struct net_flock *f, uint32_t wants, enum fp9_format format, const bool *wanted,
                   struct error *err)
{
    f->wants = wants;
    for (uint32_t i = 0; i < f->ducks; i++)
        f->duck[i].wanted =
            (!wanted || wanted[i]) && f->config->match[i].port < f->wires; // not the host's own
    if (!(wants & NET_WANT_KAT)) return 0;
    void *memory = aligned_alloc(64, KAT_MEMORY);
    if (!memory) return error_set(err, -ENOMEM, "no memory for the known-answer test");
    f->kat.seed = clock_ns();
    f->kat.format = format;
    f->kat.hash = kat_hash(&fp9_scalar, format, memory, f->kat.seed);
    free(memory);
    return 0;
}

int net_look(const struct flock_spec *spec, uint32_t wants, enum fp9_format format, const bool *wanted,
             uint32_t ms, struct net_status **out, struct error *err)
{
    const struct net_workers *workers =
        spec->transport == &transport_dpdk ? &net_workers_dpdk : &net_workers_udp;
    struct net_flock f;
    void *running = NULL;
    *out = calloc(spec->ducks, sizeof **out);
    if (!*out) return error_set(err, -ENOMEM, "no memory for the status of %u ducks", spec->ducks);
    uint64_t log_from = wants & NET_WANT_WAKE ? net_boot_log_end(spec->net) : 0;
    int rc = net_flock_init(&f, spec->net, err);
    if (!rc) rc = prepare(&f, wants, format, wanted, err);
    if (!rc) rc = workers->start(&running, &f, err);
    uint64_t begun = clock_ns(), until = begun + 1000000ull * ms;
    bool again = wants & NET_WANT_KAT;
    for (bool done = false; !rc && !done && clock_ns() < until;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        note_found(&f, *out, begun);
        done = true;
        for (uint32_t i = 0; i < f.ducks; i++) done &= is_done(&f, &f.duck[i]);
        if (!again || (!done && clock_ns() < until)) continue;
        again = done = false;
        ask_again(&f, *out);
        until = clock_ns() + AGAIN_NS;
    }
    if (running) workers->stop(running); // nothing changes from here on
    if (!rc) copy(&f, spec, log_from, *out);
    net_flock_free(&f);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}
