/* status.c: finds ducks, asks for their counters, and goes. */
#include "host/flock/net/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/flock/net/backend.h"
#include "host/flock/transport.h"
#include "host/util/clock.h"

static bool all_counted(const struct net_flock *f)
{
    for (uint32_t i = 0; i < f->ducks; i++)
        if (!atomic_load(&f->duck[i].has_stats)) return false;
    return true;
}

static void copy(const struct net_flock *f, const struct flock_spec *spec, struct net_status *out)
{
    for (uint32_t i = 0; i < f->ducks; i++) {
        const struct net_duck *d = &f->duck[i];
        struct net_status *s = &out[i];
        *s = (struct net_status){.port = d->match->port,
                                 .found = atomic_load(&d->state) >= NET_FOUND,
                                 .counted = atomic_load(&d->has_stats),
                                 .address = d->match->address,
                                 .udp = d->match->udp};
        snprintf(s->name, sizeof s->name, "%s", spec->duck[i].name);
        if (!s->found) continue;
        s->address = d->peer.address;
        s->udp = d->peer.port;
        s->hello = d->hello;
        if (s->counted) s->stats = d->stats;
    }
}

int net_status(const struct flock_spec *spec, struct net_status **out, struct error *err)
{
    const struct net_backend *backend =
        spec->transport == &transport_dpdk ? &net_backend_dpdk : &net_backend_udp;
    struct net_flock f;
    void *running = NULL;
    *out = calloc(spec->ducks, sizeof **out);
    if (!*out) return error_set(err, -ENOMEM, "no memory for the status of %u ducks", spec->ducks);
    int rc = net_flock_init(&f, spec->net, err);
    f.wants_stats = true;
    if (!rc) rc = backend->start(&running, &f, err);
    uint64_t until = clock_ns() + 1000000ull * spec->net->find_ms;
    while (!rc && !all_counted(&f) && clock_ns() < until)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (running) backend->stop(running); // nothing changes from here on
    if (!rc) copy(&f, spec, *out);
    net_flock_free(&f);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}
