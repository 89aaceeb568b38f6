/* session.c: finding ducks, opening and keeping the session with them, closing it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "host/util/log.h"

#define DISCOVER_EVERY (100 * NET_MS)
#define GUEST_EVERY (1000 * NET_MS) // nobody waits for a duck that was lost
#define OPEN_EVERY (100 * NET_MS)
#define CLOSE_EVERY (50 * NET_MS)
#define PING_EVERY (1000 * NET_MS)
#define PING_AGAIN (200 * NET_MS) // when one has not been answered
#define UNITS_EVERY (20 * NET_MS)
#define KAT_EVERY (100 * NET_MS)
#define PINGS_BEFORE_LOST 4u // unanswered ones: a host that slept itself does not lose its ducks
#define RENEWED_MS 200u      // a lease that grew by more than this was renewed: its holder lives
#define HASHES(payload) (((payload) - (uint32_t)sizeof(struct wire_unit_hashes)) / 8)

/* ---- finding ---- */

static bool same_peer(const struct net_peer *a, const struct net_peer *b)
{
    return a->address == b->address && a->port == b->port && memcmp(a->mac, b->mac, sizeof a->mac) == 0;
}

/* Whether the port has a duck at that address, and has it still. */
static bool has_duck(const struct net_port *p, const struct net_peer *at)
{
    for (uint32_t i = 0; i < p->ducks; i++)
        if (!p->duck[i]->gone && same_peer(&p->duck[i]->peer, at)) return true;
    return false;
}

/* Before, the engine thread may be choosing the session's number. */
static bool opening(const struct net_port *p)
{
    return atomic_load_explicit(&p->seen_goal, memory_order_relaxed) >= NET_OPEN;
}

/* A switch sends what is for one of them to the other; on a shared interface they can live with it. */
static void look_for_twin(const struct net_duck *d)
{
    static const uint8_t none[6];
    const struct net_port *p = d->port;
    if (memcmp(d->hello.mac, none, sizeof none) == 0) return;
    for (uint32_t i = 0; i < p->ducks; i++) {
        const struct net_duck *other = p->duck[i];
        if (other == d || atomic_load(&other->state) == NET_UNKNOWN) continue;
        if (memcmp(other->hello.mac, d->hello.mac, sizeof none) != 0) continue;
        log_notice("%s and %s have the same MAC address, %s: a switch cannot tell them apart",
                   net_duck_name(other).s, net_duck_name(d).s, net_show_mac(d->hello.mac).s);
    }
}

void net__hello(struct net_port *p, const struct net_peer *from, const struct wire_hello *h)
{
    struct net_duck *found = NULL;
    if (p->host && has_duck(p->host, from)) return; // any duck would do, but not one of ours
    for (uint32_t i = 0; i < p->ducks; i++) {
        struct net_duck *d = p->duck[i];
        if (d->gone) continue;
        int state = atomic_load(&d->state);
        if (state != NET_UNKNOWN || (d->peer.port && d->hello.boot_id)) {
            if (!same_peer(&d->peer, from)) continue;
            if (state >= NET_OPENED) return; // a late HELLO of one that is in the session
            found = d;
            break;
        }
    }
    if (!found) found = net__place_for(p, from, h);
    if (!found) return;
    found->peer = *from;
    // The worker alone writes these; others read them once they have seen the state.
    if (atomic_load(&found->state) == NET_FOUND) {
        // Once it has accepted our OPEN its nonce is another; only the same OPEN again is answered by OPENED.
        if (!opening(p) || h->holder_session != p->flock->session)
            memcpy(found->hello.nonce, h->nonce, sizeof h->nonce);
        return;
    }
    found->hello = *h;
    found->hello.name[sizeof h->name - 1] = 0;
    found->hello.cpu[sizeof h->cpu - 1] = 0;
    found->hello.firmware[sizeof h->firmware - 1] = 0;
    if (!found->hello.boot_id) found->hello.boot_id = 1;
    look_for_twin(found);
    atomic_store(&found->state, NET_FOUND);
}

