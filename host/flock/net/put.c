/* put.c: bulk transfer to one duck: a window of chunks over several objects, selective acknowledgement.
 *
 * A chunk is taken for lost when one that was sent clearly later has arrived, or when nothing arrives for a
 * few round trips; the window grows with every chunk that arrived and is halved by losses. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "duck/program.h"
#include "host/flock/net/internal.h"
#include "host/util/clock.h"

#define BURST 64u         // chunks per call: frames that came in are looked at in between
#define ACK_EVERY 8u      // chunks
#define FIRST_WINDOW 16.0 // chunks
#define LEAST_WINDOW 4.0
#define MOST_WINDOW 2048.0
#define FIRST_RTT (5 * NET_MS)
#define LEAST_SILENCE (10 * NET_MS) // before a silent duck's chunks are sent again
#define MOST_SILENCE (500 * NET_MS)
#define PACKING_ASK (1 * NET_MS) // how often to ask whether an object has been packed, growing
#define PACKING_ASK_MOST (20 * NET_MS)
#define ROOM_AGAIN (2 * NET_MS) // after "no room"
#define RESTARTS 5u

int net__put(struct net_duck *d, const struct net_put *what)
{
    struct net_flock *f = d->port->flock;
    struct net_put *p = calloc(1, sizeof *p);
    uint32_t chunk = WIRE_CHUNK(f->payload), chunks = (what->total + chunk - 1) / chunk;
    uint64_t *sent = p && what->bytes ? calloc(chunks + 1, sizeof *sent) : NULL;
    if (!sent) {
        free(p);
        free(what->bytes);
        return -ENOMEM;
    }
    *p = *what;
    p->chunks = chunks;
    p->sent_ns = sent;
    pthread_mutex_lock(&f->load_mutex);
    *d->queue_tail = p;
    d->queue_tail = &p->next;
    f->queued_bytes += p->total;
    if (p->kind == WIRE_UNIT && d->loading.under_way == 0) d->loading_ns = clock_ns();
    if (p->kind == WIRE_UNIT) d->loading.under_way += p->total;
    atomic_fetch_add(&d->queued, 1);
    pthread_mutex_unlock(&f->load_mutex);
    return 0;
}

static void drop(struct net_put *p)
{
    free(p->bytes);
    free(p->sent_ns);
    free(p);
}

void net__put_free(struct net_duck *d)
{
    for (uint32_t i = 0; i < d->actives; i++) drop(d->active[i]);
    while (d->queue) {
        struct net_put *p = d->queue;
        d->queue = p->next;
        drop(p);
    }
    d->actives = 0;
    d->queue_tail = &d->queue;
}

static bool in_flight(const struct net_put *p, uint32_t chunk)
{
    return p->sent_ns[chunk] != 0 && p->sent_ns[chunk] != NET_CHUNK_THERE;
}

/* A chunk in flight has arrived (NET_CHUNK_THERE) or has to be sent again (0). */
static void land(struct net_duck *d, struct net_put *p, uint32_t chunk, uint64_t state)
{
    p->sent_ns[chunk] = state;
    p->in_flight--;
    d->in_flight--;
}

/* Every chunk that is not there is sent (again). Returns how many were in flight. */
static uint32_t send_all_again(struct net_duck *d, struct net_put *p)
{
    uint32_t flying = p->in_flight;
    for (uint32_t c = p->base; c < p->unsent && p->in_flight; c++)
        if (in_flight(p, c)) land(d, p, c, 0);
    return flying;
}

static void start_over(struct net_duck *d, struct net_put *p)
{
    send_all_again(d, p);
    memset(p->sent_ns, 0, p->chunks * sizeof *p->sent_ns);
    p->base = p->unsent = 0;
    p->received = false;
}

