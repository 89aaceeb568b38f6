/* places.c: which duck takes which place of the flock's file.
 *
 * A place that names its duck (address, MAC address, name) is its own. Any duck would do for the others, so
 * the one that had such a place last time gets it again: it holds the weights for it, and `flock reboot`
 * means it. Whoever has none gets one that nobody had, and only in the second half of the time for finding
 * one whose duck has not come. The file in the state folder is a preference: without it weights may move,
 * nothing worse. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "host/util/log.h"

#define HEAD "duckd places 1"
#define BY_MAC (1ull << 48)     // who a duck is: its MAC address,
#define BY_ADDRESS (1ull << 49) // or where it is if it does not know that

static bool takes_any(const struct net_match *m)
{
    return !m->address && !m->has_mac && !m->has_name;
}

static uint64_t who(const struct net_peer *from, const struct wire_hello *h)
{
    uint64_t mac = 0;
    for (int i = 0; i < 6; i++) mac = mac << 8 | h->mac[i];
    return mac ? BY_MAC | mac : BY_ADDRESS | (uint64_t)from->address << 16 | from->port;
}

static bool fits(const struct net_match *m, const struct net_peer *from, const struct wire_hello *h)
{
    if (m->address && (m->address != from->address || m->udp != from->port)) return false;
    if (m->has_mac && memcmp(m->mac, h->mac, sizeof m->mac) != 0) return false;
    return !m->has_name || strncmp(m->name, h->name, sizeof m->name) == 0;
}

/* A guest's only place is one of its host's: whether another of those is this duck's. */
static bool has_another(const struct net_port *host, const struct net_duck *place,
                        const struct net_peer *from, const struct wire_hello *h)
{
    for (uint32_t i = 0; i < host->ducks; i++) {
        const struct net_duck *d = host->duck[i];
        bool any = takes_any(d->match);
        if (d->index == place->place) continue;
        if (any ? atomic_load(&d->last) == who(from, h) : fits(d->match, from, h)) return true;
    }
    return false;
}

struct net_duck *net__place_for(const struct net_port *p, const struct net_peer *from,
                                const struct wire_hello *h)
{
    struct net_duck *free = NULL, *taken = NULL, *own = NULL;
    for (uint32_t i = 0; i < p->ducks; i++) {
        struct net_duck *d = p->duck[i];
        if (d->gone || atomic_load(&d->state) != NET_UNKNOWN || d->hello.boot_id || !fits(d->match, from, h))
            continue;
        if (!takes_any(d->match)) return d;
        uint64_t last = atomic_load(&d->last);
        struct net_duck **as = last == who(from, h) ? &own : last ? &taken : &free;
        if (!*as) *as = d;
    }
    if (own) return own;
    if (p->host) {
        struct net_duck *d = free ? free : taken;
        return d && !has_another(p->host, d, from, h) ? d : NULL;
    }
    return free ? free : p->looked_long ? taken : NULL;
}

/* ---- the file ---- */

/* Flocks that share a state folder differ in their ports. */
static void name_file(const struct net_flock *f, char *out, size_t size)
{
    uint32_t about[2 * (NET_MAX_PORTS + 1)], n = 0;
    for (uint32_t i = 0; i < f->ports; i++) {
        about[n++] = f->config->port[i].address;
        about[n++] = f->port[i].ducks;
    }
    snprintf(out, size, "%s-%016" PRIx64, f->config->places,
             wire_object_hash((const uint8_t *)about, n * sizeof *about));
}

static bool any_place(const struct net_flock *f)
{
    for (uint32_t i = 0; *f->config->places && i < f->ducks; i++)
        if (takes_any(f->duck[i].match)) return true;
    return false;
}

void net__places_read(struct net_flock *f)
{
    char path[600], line[64];
    if (!any_place(f)) return;
    name_file(f, path, sizeof path);
    FILE *file = fopen(path, "re");
    if (!file) return;
    bool good = fgets(line, sizeof line, file) && strcmp(line, HEAD "\n") == 0;
    uint32_t place;
    uint64_t duck;
    while (good && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNu32 " %" SCNx64, &place, &duck) != 2 || place >= f->ducks) break;
        if (takes_any(f->duck[place].match)) atomic_store(&f->duck[place].last, duck);
    }
    fclose(file);
}

static void write_file(const struct net_flock *f)
{
    char path[600], beside[610];
    if (!any_place(f)) return;
    name_file(f, path, sizeof path);
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "we");
    bool good = file && fprintf(file, HEAD "\n") > 0;
    for (uint32_t i = 0; good && i < f->ducks; i++) {
        uint64_t last = atomic_load(&f->duck[i].last);
        if (last) good = fprintf(file, "%" PRIu32 " %" PRIx64 "\n", i, last) > 0;
    }
    if (file) good = fclose(file) == 0 && good;
    if (!good || rename(beside, path) != 0)
        log_notice("%s cannot be written: ducks may take other places next time", path);
}

/* True: it is another duck's now. */
static bool keep(struct net_duck *place, const struct net_duck *by)
{
    uint64_t now = who(&by->peer, &by->hello);
    return takes_any(place->match) && atomic_exchange(&place->last, now) != now;
}

void net_keep_places(struct net_flock *f, struct net_flock *host)
{
    if (host) {
        keep(&host->duck[f->duck[0].place], &f->duck[0]);
        return;
    }
    bool changed = false;
    for (uint32_t i = 0; i < f->ducks; i++)
        if (!f->duck[i].gone) changed |= keep(&f->duck[i], &f->duck[i]);
    if (changed) write_file(f);
}