static void find_work(struct net_port *p, uint64_t now, uint64_t *deadline)
{
    bool missing = false;
    for (uint32_t i = 0; i < p->ducks; i++)
        missing |= !p->duck[i]->gone && atomic_load(&p->duck[i]->state) == NET_UNKNOWN;
    for (uint32_t i = 0; p->flock->wants && i < p->ducks; i++) net__care_work(p->duck[i], now, deadline);
    if (!missing) return;
    if (p->find_ns == 0) p->find_ns = now;
    p->looked_long = now - p->find_ns >= p->flock->config->find_ms * NET_MS / 2;
    // What a port without a broadcast address sends to all does not reach a duck that was dropped.
    struct net_duck *alone =
        p->flock->is_guest && !p->flock->config->port[p->index].broadcast ? p->duck[0] : NULL;
    if (now >= p->discover_ns && net__message(p, alone, WIRE_DISCOVER, ++p->request, NULL, 0, false))
        p->discover_ns = now + (p->flock->is_guest ? GUEST_EVERY : DISCOVER_EVERY);
    net__sooner(deadline, p->discover_ns);
}

/* ---- opening ---- */

static bool gets_program(const struct net_duck *d)
{
    uint32_t features = d->hello.features;
    return features & WIRE_BARE_METAL ||
           (features & WIRE_TAKES_PROGRAM && d->port->flock->config->program_named);
}

static void send_open(struct net_duck *d)
{
    const struct net_flock *f = d->port->flock;
    struct wire_open o = {.session = f->session,
                          .duck = (uint16_t)d->index,
                          .payload = (uint16_t)f->payload,
                          .lease_ms = f->config->lease_ms,
                          .gap_us = f->config->gap_us,
                          .max_tokens = f->block_tokens,
                          .max_top_k = (uint16_t)f->max_top_k,
                          .step_slots = (uint16_t)f->slots,
                          .plan_hash = d->plan_hash,
                          .program_hash = gets_program(d) ? f->program_hash : 0,
                          .address = f->config->port[d->port->index].address,
                          .port = f->config->host_udp,
                          .element_bytes = (uint8_t)f->element_bytes,
                          .in_turn = f->in_turn};
    memcpy(o.duck_nonce, d->hello.nonce, sizeof o.duck_nonce);
    memcpy(o.nonce, f->nonce, sizeof o.nonce);
    net__message(d->port, d, WIRE_OPEN, ++d->port->request, &o, sizeof o, false);
}

void net__opened(struct net_duck *d, const struct wire_opened *o, uint64_t now)
{
    if (atomic_load(&d->state) != NET_FOUND) return; // an answer to an OPEN that was repeated
    d->opened = *o;
    d->free_slots = o->staging_slots;
    d->ping_ns = now + PING_EVERY;
    d->timer_ns = now;
    atomic_store(&d->state, NET_OPENED);
}

static void busy(struct net_duck *d, const struct wire_refused *r, uint64_t now)
{
    char holder[16];
    net_show_address(r->holder_address, holder);
    struct net_flock *f = d->port->flock;
    bool renewed = d->busy_ns && r->remaining_ms > d->busy_remaining_ms + RENEWED_MS;
    if (!d->busy_ns) {
        d->busy_ns = now;
        log_notice("%s is held by the host %s; waiting whether its lease (%u ms) runs out",
                   net_duck_name(d).s, holder, r->remaining_ms);
    }
    if (renewed || now - d->busy_ns > 2 * NET_MS * (uint64_t)f->config->lease_ms + 2000 * NET_MS) {
        net_fail(f, -EBUSY, "%s is in use: the host %s holds it (session %08x) and keeps it",
                 net_duck_name(d).s, holder, r->holder_session);
    }
    d->busy_remaining_ms = r->remaining_ms;
}

void net__refused(struct net_port *p, const struct net_peer *from, const struct wire_refused *r, uint64_t now)
{
    struct net_duck *d = NULL;
    for (uint32_t i = 0; i < p->ducks; i++)
        if (same_peer(&p->duck[i]->peer, from)) d = p->duck[i];
    if (!d || atomic_load(&d->state) != NET_FOUND || !opening(p) || r->session != p->flock->session) return;
    switch (r->reason) {
    case WIRE_BUSY:
        busy(d, r, now);
        return;
    case WIRE_BAD_NONCE: // it has accepted a session since its HELLO, or booted: ask for the new nonce
        net__message(p, d, WIRE_DISCOVER, ++p->request, NULL, 0, false);
        return;
    case WIRE_NO_MEMORY:
        net_fail(
            p->flock, -ENOMEM,
            "%s has no memory for %u steps of %u tokens beside its weights: %llu bytes needed, %llu there",
            net_duck_name(d).s, p->flock->slots, p->flock->block_tokens, (unsigned long long)r->value,
            (unsigned long long)d->hello.memory_free);
        return;
    case WIRE_BAD_VERSION:
        net_fail(p->flock, -EPROTO, "%s speaks version %llu of the protocol, this duckd speaks %u",
                 net_duck_name(d).s, (unsigned long long)r->value, WIRE_VERSION);
        return;
    case WIRE_NO_PROGRAM:
        net_fail(
            p->flock, -ENOENT,
            "%s runs without an operating system and needs a program: name fp9_kernels.elf as \"program\" "
            "in the flock's file",
            net_duck_name(d).s);
        return;
    default:
        net_fail(p->flock, -EPROTO, "%s refuses the session: reason %u, value %llu", net_duck_name(d).s,
                 r->reason, (unsigned long long)r->value);
    }
}