static void finish(struct net_duck *d, uint32_t at)
{
    struct net_flock *f = d->port->flock;
    struct net_put *p = d->active[at];
    send_all_again(d, p);
    memmove(d->active + at, d->active + at + 1, (d->actives - at - 1) * sizeof *d->active);
    d->actives--;
    if (p->kind == WIRE_PROGRAM) d->opened.program_held = 1;
    if (p->kind == WIRE_PLAN) d->opened.plan_held = 1;
    pthread_mutex_lock(&f->load_mutex);
    if (p->kind == WIRE_UNIT) {
        d->unit_hash[p->object] = p->hash;
        d->loading.held += p->total;
        d->loading.under_way -= p->total;
        if (d->loading.under_way == 0) d->loading.ns += clock_ns() - d->loading_ns;
        if (p->key) manifest_put(f->known, p->key, p->hash); // without memory it is only forgotten
        net__count(&d->count.units_put, 1);
    }
    f->queued_bytes -= p->total;
    pthread_cond_broadcast(&f->load_cond);
    pthread_mutex_unlock(&f->load_mutex);
    drop(p);
}

/* ---- what the duck says ---- */

/* What a duck's loader finds (duck/program.h). */
static const char *program_fault(uint64_t problem)
{
    static const char *const why[] = {
        [PROGRAM_NOT_ELF] = "it is no ELF file of x86-64",
        [PROGRAM_BAD_SEGMENT] = "a segment lies outside of it or over another one",
        [PROGRAM_BAD_RELOC] = "it has relocations of another kind",
        [PROGRAM_OTHER_ABI] = "it was built for other firmware, take both from the same build",
        [PROGRAM_BAD_ENTRY] = "it begins outside of its code",
        [PROGRAM_NO_MEMORY] = "it is too large",
    };
    return problem < sizeof why / sizeof *why && why[problem] ? why[problem] : "the duck does not say why";
}

static void refused(struct net_duck *d, const struct net_put *p, const struct wire_put_ack *a)
{
    static const char *const kind[] = {"program", "plan", "unit of weights"};
    struct net_flock *f = d->port->flock;
    unsigned long long value = a->value, available = a->available;
    const struct net_name duck = net_duck_name(d);
    const char *file = p->file ? p->file : "?", *name = p->name ? p->name : "?";
    switch (a->reason) {
    case WIRE_PUT_NO_MEMORY:
        net_fail(f, -ENOMEM, "%s has no memory for its part: %llu bytes needed, %llu free", duck.s, value,
                 available);
        return;
    case WIRE_PUT_BAD_WEIGHT:
        net_fail(f, -EINVAL,
                 "%s: %s: element %llu of the part of %s is not a number that experts can be computed with",
                 file, name, value, duck.s);
        return;
    case WIRE_PUT_BAD_SCALE:
        net_fail(f, -EINVAL,
                 "%s: %s: scale %llu of the part of %s must be a positive normal number below 2^%d", file,
                 name, value, duck.s, duck_scale_end(f->plan->format));
        return;
    case WIRE_PUT_BAD_PROGRAM:
        net_fail(f, -EPROTO, "%s (firmware %s) cannot run %s: %s", duck.s, d->hello.firmware,
                 f->config->program, program_fault(a->value));
        return;
    default:
        net_fail(f, -EPROTO, "%s refuses %s %u: reason %u, value %llu", duck.s, kind[p->kind], p->object,
                 a->reason, value);
    }
}

/* Marks what is there; returns when the latest-sent of it was sent, 0: nothing new. */
static uint64_t mark(struct net_duck *d, struct net_put *p, const struct wire_put_ack *a, uint32_t *news)
{
    uint32_t chunk = WIRE_CHUNK(d->port->flock->payload);
    uint32_t there = a->cumulative >= p->total ? p->chunks : a->cumulative / chunk;
    uint64_t latest = 0;
    for (uint32_t c = p->base; c < p->chunks; c++) {
        bool has = c < there ||
                   (c > there && c - there - 1 < 8 * WIRE_SACK_BYTES && wire_bit(a->bitmap, c - there - 1));
        if (!has || p->sent_ns[c] == NET_CHUNK_THERE) {
            if (c > there + 8 * WIRE_SACK_BYTES) break;
            continue;
        }
        if (in_flight(p, c)) {
            if (p->sent_ns[c] > latest) latest = p->sent_ns[c];
            land(d, p, c, NET_CHUNK_THERE);
        } else {
            p->sent_ns[c] = NET_CHUNK_THERE;
        }
        ++*news;
    }
    while (p->base < p->chunks && p->sent_ns[p->base] == NET_CHUNK_THERE) p->base++;
    if (p->unsent < p->base) p->unsent = p->base;
    return latest;
}

