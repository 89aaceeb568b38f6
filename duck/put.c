/* put.c: chunks of the program, the plan and the weights, and their acknowledgement. */
#include "duck/duck_internal.h"

#include <string.h>

enum {
    ACK_EVERY = 16,             // chunks: a fraction of any sensible window
    ABANDONED_NS = 2000000000u, // a slot nobody has sent to for so long may be taken by another unit
};

static uint32_t free_slots(const struct store *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->slots; i++) n += s->slot[i].state == RECEIVER_FREE;
    return n;
}

static void acknowledge(struct duck *d, struct receiver *r, uint32_t sequence)
{
    struct wire_put_ack ack = {.free_slots = free_slots(&d->store)};
    duck__receiver_report(r, &ack);
    r->since_ack = 0;
    if (!duck__tell(d, WIRE_PUT_ACK, sequence, &ack, sizeof ack)) d->stats.send_failed++;
}

/* The slot that a unit is arriving in, or a free one. */
static struct receiver *unit_slot(struct duck *d, const struct wire_put *put)
{
    struct receiver *fresh = NULL;
    for (uint32_t i = 0; i < d->store.slots; i++) {
        struct receiver *r = &d->store.slot[i];
        if (r->state != RECEIVER_FREE && r->object == put->object && r->hash == put->hash) return r;
        int abandoned = r->state == RECEIVER_PARTIAL && d->now - r->touched > ABANDONED_NS;
        if (r->state == RECEIVER_FREE || (abandoned && !fresh)) fresh = r;
    }
    if (fresh) fresh->state = RECEIVER_FREE;
    return fresh;
}

/* The receiver for a chunk; NULL: `ack` says why there is none. */
static struct receiver *receiver_for(struct duck *d, const struct wire_put *put, struct wire_put_ack *ack)
{
    struct store *s = &d->store;
    const struct wire_open *terms = &d->session.terms;
    ack->status = WIRE_PUT_HELD;
    ack->hash = put->hash;
    if (put->kind == WIRE_PROGRAM && s->program_hash && s->program_hash == put->hash) return NULL;
    if (put->kind == WIRE_PLAN && s->state == STORE_READY && s->plan_hash == put->hash) return NULL;
    if (put->kind == WIRE_UNIT && s->state == STORE_READY && put->object < s->units &&
        s->unit_hash[put->object] == put->hash)
        return NULL;
    ack->status = WIRE_PUT_REFUSED;
    ack->reason = WIRE_PUT_BAD_HASH;
    if (put->kind == WIRE_PLAN) {
        if (put->hash == 0 || put->hash != terms->plan_hash) return NULL;
        if (s->plan.state == RECEIVER_FREE) duck__store_drop(d); // the shape lies in the receiver
        return &s->plan;
    }
    if (put->kind == WIRE_PROGRAM)
        return put->hash == 0 || put->hash != terms->program_hash ? NULL : &s->program;
    ack->reason = WIRE_PUT_BAD_OBJECT;
    if (put->kind != WIRE_UNIT || s->state != STORE_READY || put->object >= s->units || put->hash == 0)
        return NULL;
    struct receiver *r = unit_slot(d, put);
    if (!r) {
        ack->status = WIRE_PUT_NO_ROOM;
        ack->reason = 0;
    }
    return r;
}

/* What arrives complete: plans at once, programs at once, units when their turn to be packed comes. */
static int arrived(struct duck *d, struct receiver *r, struct wire_put_ack *ack)
{
    ack->kind = r->kind;
    ack->object = r->object;
    ack->hash = r->hash;
    if (r->kind == WIRE_UNIT) return 1;
    if (r->kind == WIRE_PLAN && duck__plan_arrived(d, ack)) return 1;
    if (r->kind == WIRE_PROGRAM) duck__program_arrived(d, ack);
    if (ack->status == WIRE_PUT_REFUSED || r->kind == WIRE_PROGRAM) r->state = RECEIVER_FREE;
    return 0;
}

void duck__put(struct duck *d, const struct wire_header *h, const uint8_t *payload, const struct peer *from)
{
    struct wire_put put;
    if (h->length <= sizeof put) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&put, payload, sizeof put);
    int ask = h->flags & WIRE_ACK_NOW || put.offset == 0;
    struct wire_put_ack ack = {.kind = put.kind, .object = put.object};
    struct receiver *r = receiver_for(d, &put, &ack);
    if (r && r->state == RECEIVER_FREE &&
        !duck__receiver_begin(r, &put, WIRE_CHUNK(d->session.terms.payload))) {
        ack.status = WIRE_PUT_REFUSED;
        ack.reason = WIRE_PUT_BAD_OBJECT;
        ack.value = r->room;
        r = NULL;
    }
    if (!r) {
        if (ack.status == WIRE_PUT_HELD)
            d->stats.duplicate++;
        else
            d->stats.unexpected++;
        ack.free_slots = free_slots(&d->store);
        if (ask) duck__answer(d, from, h, WIRE_PUT_ACK, &ack, sizeof ack);
        return;
    }
    switch (duck__receiver_chunk(r, &put, payload + sizeof put, h->length - (uint32_t)sizeof put)) {
    case CHUNK_BAD:
        d->stats.bad_frame++;
        return;
    case CHUNK_DUPLICATE:
        d->stats.duplicate++;
        break;
    case CHUNK_NEW:
        r->touched = d->now;
        duck__renew_lease(d);
        if (r->state == RECEIVER_COMPLETE && !arrived(d, r, &ack)) {
            ack.free_slots = free_slots(&d->store);
            duck__answer(d, from, h, WIRE_PUT_ACK, &ack, sizeof ack);
            return;
        }
    }
    if (++r->since_ack >= ACK_EVERY || h->flags & WIRE_ACK_NOW || r->state != RECEIVER_PARTIAL)
        acknowledge(d, r, h->sequence);
}

void duck__units(struct duck *d, const struct wire_header *h, const uint8_t *payload)
{
    struct wire_units ask;
    struct store *s = &d->store;
    if (h->length != sizeof ask) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&ask, payload, sizeof ask);
    uint8_t *p = duck__out(d, &d->session.holder);
    if (!p) {
        d->stats.send_failed++;
        return;
    }
    struct wire_unit_hashes u = {.first = ask.first,
                                 .units = s->state == STORE_READY ? s->units : 0,
                                 .units_held = s->units_held,
                                 .staging_slots = s->slots,
                                 .root_hash = duck__root_hash(d)};
    uint32_t most = (d->session.terms.payload - (uint32_t)sizeof u) / 8;
    if (ask.first < u.units) u.count = u.units - ask.first < ask.count ? u.units - ask.first : ask.count;
    if (u.count > most) u.count = most;
    memcpy(p, &u, sizeof u);
    if (u.count) memcpy(p + sizeof u, s->unit_hash + ask.first, (size_t)u.count * sizeof *s->unit_hash);
    struct wire_header answer = {.type = WIRE_UNIT_HASHES,
                                 .length = (uint16_t)(sizeof u + (size_t)8 * u.count),
                                 .session = h->session,
                                 .sequence = h->sequence,
                                 .source = d->session.terms.duck};
    duck__send(d, answer, &d->session.key);
}