/* ---- program, plan, what it holds ---- */

static uint8_t *copy_of(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = malloc(n + 1);
    if (copy) memcpy(copy, bytes, n);
    return copy;
}

static void prepare_duck(struct net_duck *d, uint64_t now, uint64_t *deadline)
{
    struct net_flock *f = d->port->flock;
    if (gets_program(d) && !d->opened.program_held) {
        if (d->program_asked) return;
        d->program_asked = true;
        const struct net_put program = {.kind = WIRE_PROGRAM,
                                        .bytes = copy_of(f->program, f->program_length),
                                        .total = f->program_length,
                                        .hash = f->program_hash};
        if (net__put(d, &program)) net_fail(f, -ENOMEM, "no memory to send the program");
    } else if (!d->computes_right) {
        if (now >= d->timer_ns) {
            struct wire_kat ask = {.seed = f->kat.seed, .format = f->kat.format};
            net__message(d->port, d, WIRE_KAT, ++d->port->request, &ask, sizeof ask, true);
            d->timer_ns = now + KAT_EVERY;
        }
        net__sooner(deadline, d->timer_ns);
    } else if (!d->opened.plan_held) {
        if (d->plan_asked) return;
        d->plan_asked = true;
        const struct net_put plan = {.kind = WIRE_PLAN,
                                     .bytes = copy_of(d->plan_bytes, d->plan_length),
                                     .total = d->plan_length,
                                     .hash = d->plan_hash};
        if (net__put(d, &plan)) net_fail(f, -ENOMEM, "no memory to send the plan");
    } else if (d->unit_asked >= d->units) {
        atomic_store(&d->state, NET_READY);
    } else {
        if (now >= d->timer_ns) {
            uint64_t left = d->units - d->unit_asked, most = HASHES(f->payload);
            struct wire_units u = {.first = d->unit_asked, .count = (uint32_t)(left < most ? left : most)};
            net__message(d->port, d, WIRE_UNITS, ++d->port->request, &u, sizeof u, true);
            d->timer_ns = now + UNITS_EVERY;
        }
        net__sooner(deadline, d->timer_ns);
    }
}

void net__unit_hashes(struct net_duck *d, const uint8_t *payload, size_t length, uint64_t now)
{
    struct wire_unit_hashes h;
    memcpy(&h, payload, sizeof h);
    if (atomic_load(&d->state) != NET_OPENED || !d->opened.plan_held) return;
    if (h.units != d->units) {
        net_fail(d->port->flock, -EPROTO, "%s counts %u units of weights where the plan has %llu",
                 net_duck_name(d).s, h.units, (unsigned long long)d->units);
        return;
    }
    d->free_slots = h.staging_slots;
    if (d->opened.staging_slots == 0) d->opened.staging_slots = h.staging_slots;
    if (h.first != d->unit_asked || h.count == 0 || h.count > d->units - h.first ||
        h.count > (length - sizeof h) / sizeof(uint64_t))
        return;
    memcpy(d->unit_hash + h.first, payload + sizeof h, h.count * sizeof(uint64_t));
    d->unit_asked += h.count;
    if (h.units_held == 0) d->unit_asked = (uint32_t)d->units; // all the others are 0 as well
    d->timer_ns = now;
}

void net__kat(struct net_duck *d, const struct wire_kat *k, uint64_t now)
{
    const struct wire_kat *right = &d->port->flock->kat;
    if (atomic_load(&d->state) != NET_OPENED || k->seed != right->seed || k->format != right->format) return;
    if (k->hash != right->hash) {
        net_fail(d->port->flock, -EIO,
                 "%s computes wrongly: its known-answer test gives %016llx where %016llx is right (memory, "
                 "overclocking?)",
                 net_duck_name(d).s, (unsigned long long)k->hash, (unsigned long long)right->hash);
        return;
    }
    d->computes_right = true;
    d->timer_ns = now;
}