/* Chunks sent clearly before one that has arrived are lost. */
static uint32_t find_lost(struct net_duck *d, struct net_put *p, uint64_t latest)
{
    uint64_t slack = d->rtt_ns / 2 + NET_MS / 4;
    uint32_t lost = 0;
    for (uint32_t c = p->base; c < p->unsent; c++) {
        if (!in_flight(p, c) || p->sent_ns[c] + slack > latest) continue;
        land(d, p, c, 0);
        lost++;
    }
    net__count(&d->count.chunks_repeated, lost);
    return lost;
}

static void shrink(struct net_duck *d, uint64_t now)
{
    if (now < d->shrunk_ns + d->rtt_ns) return; // one loss event counts once
    d->shrunk_ns = now;
    d->grows_fast = false;
    d->window = d->window / 2 > LEAST_WINDOW ? d->window / 2 : LEAST_WINDOW;
}

static void partial(struct net_duck *d, struct net_put *p, const struct wire_put_ack *a, uint64_t now)
{
    uint32_t news = 0;
    uint64_t latest = mark(d, p, a, &news);
    if (latest) {
        uint64_t rtt = now - latest;
        d->rtt_ns = (7 * d->rtt_ns + rtt) / 8;
        if (find_lost(d, p, latest)) shrink(d, now);
    }
    if (news) {
        p->tries = 0;
        p->timer_ns = 0;
        d->window += d->grows_fast ? news : news / d->window;
        if (d->window > MOST_WINDOW) d->window = MOST_WINDOW;
    }
}

void net__put_ack(struct net_duck *d, const struct wire_put_ack *a, uint64_t now)
{
    uint32_t at = 0;
    while (at < d->actives && (d->active[at]->kind != a->kind || d->active[at]->object != a->object)) at++;
    if (at == d->actives) return; // of an object that is done
    struct net_put *p = d->active[at];
    d->free_slots = a->free_slots;
    switch (a->status) {
    case WIRE_PUT_PARTIAL:
        if (!p->received) partial(d, p, a, now);
        return;
    case WIRE_PUT_RECEIVED:
        if (p->received) return;
        partial(d, p, &(struct wire_put_ack){.kind = a->kind, .object = a->object, .cumulative = p->total},
                now);
        p->received = true;
        p->tries = 0;
        p->timer_ns = now + PACKING_ASK;
        return;
    case WIRE_PUT_HELD:
        if (a->hash == p->hash) finish(d, at);
        return;
    case WIRE_PUT_NO_ROOM:
        start_over(d, p);
        p->timer_ns = now + ROOM_AGAIN;
        p->no_room = true;
        return;
    default:
        if (a->reason == WIRE_PUT_BAD_HASH && p->kind == WIRE_UNIT && ++p->restarts <= RESTARTS) {
            start_over(d, p);
        } else {
            refused(d, p, a);
        }
    }
}

/* ---- sending ---- */

static bool send_chunk(struct net_duck *d, struct net_put *p, uint32_t c, bool ack_now, uint64_t now)
{
    struct net_port *port = d->port;
    uint8_t *room = net__room(port);
    if (!room) return false;
    uint32_t chunk = WIRE_CHUNK(port->flock->payload), offset = c * chunk;
    uint32_t n = p->total - offset < chunk ? p->total - offset : chunk;
    struct wire_put head = {
        .kind = p->kind, .object = p->object, .total = p->total, .offset = offset, .hash = p->hash};
    memcpy(room, &head, sizeof head);
    memcpy(room + sizeof head, p->bytes + offset, n);
    net__send(port, d,
              (struct wire_header){.type = WIRE_PUT,
                                   .sequence = ++port->request,
                                   .flags = (uint16_t)(ack_now ? WIRE_ACK_NOW : 0)},
              sizeof head + n, true);
    net__count(&d->count.put_bytes, n);
    if (p->sent_ns[c] == 0) {
        d->in_flight++;
        p->in_flight++;
        p->sent_ns[c] = now ? now : 1;
    }
    return true;
}

