/* duck.c: start, and the round of core 0. */
#include "duck/duck_internal.h"

#include <string.h>

#include "duck/kat.h"

struct duck *duck_start(const struct duck_options *o)
{
    const struct platform *p = o->platform;
    if (p->memory_bytes < DUCK_MEMORY_MIN) return NULL;
    uint64_t at = 0;
    struct duck *d = carve(p->memory, &at, sizeof *d);
    d->p = p;
    d->link = o->link;
    d->kernels = o->kernels;
    d->needs_program = o->needs_program;
    d->flock_key = o->flock_key;
    d->grain = p->program ? p->program->grain : 64;
    d->kat_memory = carve(p->memory, &at, KAT_MEMORY);
    d->out.memory = carve(p->memory, &at, (uint64_t)OUT_FRAMES * OUT_BYTES);
    for (uint32_t i = 0; i < OUT_FRAMES; i++)
        d->out.frame[i].data = d->out.memory + (size_t)i * OUT_BYTES + LINK_HEADROOM;
    duck__store_start(d, &at);
    align_to(&at, d->grain); // the program sees nothing of all this
    uint64_t team_at = at;
    carve(NULL, &at, sizeof *d->team);
    align_to(&at, d->grain);
    if (at > p->memory_bytes) return NULL;
    d->team = (struct team *)(void *)(p->memory + team_at);
    d->team->ticket = TEAM_CLOSED;
    if (p->program && p->program->share) p->program->share(p->self, d->team, at - team_at, PROGRAM_WRITE);
    d->arena = p->memory + at;
    d->arena_bytes = (p->memory_bytes - at) / d->grain * d->grain;
    p->random(p->self, d->nonce, WIRE_NONCE);
    return d;
}

void duck__kat(struct duck *d, const struct peer *from, const struct wire_header *h, const uint8_t *payload)
{
    struct wire_kat k;
    if (h->length != sizeof k) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&k, payload, sizeof k);
    uint64_t start = d->p->now(d->p->self);
    k.hash = kat_hash(d->kernels, d->kat_memory, k.seed);
    k.compute_us = (uint32_t)((d->p->now(d->p->self) - start) / 1000);
    duck__answer(d, from, h, WIRE_KAT_REPLY, &k, sizeof k);
}

/* Tasks and results in turn, until it is time to look at the NIC again. */
static void compute(struct duck *d)
{
    uint64_t until = d->now + COMPUTE_NS;
    do {
        int did = duck__work_once(d);
        did |= duck__check_program(d);
        did |= duck__judge_advance(d);
        if (!did) break;
        d->busy = 1;
        duck__results_send(d);
    } while (d->p->now(d->p->self) < until);
}

uint64_t duck_poll(struct duck *d)
{
    struct datagram in[IN_FRAMES];
    d->busy = 0;
    d->now = d->p->now(d->p->self);
    uint32_t n = d->link->recv(d->link->self, in, IN_FRAMES);
    for (uint32_t i = 0; i < n; i++) duck__frame(d, &in[i]);
    if (duck__store_poll(d)) d->busy = 1;
    compute(d);
    duck__results_send(d);
    uint64_t next = duck__judge_timers(d);
    duck__flush(d);
    if (n || d->busy || d->out.count || !team_is_over(d->team) || duck__results_pending(d)) return 0;
    uint64_t now = d->p->now(d->p->self);
    return next == UINT64_MAX ? UINT64_MAX : next > now ? next - now : 0;
}

void duck_run(struct duck *d, const _Atomic uint32_t *stop)
{
    enum { LONGEST_NS = 100000000 }; // so that *stop is noticed
    const struct platform *p = d->p;
    uint64_t quiet_since = p->now(p->self);
    while (!atomic_load_explicit(stop, memory_order_relaxed)) {
        uint64_t wait = duck_poll(d);
        if (d->busy || wait == 0) {
            if (d->busy) quiet_since = d->now;
        } else if (p->now(p->self) - quiet_since >= p->spin_ns) {
            team_recall(d->team); // the others sleep as well
            p->idle(p->self, wait < LONGEST_NS ? wait : LONGEST_NS);
        }
    }
    team_recall(d->team); // workers shall see *stop as well
}

void duck_fault(struct duck *d, const struct wire_fault *fault)
{
    team_abandon(d->team);
    d->judge.running = NULL;
    d->store.program_hash = 0; // to be sent again, by whoever believes in it
    d->stats.faults++;
    d->fault = *fault;
    duck__log(d, "the program failed, vector", fault->vector);
    if (!d->session.open) return;
    duck__tell(d, WIRE_FAULT, 0, fault, sizeof *fault);
    duck__flush(d);
    duck__end_session(d);
    d->session.faulted = 1;
}