/* What a failed program's author asks for; addresses are looked up in the program's ELF file. */
static void show_fault(const struct net_duck *d, const struct wire_fault *f)
{
    static const char *const name[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
                                       "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
    char line[512];
    size_t n = 0;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %s %llx", name[i], (unsigned long long)f->gpr[i]);
    log_notice("%s: rip %llx rsp %llx rflags %llx cr2 %llx, error code %llx", net_duck_name(d).s,
               (unsigned long long)f->rip, (unsigned long long)f->rsp, (unsigned long long)f->rflags,
               (unsigned long long)f->cr2, (unsigned long long)f->error_code);
    log_notice("%s:%s", net_duck_name(d).s, line);
    for (uint32_t i = 0; i < f->frames && i < sizeof f->backtrace / sizeof *f->backtrace; i++)
        log_notice("%s: called from program+%#llx", net_duck_name(d).s,
                   (unsigned long long)(f->backtrace[i] - f->program));
}

/* True: it is the first. Of several that are lost together that is the one that net_fail() tells of; the
 * others' turn comes in the session without it. */
static bool note_lost(const struct net_duck *d)
{
    int none = -1;
    return atomic_compare_exchange_strong(&d->port->flock->lost, &none, (int)d->index);
}

void net__fault(struct net_duck *d, const struct wire_fault *fault)
{
    char text[sizeof fault->text];
    memcpy(text, fault->text, sizeof text);
    text[sizeof text - 1] = 0;
    struct net_flock *f = d->port->flock;
    if (note_lost(d)) show_fault(d, fault); // it may tell again
    net_fail(f, -EIO, "%s: core %u: %s (vector %#x) at %#llx, %#llx bytes into program %016llx",
             net_duck_name(d).s, fault->core, text, fault->vector, (unsigned long long)fault->rip,
             (unsigned long long)(fault->rip - fault->program), (unsigned long long)f->program_hash);
}

/* ---- keeping ---- */

static void ping(struct net_duck *d, uint64_t now, uint64_t *deadline)
{
    struct net_flock *f = d->port->flock;
    if (now >= d->ping_ns) {
        if (d->ping >= PINGS_BEFORE_LOST && now - d->heard_ns > f->config->dead_ms * NET_MS) {
            note_lost(d);
            net_fail(f, -EHOSTDOWN, "%s has not answered for %llu ms", net_duck_name(d).s,
                     (unsigned long long)((now - d->heard_ns) / NET_MS));
        }
        // Grows with every session's time: an old one renews nothing.
        net__message(d->port, d, WIRE_PING, ++d->port->request, NULL, 0, true);
        d->ping_ns = now + (d->ping++ == 0 ? PING_EVERY : PING_AGAIN);
    }
    net__sooner(deadline, d->ping_ns);
}

static void close_work(struct net_duck *d, uint64_t now, uint64_t *deadline)
{
    int state = atomic_load(&d->state);
    if (state == NET_OPENED || state == NET_READY) {
        if (now >= d->timer_ns) {
            net__message(d->port, d, WIRE_CLOSE, ++d->port->request, NULL, 0, true);
            d->timer_ns = now + CLOSE_EVERY;
        }
        net__sooner(deadline, d->timer_ns);
    } else if (state != NET_CLOSED) {
        atomic_store(&d->state, NET_CLOSED); // there is no session to end
    }
}

void net__session_work(struct net_port *p, int goal, uint64_t now, uint64_t *deadline)
{
    if (goal == NET_FIND) find_work(p, now, deadline);
    for (uint32_t i = 0; goal != NET_FIND && i < p->ducks; i++) {
        struct net_duck *d = p->duck[i];
        if (d->gone) continue;
        int state = atomic_load_explicit(&d->state, memory_order_relaxed);
        if (goal == NET_CLOSE) {
            close_work(d, now, deadline);
            continue;
        }
        if (state == NET_FOUND) {
            if (now >= d->timer_ns) {
                send_open(d);
                d->heard_ns = now;
                d->timer_ns = now + OPEN_EVERY;
            }
            net__sooner(deadline, d->timer_ns);
        }
        if (state == NET_OPENED) prepare_duck(d, now, deadline);
        if (state >= NET_OPENED) ping(d, now, deadline);
    }
}
