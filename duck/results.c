/* results.c: result fragments, in order as rows become final, and again when asked. */
#include "duck/duck_internal.h"

#include <string.h>

enum { RESULTS_AT_ONCE = 4 }; // fragments between two tasks: some 5 us

/* The values of one fragment at `out`; returns bytes. */
static uint32_t fill(const struct step_slot *s, uint32_t fragment, uint8_t *out)
{
    struct wire_result_part p = wire_result_part(&s->plan, fragment);
    const float *partial = duck_work_partial(s->work, p.subtree);
    uint8_t *to = out;
    for (uint32_t t = 0; t < p.tokens; t++) {
        const float *from = partial + (size_t)(p.first_token + t) * s->plan.hidden + p.first_row;
        wire_pack(s->result, from, 1, p.rows, to);
        to += wire_packed_bytes(s->result, 1, p.rows);
    }
    return (uint32_t)(to - out);
}

static int is_final(const struct duck *d, const struct step_slot *s, uint32_t fragment)
{
    if (s->state == STEP_COMPUTED) return 1;
    if (!s->work || d->session.terms.in_turn) return 0; // still being unpacked; not before the last row
    struct wire_result_part p = wire_result_part(&s->plan, fragment);
    uint32_t end, task = duck_work_row_tasks(s->work, p.subtree, p.first_row, p.rows, &end);
    for (; task < end; task++)
        if (!atomic_load_explicit(&s->row_task_done[task], memory_order_acquire)) return 0;
    return 1;
}

static int send_fragment(struct duck *d, const struct step_slot *s, uint32_t fragment)
{
    uint8_t *p = duck__out(d, &d->session.holder);
    if (!p) return 0;
    struct wire_header h = {.type = WIRE_RESULT,
                            .length = (uint16_t)fill(s, fragment, p),
                            .session = d->session.terms.session,
                            .sequence = s->sequence,
                            .fragment = (uint16_t)fragment,
                            .fragments = (uint16_t)s->plan.fragments,
                            .source = d->session.terms.duck};
    duck__send(d, h, &d->session.key);
    d->busy = 1;
    return 1;
}

static uint32_t microseconds(uint64_t from, uint64_t to)
{
    return to > from ? (uint32_t)((to - from) / 1000) : 0;
}

static int send_done(struct duck *d, const struct step_slot *s)
{
    struct wire_done done = {.fragments = s->plan.fragments};
    uint64_t experts;
    duck_work_reads(s->work, &experts, &done.bytes);
    done.experts = (uint32_t)experts;
    done.receive_us = microseconds(s->first_at, s->complete_at);
    done.wait_us = microseconds(s->complete_at, s->begun_at);
    done.compute_us = microseconds(s->begun_at, s->computed_at);
    done.send_us = microseconds(s->computed_at, d->p->now(d->p->self));
    return duck__tell(d, WIRE_DONE, s->sequence, &done, sizeof done);
}

/* What was asked for once more and is there. */
static int send_again(struct duck *d, struct step_slot *s, uint32_t *most)
{
    for (uint32_t f = 0; f < s->sent && s->again_left; f++) {
        if (!wire_bit(s->again, f)) continue;
        if (*most == 0 || !send_fragment(d, s, f)) return 0;
        --*most;
        s->again[f / 8] = (uint8_t)(s->again[f / 8] & ~(1u << f % 8));
        s->again_left--;
        d->stats.resend_served++;
    }
    return 1;
}

/* 0: no room for more, or *most fragments have been sent. */
static int send_slot(struct duck *d, struct step_slot *s, uint32_t *most)
{
    if (s->state != STEP_RUNNING && s->state != STEP_COMPUTED) return 1;
    if (s->again_left && !send_again(d, s, most)) return 0;
    while (s->sent < s->plan.fragments && is_final(d, s, s->sent)) {
        if (*most == 0 || !send_fragment(d, s, s->sent)) return 0;
        s->sent++;
        --*most;
    }
    if (s->state == STEP_COMPUTED && s->sent == s->plan.fragments && !s->done_sent) {
        if (!send_done(d, s)) return 0;
        s->done_sent = 1;
    }
    return 1;
}

void duck__results_send(struct duck *d)
{
    struct judge *j = &d->judge;
    uint32_t most = RESULTS_AT_ONCE;
    for (uint32_t i = 1; i <= j->slots; i++) // oldest first
        if (!send_slot(d, &j->slot[(j->highest + i) % j->slots], &most)) return;
}

int duck__results_pending(const struct duck *d)
{
    for (uint32_t i = 0; i < d->judge.slots; i++) {
        const struct step_slot *s = &d->judge.slot[i];
        if (s->state == STEP_COMPUTED && (s->again_left || !s->done_sent)) return 1;
    }
    return 0;
}

void duck__results_resend(struct duck *d, const struct wire_header *h, const uint8_t *payload)
{
    struct judge *j = &d->judge;
    struct wire_resend r;
    if (h->length < sizeof r) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&r, payload, sizeof r);
    if (h->length != sizeof r + (r.count + 7u) / 8) {
        d->stats.bad_frame++;
        return;
    }
    struct step_slot *s = j->slots ? &j->slot[h->sequence % j->slots] : NULL;
    if (!s || s->state == STEP_EMPTY || s->sequence != h->sequence) {
        d->stats.late++;
        return;
    }
    if (s->status == WIRE_STEP_BAD || (s->state == STEP_COMPUTED && s->plan.fragments == 0)) {
        duck__step_acknowledge(d, s->sequence, s, s->status);
        return;
    }
    if (s->state != STEP_RUNNING && s->state != STEP_COMPUTED) return; // they will come
    uint32_t first = r.count ? r.first : 0, count = r.count ? r.count : s->plan.fragments;
    for (uint32_t i = 0; i < count && first + i < s->sent; i++) {
        if (r.count && !wire_bit(payload + sizeof r, i)) continue;
        if (wire_bit(s->again, first + i)) continue;
        wire_set_bit(s->again, first + i);
        s->again_left++;
    }
    if (s->state == STEP_COMPUTED && s->sent == s->plan.fragments) s->done_sent = 0;
}

void duck__step_acknowledge(struct duck *d, uint32_t sequence, const struct step_slot *s, uint32_t status)
{
    struct wire_step_ack ack = {.status = status};
    for (uint32_t i = 0; i < d->judge.slots; i++)
        ack.queued += d->judge.slot[i].state == STEP_QUEUED || d->judge.slot[i].state == STEP_RUNNING;
    if (s && status == WIRE_STEP_QUEUED) {
        ack.fragments = s->plan.fragments;
        ack.done = s->state == STEP_COMPUTED;
    }
    if (!duck__tell(d, WIRE_STEP_ACK, sequence, &ack, sizeof ack)) d->stats.send_failed++;
}
