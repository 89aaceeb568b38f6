/* steps.c: a worker's part of steps: broadcast, acknowledgements, results, their sum along the tree.
 *
 * Timers follow what was measured: a step is sent again when its acknowledgement is late, results are asked
 * for when a gap has been visible for gap_us or when they are late. Whatever comes twice or too late is
 * counted and dropped. */
#include <errno.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "host/util/clock.h"
#include "host/util/trace.h"

#define FIRST_ACK (10 * NET_MS) // usual times, before any was measured
#define LEAST_ACK (2 * NET_MS)
#define FIRST_ANSWER (50 * NET_MS)
#define LEAST_ANSWER (3 * NET_MS)
#define MOST_SILENCE (400 * NET_MS)
#define MOST_ASKED 4096u // fragments in one RESEND

static struct net_slot *slot_of(struct net_flock *f, uint32_t step)
{
    return &f->slot[step & (f->slots - 1)];
}

static struct net_result *result_of(struct net_duck *d, uint32_t step)
{
    struct net_result *r = &d->result[step & (d->port->flock->slots - 1)];
    return step != 0 && r->step == step ? r : NULL;
}

/* The usual time follows longer ones at once and shorter ones slowly. */
static void learn(uint64_t *usual, uint64_t sample)
{
    *usual = sample > *usual ? sample : (15 * *usual + sample) / 16;
}

static uint64_t patience(uint64_t usual, uint64_t least, uint32_t tries)
{
    uint64_t wait = 2 * usual > least ? 2 * usual : least;
    wait <<= tries < 8 ? tries : 8;
    return wait < MOST_SILENCE ? wait : MOST_SILENCE;
}

/* ---- sending ---- */

static bool send_fragment(struct net_port *p, struct net_duck *to, const struct net_slot *s,
                          uint32_t fragment)
{
    uint8_t *room = net__room(p);
    if (!room) return false;
    uint32_t payload = p->flock->payload, from = fragment * payload;
    uint32_t n = s->bytes - from < payload ? s->bytes - from : payload;
    memcpy(room, s->packed + from, n);
    net__send(p, to,
              (struct wire_header){.type = WIRE_STEP,
                                   .sequence = s->step,
                                   .fragment = (uint16_t)fragment,
                                   .fragments = (uint16_t)s->fragments},
              n, true);
    return true;
}

/* Of every duck of the port; those that hold nothing of the step's bank only acknowledge it. */
static void expect(struct net_port *p, const struct net_slot *s, uint64_t now)
{
    const struct net_flock *f = p->flock;
    for (uint32_t i = 0; i < p->ducks; i++) {
        struct net_duck *d = p->duck[i];
        if (d->gone) continue;
        struct net_result *r = &d->result[s->step & (f->slots - 1)];
        uint8_t *bitmap = r->bitmap;
        *r = (struct net_result){.step = s->step, .bitmap = bitmap, .sent_ns = now};
        r->plan = wire_result_plan(f->hidden, s->tokens, d->subtrees[s->bank], f->result, f->payload);
        memset(bitmap, 0, (r->plan.fragments + 7) / 8);
        r->timer_ns = now + patience(d->ack_ns, LEAST_ACK, 0);
    }
}

static void broadcast(struct net_port *p, uint64_t now, uint64_t *deadline)
{
    struct net_flock *f = p->flock;
    while (p->sent != atomic_load_explicit(&f->published, memory_order_acquire)) {
        struct net_slot *s = slot_of(f, p->sent + 1);
        if (p->next_fragment == 0) {
            expect(p, s, now); // answers may come before the last fragment is out
            p->sending_ns = clock_ns();
        }
        while (p->next_fragment < s->fragments) {
            if (!send_fragment(p, NULL, s, p->next_fragment)) {
                net__sooner(deadline, now + 20 * NET_US);
                return;
            }
            p->next_fragment++;
        }
        uint64_t sent = clock_ns();
        atomic_store_explicit(&s->sent_ns, sent, memory_order_relaxed);
        trace_span(TRACE_PORT, p->index, "send", p->sending_ns, sent, s->bank, 0, s->tokens);
        p->next_fragment = 0;
        p->sent++;
        atomic_fetch_sub_explicit(&s->users, 1, memory_order_acq_rel);
    }
}

