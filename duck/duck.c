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
    d->piece_of = TEAM_CLOSED;
    d->out.memory = carve(p->memory, &at, (uint64_t)OUT_FRAMES * OUT_BYTES);
    for (uint32_t i = 0; i < OUT_FRAMES; i++)
        d->out.frame[i].data = d->out.memory + (size_t)i * OUT_BYTES + LINK_HEADROOM;
    duck__store_start(d, &at);
    align_to(&at, d->grain); // the program sees nothing of all this
    uint64_t team_at = at;   // but may write the team and the known answer's step
    carve(NULL, &at, sizeof *d->team);
    uint64_t scratch_at = at;
    carve(NULL, &at, KAT_SCRATCH);
    align_to(&at, d->grain);
    uint64_t kat_at = at; // and read its weights
    carve(NULL, &at, KAT_CORE);
    align_to(&at, d->grain);
    if (at > p->memory_bytes) return NULL;
    d->team = (struct team *)(void *)(p->memory + team_at);
    d->team->ticket = TEAM_CLOSED;
    d->known.core = p->memory + kat_at;
    d->known.scratch = p->memory + scratch_at;
    if (p->program && p->program->share) {
        p->program->share(p->self, d->team, kat_at - team_at, PROGRAM_WRITE);
        p->program->share(p->self, d->known.core, at - kat_at, PROGRAM_READ);
    }
    d->arena = p->memory + at;
    d->arena_bytes = (p->memory_bytes - at) / d->grain * d->grain;
    p->random(p->self, d->nonce, WIRE_NONCE);
    return d;
}

/* Pieces of tasks and results in turn, until it is time to look at the NIC again. */
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
    int deaf = d->session.terms.in_turn && d->judge.running;
    uint32_t n = deaf ? 0 : d->link->recv(d->link->self, in, IN_FRAMES);
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
    d->piece_of = TEAM_CLOSED;
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