/* Objects from the queue into the window's view. */
static void activate(struct net_duck *d)
{
    if (atomic_load_explicit(&d->queued, memory_order_relaxed) == 0) return;
    uint32_t most = d->opened.staging_slots < NET_ACTIVE_PUTS ? d->opened.staging_slots : NET_ACTIVE_PUTS;
    if (most == 0) most = 1;
    if (d->actives >= most) return;
    struct net_flock *f = d->port->flock;
    pthread_mutex_lock(&f->load_mutex);
    while (d->queue && d->actives < most) {
        struct net_put *p = d->queue;
        d->queue = p->next;
        if (!d->queue) d->queue_tail = &d->queue;
        p->next = NULL;
        d->active[d->actives++] = p;
        atomic_fetch_sub(&d->queued, 1);
    }
    pthread_mutex_unlock(&f->load_mutex);
}

/* An object that is there: is it packed? */
static void ask_packed(struct net_duck *d, struct net_put *p, uint64_t now, uint64_t *deadline)
{
    if (now >= p->timer_ns && send_chunk(d, p, p->chunks - 1, true, now)) {
        uint64_t wait = PACKING_ASK << (p->tries < 5 ? p->tries : 5);
        p->tries++;
        p->timer_ns = now + (wait < PACKING_ASK_MOST ? wait : PACKING_ASK_MOST);
    }
    net__sooner(deadline, p->timer_ns);
}

/* Nothing was heard of an object that has chunks in flight; one that waits for its turn is silent by itself.
 */
static void silence(struct net_duck *d, struct net_put *p, uint64_t now)
{
    if (p->in_flight == 0 || p->timer_ns == 0 || now < p->timer_ns) return;
    net__count(&d->count.chunks_repeated, send_all_again(d, p));
    shrink(d, now);
    p->tries++;
}

static uint64_t silence_after(const struct net_duck *d, const struct net_put *p)
{
    uint64_t wait = 4 * d->rtt_ns > LEAST_SILENCE ? 4 * d->rtt_ns : LEAST_SILENCE;
    wait <<= p->tries < 6 ? p->tries : 6;
    return wait < MOST_SILENCE ? wait : MOST_SILENCE;
}

static uint32_t next_to_send(const struct net_put *p, uint32_t c)
{
    while (c < p->chunks && p->sent_ns[c] != 0) c++;
    return c;
}

/* Sends what the window and the burst allow of one object; the last chunk of it asks for an answer. */
static void send_some(struct net_duck *d, struct net_put *p, uint32_t *burst, uint64_t now)
{
    bool sent = false;
    for (uint32_t c = next_to_send(p, p->base), next; c < p->chunks && *burst < BURST; c = next) {
        if (d->in_flight + 1.0 > d->window) break;
        next = next_to_send(p, c + 1);
        bool last = next == p->chunks || d->in_flight + 2.0 > d->window || *burst == BURST - 1;
        if (!send_chunk(d, p, c, last || *burst % ACK_EVERY == ACK_EVERY - 1, now)) break;
        if (c >= p->unsent) p->unsent = c + 1;
        ++*burst;
        sent = true;
    }
    if (sent || p->timer_ns == 0) p->timer_ns = now + silence_after(d, p);
}

void net__put_work(struct net_duck *d, uint64_t now, uint64_t *deadline)
{
    activate(d);
    uint32_t burst = 0;
    for (uint32_t i = 0; i < d->actives; i++) {
        struct net_put *p = d->active[i];
        if (p->received) {
            ask_packed(d, p, now, deadline);
            continue;
        }
        if (p->no_room) {
            net__sooner(deadline, p->timer_ns);
            if (now < p->timer_ns) continue;
            p->no_room = false;
            p->timer_ns = 0;
        }
        silence(d, p, now);
        send_some(d, p, &burst, now);
        if (p->in_flight) net__sooner(deadline, p->timer_ns);
    }
    if (burst == BURST) net__sooner(deadline, now); // there is more
}