void net__step_resend(struct net_duck *d, uint32_t step, const uint8_t *payload, size_t length)
{
    struct net_result *r = result_of(d, step);
    struct wire_resend ask;
    memcpy(&ask, payload, sizeof ask);
    if (!r) {
        net__count(&d->count.late, 1);
        return;
    }
    const struct net_slot *s = slot_of(d->port->flock, step);
    uint32_t first = ask.count ? ask.first : 0, count = ask.count ? ask.count : s->fragments;
    if (ask.count && length - sizeof ask < (count + 7u) / 8) return;
    for (uint32_t i = 0; i < count && first + i < s->fragments; i++) {
        if (ask.count && !wire_bit(payload + sizeof ask, i)) continue;
        if (!send_fragment(d->port, d, s, first + i)) return; // it asks again
        net__count(&d->count.resend_served, 1);
    }
}

/* Asks for results [0, upto) that are missing, and for DONE. */
static void ask(struct net_duck *d, const struct net_result *r, uint32_t upto)
{
    uint32_t most = 8 * (d->port->flock->payload - (uint32_t)sizeof(struct wire_resend));
    if (most > MOST_ASKED) most = MOST_ASKED;
    uint8_t *room = net__room(d->port);
    if (!room) return;
    uint32_t first = 0;
    while (first < upto && wire_bit(r->bitmap, first)) first++;
    if (first == upto) first = 0; // nothing is missing but DONE: a bitmap of zeros
    uint32_t count = upto - first < most ? upto - first : most;
    uint8_t *bitmap = room + sizeof(struct wire_resend);
    memset(bitmap, 0, (count + 7) / 8);
    for (uint32_t i = 0; i < count; i++)
        if (!wire_bit(r->bitmap, first + i)) wire_set_bit(bitmap, i);
    struct wire_resend head = {.first = (uint16_t)first, .count = (uint16_t)count};
    memcpy(room, &head, sizeof head);
    net__send(d->port, d, (struct wire_header){.type = WIRE_RESEND, .sequence = r->step},
              sizeof head + (count + 7) / 8, true);
    net__count(&d->count.resend_asked, 1);
}

/* ---- what ducks say ---- */

static void finish_if_whole(struct net_duck *d, struct net_result *r)
{
    if (!r->done || r->received != r->plan.fragments) return;
    // From here on the slot may be used for another step.
    atomic_fetch_sub_explicit(&slot_of(d->port->flock, r->step)->users, 1, memory_order_acq_rel);
    r->step = 0;
}

void net__step_ack(struct net_duck *d, uint32_t step, const struct wire_step_ack *a, uint64_t now)
{
    struct net_result *r = result_of(d, step);
    if (!r || r->done) {
        net__count(&d->count.late, 1);
        return;
    }
    if (a->status != WIRE_STEP_QUEUED || a->fragments != r->plan.fragments) {
        net_fail(d->port->flock, -EPROTO,
                 "%s does not take step %u: status %u, %u fragments of results where %u are expected",
                 net_duck_name(d).s, step, a->status, a->fragments, r->plan.fragments);
        return;
    }
    if (r->acked) return;
    r->acked = true;
    r->acked_ns = now;
    if (r->tries == 0) learn(&d->ack_ns, now - r->sent_ns);
    r->tries = 0;
    r->timer_ns = now + patience(d->answer_ns, LEAST_ANSWER, 0);
    if (r->plan.fragments == 0) r->done = true; // it has nothing to send
    finish_if_whole(d, r);
}

