/* known_answer.c: the known-answer test as jobs of the team, so that the duck goes on answering meanwhile, by
 * the session's program if it has one. The same question again gets the same answer: hosts repeat it. */
#include "duck/duck_internal.h"

#include <string.h>

#include "duck/kat.h"

/* Of the session; outside of one the linked-in kernels compute. */
static uint64_t program_of(const struct duck *d)
{
    return d->session.open ? d->session.terms.program_hash : 0;
}

static void answer(struct duck *d, const struct peer *to, const struct wire_header *request)
{
    duck__answer(d, to, request, WIRE_KAT_REPLY, &d->known.answer, sizeof d->known.answer);
}

/* The next phase that has tasks. 0: there is none. */
static int start_phase(struct duck *d)
{
    struct known_answer *k = &d->known;
    for (; k->phase < DUCK_PHASES; k->phase++) {
        uint32_t tasks = duck_work_tasks(k->work, k->phase);
        if (tasks == 0) continue;
        const struct team_job job = {.work = k->work, .phase = k->phase, .by_program = program_of(d) != 0};
        duck__start_job(d, &job, tasks);
        d->p->wake(d->p->self, &d->team->mail);
        return 1;
    }
    return 0;
}

static void finish(struct duck *d)
{
    struct known_answer *k = &d->known;
    k->answer.hash = kat_end(k->work);
    k->answer.compute_us = (uint32_t)((d->p->now(d->p->self) - k->begun_at) / 1000);
    k->work = NULL;
    answer(d, &k->peer, &k->request);
}

void duck__kat(struct duck *d, const struct peer *from, const struct wire_header *h, const uint8_t *payload)
{
    struct known_answer *k = &d->known;
    struct wire_kat ask;
    if (h->length != sizeof ask) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&ask, payload, sizeof ask);
    if (ask.format >= FP9_FORMATS) {
        d->stats.bad_frame++;
        return;
    }
    uint64_t program = program_of(d);
    if (program && program != d->store.program_hash) {
        d->stats.unexpected++;
        return;
    }
    if (k->answer.hash && k->answer.seed == ask.seed && k->answer.format == ask.format) {
        answer(d, from, h);
        return;
    }
    if (k->work || d->judge.running || !team_is_over(d->team) || d->store.packing.r)
        return; // it is asked again
    k->begun_at = d->p->now(d->p->self);
    k->answer = (struct wire_kat){.seed = ask.seed, .format = ask.format};
    k->request = *h;
    k->peer = *from;
    k->work = kat_begin(d->kernels, (enum fp9_format)ask.format, k->core, k->scratch, ask.seed);
    k->phase = DUCK_PREPARE;
    if (k->work && !start_phase(d)) finish(d);
}

void duck__kat_advance(struct duck *d)
{
    d->known.phase++;
    if (!start_phase(d)) finish(d);
}

void duck__kat_forget(struct duck *d)
{
    d->known.work = NULL;
    d->known.answer.hash = 0;
}