/* Adds a complete block of rows along the tree, into the step's y. */
static void reduce(struct net_port *p, struct net_slot *s, const struct wire_result_part *part)
{
    const struct net_flock *f = p->flock;
    const struct net_bank *b = &f->bank[s->bank];
    size_t at = (size_t)part->first_token * f->hidden + part->first_row;
    size_t n = part->tokens > 1 ? (size_t)part->tokens * f->hidden : part->rows;
    for (uint32_t i = 0; i < b->nodes; i++) {
        p->node[i] = (struct tree_node){.first = b->node[i].first,
                                        .level = b->node[i].level,
                                        .values = s->values + (size_t)i * s->tokens * f->hidden + at};
    }
    const float *sum = tree_reduce(p->node, b->nodes, b->slices, n);
    memcpy(s->y + at, sum, n * sizeof *sum);
}

static void step_complete(struct net_flock *f)
{
    if (!atomic_load(&f->waiting)) return;
    pthread_mutex_lock(&f->wait_mutex);
    pthread_cond_signal(&f->wait_cond);
    pthread_mutex_unlock(&f->wait_mutex);
}

/* Puts a fragment's values where they belong. */
static void place(struct net_duck *d, struct net_slot *s, const struct net_result *r, uint32_t fragment,
                  const uint8_t *payload)
{
    struct net_flock *f = d->port->flock;
    struct wire_result_part part = wire_result_part(&r->plan, fragment);
    uint32_t node = d->node_of[d->first_node[s->bank] + part.subtree];
    float *values = s->values + ((size_t)node * s->tokens + part.first_token) * f->hidden + part.first_row;
    wire_unpack(f->result, payload, 1, (size_t)part.tokens * part.rows, values);
    uint32_t block =
        fragment / r->plan.groups / r->plan.subtrees * r->plan.groups + fragment % r->plan.groups;
    if (atomic_load_explicit(&s->first_result_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&s->first_result_ns, clock_ns(), memory_order_relaxed);
    if (atomic_fetch_sub_explicit(&s->left[block], 1, memory_order_acq_rel) != 1) return;
    bool last = atomic_load_explicit(&s->blocks_left, memory_order_relaxed) == 1;
    uint64_t whole = last || trace_on ? clock_ns() : 0;
    if (last) atomic_store_explicit(&s->last_result_ns, whole, memory_order_relaxed);
    reduce(d->port, s, &part);
    uint64_t added = last || trace_on ? clock_ns() : 0;
    if (last) atomic_store_explicit(&s->reduced_ns, added, memory_order_relaxed);
    trace_span(TRACE_PORT, d->port->index, "add", whole, added, s->bank, 0, part.tokens);
    if (atomic_fetch_sub_explicit(&s->blocks_left, 1, memory_order_acq_rel) == 1) step_complete(f);
}

static void look_for_gap(struct net_result *r, uint64_t now)
{
    if (r->received == r->seen) {
        r->gap_ns = 0;
    } else if (r->gap_ns == 0) {
        r->gap_ns = now;
    }
}

static bool fits(const struct net_flock *f, const struct net_result *r, const struct wire_header *h)
{
    if (h->fragments != r->plan.fragments) return false;
    struct wire_result_part part = wire_result_part(&r->plan, h->fragment);
    return h->length == wire_packed_bytes(f->result, 1, (size_t)part.tokens * part.rows);
}

void net__result(struct net_duck *d, const struct wire_header *h, const uint8_t *payload, uint64_t now)
{
    struct net_flock *f = d->port->flock;
    struct net_result *r = result_of(d, h->sequence);
    if (!r) {
        net__count(&d->count.late, 1);
        return;
    }
    if (!fits(f, r, h)) {
        net__count(&d->port->malformed, 1);
        return;
    }
    if (wire_bit(r->bitmap, h->fragment)) {
        net__count(&d->count.duplicates, 1);
        return;
    }
    wire_set_bit(r->bitmap, h->fragment);
    if (!r->acked) { // its acknowledgement was lost
        r->acked = true;
        r->acked_ns = now;
    }
    if (++r->received == r->plan.fragments) learn(&d->answer_ns, now - r->acked_ns);
    if (h->fragment >= r->seen) r->seen = h->fragment + 1u;
    look_for_gap(r, now);
    r->tries = 0;
    r->timer_ns = now + patience(d->answer_ns, LEAST_ANSWER, 0);
    place(d, slot_of(f, r->step), r, h->fragment, payload);
    finish_if_whole(d, r);
}

/* Its own times, laid before the moment DONE came: when it began is known to a frame's way only. Never before
 * the end of the step that it computed last. */
static void trace_compute(struct net_duck *d, const struct net_slot *s, const struct wire_done *done,
                          uint64_t now)
{
    uint64_t to = now - NET_US * done->send_us, from = to - NET_US * done->compute_us;
    if (to <= d->traced_ns) return;
    if (from < d->traced_ns) from = d->traced_ns;
    d->traced_ns = to;
    trace_span(TRACE_DUCK, d->index, "compute", from, to, s->bank, 0, s->tokens);
}

void net__done(struct net_duck *d, uint32_t step, const struct wire_done *done, uint64_t now)
{
    struct net_result *r = result_of(d, step);
    if (!r || r->done) {
        net__count(&d->count.late, 1);
        return;
    }
    if (done->fragments != r->plan.fragments) {
        net__count(&d->port->malformed, 1);
        return;
    }
    r->done = r->acked = true;
    if (r->acked_ns == 0) r->acked_ns = now;
    r->seen = r->plan.fragments;
    look_for_gap(r, now);
    if (trace_on) trace_compute(d, slot_of(d->port->flock, step), done, now);
    net__count(&d->count.steps, 1);
    net__count(&d->count.experts, done->experts);
    net__count(&d->count.expert_bytes, done->bytes);
    atomic_store_explicit(
        &d->recent_us[atomic_load_explicit(&d->count.steps, memory_order_relaxed) % NET_RECENT],
        done->compute_us, memory_order_relaxed);
    net__count(&d->count.compute_us, done->compute_us);
    net__count(&d->count.wait_us, done->wait_us);
    finish_if_whole(d, r);
}

/* ---- time ---- */

static void late_ack(struct net_duck *d, struct net_result *r, uint64_t now)
{
    // The last fragment alone shows the duck what it misses: it asks for the rest, or acknowledges again.
    const struct net_slot *s = slot_of(d->port->flock, r->step);
    if (!send_fragment(d->port, d, s, s->fragments - 1)) return;
    net__count(&d->count.steps_repeated, 1);
    r->tries++;
    r->timer_ns = now + patience(d->ack_ns, LEAST_ACK, r->tries);
}

static void watch(struct net_duck *d, struct net_result *r, uint64_t now, uint64_t *deadline)
{
    uint64_t gap = d->port->flock->config->gap_us * NET_US;
    if (r->gap_ns && now >= r->gap_ns + gap) {
        ask(d, r, r->seen);
        // What was asked for needs a round trip; by then it is late again.
        r->gap_ns = now + patience(d->ack_ns, NET_MS / 2, 0);
    }
    if (r->gap_ns) net__sooner(deadline, r->gap_ns + gap);
    if (now >= r->timer_ns) {
        if (!r->acked) {
            late_ack(d, r, now);
        } else {
            ask(d, r, r->plan.fragments);
            r->tries++;
            r->timer_ns = now + patience(d->answer_ns, LEAST_ANSWER, r->tries);
        }
    }
    net__sooner(deadline, r->timer_ns);
}

void net__steps_work(struct net_port *p, uint64_t now, uint64_t *deadline)
{
    broadcast(p, now, deadline);
    for (uint32_t i = 0; i < p->ducks; i++) {
        if (p->duck[i]->gone) continue;
        for (uint32_t k = 0; k < p->flock->slots; k++) {
            struct net_result *r = &p->duck[i]->result[k];
            if (r->step) watch(p->duck[i], r, now, deadline);
        }
    }
}
