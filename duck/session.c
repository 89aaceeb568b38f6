/* session.c: who is there, who may command, and which frames mean what. */
#include "duck/duck_internal.h"

#include <string.h>

static void hello(struct duck *d, const struct peer *from, const struct wire_header *h)
{
    const struct platform *p = d->p;
    struct link_state link = {0};
    d->link->state(d->link->self, &link);
    struct wire_hello hello = {
        .cores = (uint16_t)p->cores,
        .version = WIRE_VERSION,
        .features = p->features | WIRE_E4M3 | (d->needs_program ? WIRE_BARE_METAL : 0) |
                    (p->program ? WIRE_TAKES_PROGRAM : 0) | (link.payload > WIRE_PAYLOAD ? WIRE_JUMBO : 0),
        .memory_total = p->memory_total,
        .memory_free = d->arena_bytes,
        .boot_id = p->boot_id,
        .tsc_hz = p->tsc_hz,
        .read_bytes_per_second = p->read_bytes_per_second,
        .firmware_hash = p->firmware_hash,
        .plan_hash = d->store.plan_hash,
        .link_mbps = link.mbps,
        .payload = link.payload,
    };
    memcpy(hello.nonce, d->nonce, WIRE_NONCE);
    memcpy(hello.mac, link.mac, sizeof hello.mac);
    memcpy(hello.name, p->name, sizeof hello.name);
    memcpy(hello.cpu, p->cpu, sizeof hello.cpu);
    memcpy(hello.firmware, p->firmware, sizeof hello.firmware);
    if (d->session.open && d->session.lease_until > d->now) {
        hello.holder_session = d->session.terms.session;
        hello.holder_address = d->session.terms.address;
    }
    duck__answer(d, from, h, WIRE_HELLO, &hello, sizeof hello);
}

void duck__renew_lease(struct duck *d)
{
    d->session.lease_until = d->now + (uint64_t)d->session.terms.lease_ms * 1000000;
}

/* ---- open ---- */

static void refuse(struct duck *d, const struct peer *from, const struct wire_header *h,
                   const struct wire_open *open, enum wire_refusal reason, uint64_t value)
{
    struct wire_refused r = {.reason = reason, .session = open->session, .value = value};
    if (reason == WIRE_BUSY) {
        r.holder_session = d->session.terms.session;
        r.holder_address = d->session.terms.address;
        r.remaining_ms = (uint32_t)((d->session.lease_until - d->now) / 1000000);
    }
    duck__answer(d, from, h, WIRE_REFUSED, &r, sizeof r);
}

static void opened(struct duck *d, const struct wire_header *h)
{
    struct wire_opened o = {0};
    duck__store_status(d, &o);
    struct wire_header in_session = *h;
    in_session.session = d->session.terms.session;
    duck__answer(d, &d->session.holder, &in_session, WIRE_OPENED, &o, sizeof o);
}

/* Offset of the first field that makes no sense; 0: all do. (Offset 0 is the nonce.) */
static uint64_t bad_field(const struct duck *d, const struct wire_open *o)
{
    struct link_state link = {0};
    d->link->state(d->link->self, &link);
    if (o->session == 0) return offsetof(struct wire_open, session);
    if (o->payload < 512 || o->payload % 32 || o->payload > link.payload || o->payload > WIRE_PAYLOAD_JUMBO)
        return offsetof(struct wire_open, payload);
    if (o->duck == WIRE_HOST) return offsetof(struct wire_open, duck);
    if (o->lease_ms == 0 || o->lease_ms > 60000) return offsetof(struct wire_open, lease_ms);
    if (o->gap_us > 1000000) return offsetof(struct wire_open, gap_us);
    if (o->max_tokens == 0 || o->max_tokens > 8192) return offsetof(struct wire_open, max_tokens);
    if (o->max_top_k > 256) return offsetof(struct wire_open, max_top_k);
    if (o->step_slots == 0 || o->step_slots > STEP_SLOTS_MAX || (o->step_slots & (o->step_slots - 1)))
        return offsetof(struct wire_open, step_slots);
    if (o->element_bytes != 1 && o->element_bytes != 2 && o->element_bytes != 4)
        return offsetof(struct wire_open, element_bytes);
    if (o->in_turn > 1) return offsetof(struct wire_open, in_turn);
    return 0;
}

static void handle_open(struct duck *d, const struct peer *from, const struct wire_header *h,
                        const uint8_t *payload)
{
    struct wire_open o;
    if (h->length != sizeof o) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&o, payload, sizeof o);
    struct session *s = &d->session;
    if (s->open && memcmp(&o, &s->terms, sizeof o) == 0) { // OPENED was lost
        opened(d, h);
        return;
    }
    if (memcmp(o.duck_nonce, d->nonce, WIRE_NONCE) != 0) {
        refuse(d, from, h, &o, WIRE_BAD_NONCE, 0);
        return;
    }
    if (s->open && s->lease_until > d->now) {
        refuse(d, from, h, &o, WIRE_BUSY, 0);
        return;
    }
    uint64_t offset = bad_field(d, &o);
    if (offset) {
        refuse(d, from, h, &o, WIRE_BAD_OPEN, offset);
        return;
    }
    if (o.program_hash ? !d->p->program : d->needs_program) {
        refuse(d, from, h, &o, WIRE_NO_PROGRAM, o.program_hash != 0);
        return;
    }
    duck__end_session(d);
    duck__drain(d); // a known-answer test of nobody's
    duck__kat_forget(d);
    *s = (struct session){
        .open = 1, .terms = o, .holder = *from, .key = wire_session_key(&d->flock_key, o.nonce)};
    if (d->store.state == STORE_READY && d->store.plan_hash == o.plan_hash) {
        uint64_t needed = duck__lay_out_session(d);
        if (needed) {
            s->open = 0;
            refuse(d, from, h, &o, WIRE_NO_MEMORY, needed);
            return;
        }
    }
    duck__renew_lease(d);
    d->stats.sessions++;
    d->p->random(d->p->self, d->nonce, WIRE_NONCE);
    duck__log_session(d, "session opened:");
    opened(d, h);
}

void duck__end_session(struct duck *d)
{
    if (!d->session.open) return;
    duck__drain(d);
    if (!d->session.open) return; // the program failed on its last tasks
    duck__judge_reset(d);
    duck__kat_forget(d);
    d->session.open = 0;
    d->judge.slots = 0;
    d->store.slots = 0;
    if (d->store.plan.state == RECEIVER_PARTIAL) d->store.plan.state = RECEIVER_FREE;
    if (d->store.program.state == RECEIVER_PARTIAL) d->store.program.state = RECEIVER_FREE;
    duck__log_session(d, "session ended:");
}

/* ---- the rest ---- */

static void handle_power(struct duck *d, const struct peer *from, const struct wire_header *h,
                         const uint8_t *payload)
{
    struct wire_power w;
    if (h->length != sizeof w) {
        d->stats.bad_frame++;
        return;
    }
    memcpy(&w, payload, sizeof w);
    if (h->session == 0 && memcmp(w.duck_nonce, d->nonce, WIRE_NONCE) != 0) {
        d->stats.stranger++;
        return;
    }
    if (h->session == 0 && d->session.open && d->session.lease_until > d->now) {
        d->stats.stranger++; // somebody is working with this duck
        return;
    }
    duck__answer(d, from, h, WIRE_POWER_ACK, NULL, 0);
    duck__flush(d);
    duck__end_session(d);
    duck__log(d, "power:", w.action);
    d->p->power(d->p->self, w.action == WIRE_POWER_OFF);
}

static void handle_stats(struct duck *d, const struct peer *from, const struct wire_header *h)
{
    struct link_state link = {0};
    d->link->state(d->link->self, &link);
    d->stats.nic_dropped = link.dropped;
    d->stats.uptime_us = d->now / 1000;
    d->stats.units_held = d->store.units_held;
    d->stats.bytes_held = d->store.units_held ? d->store.core_bytes : 0;
    d->stats.held_format = d->store.units_held ? 1 + (uint32_t)d->store.shape.format : 0;
    if (d->p->health) d->p->health(d->p->self, &d->stats);
    duck__answer(d, from, h, WIRE_STATS_REPLY, &d->stats, sizeof d->stats);
}

static void handle_log(struct duck *d, const struct peer *from, const struct wire_header *h)
{
    uint32_t n = d->log_end < WIRE_PAYLOAD ? d->log_end : WIRE_PAYLOAD;
    duck__answer(d, from, h, WIRE_LOG_REPLY, d->log + d->log_end - n, n);
}

/* What is answered with and without a session. 0: it was something else. */
static int anyones_frame(struct duck *d, const struct peer *from, const struct wire_header *h,
                         const uint8_t *payload)
{
    switch (h->type) {
    case WIRE_STATS:
        handle_stats(d, from, h);
        return 1;
    case WIRE_LOG:
        handle_log(d, from, h);
        return 1;
    case WIRE_POWER:
        handle_power(d, from, h, payload);
        return 1;
    default:
        return 0;
    }
}

static void stranger_frame(struct duck *d, const struct peer *from, const struct wire_header *h,
                           const uint8_t *payload)
{
    switch (h->type) {
    case WIRE_DISCOVER:
        hello(d, from, h);
        return;
    case WIRE_OPEN:
        handle_open(d, from, h, payload);
        return;
    case WIRE_KAT: // nobody is to be disturbed
        if (!d->session.open) {
            duck__kat(d, from, h, payload);
            return;
        }
        d->stats.stranger++;
        return;
    default:
        d->stats.stranger++;
    }
}

static void ping(struct duck *d, const struct peer *from, const struct wire_header *h)
{
    if (!d->session.open) { // FAULT was lost
        duck__answer(d, from, h, WIRE_FAULT, &d->fault, sizeof d->fault);
        return;
    }
    if ((int32_t)(h->sequence - d->session.last_ping) > 0) {
        d->session.last_ping = h->sequence;
        duck__renew_lease(d);
    }
    duck__answer(d, from, h, WIRE_PONG, NULL, 0);
}

static void session_frame(struct duck *d, const struct peer *from, const struct wire_header *h,
                          const uint8_t *payload)
{
    switch (h->type) {
    case WIRE_STEP:
        duck__step_fragment(d, h, payload);
        return;
    case WIRE_RESEND:
        duck__results_resend(d, h, payload);
        return;
    case WIRE_PUT:
        duck__put(d, h, payload, from);
        return;
    case WIRE_UNITS:
        duck__units(d, h, payload);
        return;
    case WIRE_KAT:
        duck__kat(d, from, h, payload);
        return;
    case WIRE_PING:
        ping(d, from, h);
        return;
    case WIRE_CLOSE:
        duck__answer(d, from, h, WIRE_CLOSED, NULL, 0);
        duck__end_session(d);
        return;
    default:
        d->stats.unexpected++;
    }
}

void duck__frame(struct duck *d, const struct datagram *in)
{
    struct wire_header h;
    d->stats.frames_in++;
    d->stats.bytes_in += in->bytes;
    if (wire_parse(in->data, in->bytes, &h) != WIRE_OK) {
        d->stats.bad_frame++;
        return;
    }
    if (h.source != WIRE_HOST) { // another duck's, or our own echoed
        d->stats.stranger++;
        return;
    }
    // After its end a session's key is kept for two purposes: to answer CLOSE again, and FAULT for PING.
    int over = !d->session.open && h.type != WIRE_CLOSE && !(h.type == WIRE_PING && d->session.faulted);
    int ours = h.session != 0 && h.session == d->session.terms.session && !over;
    if (h.session != 0 && !ours) {
        d->stats.stranger++;
        return;
    }
    if (wire_check_tag(in->data, h.session ? &d->session.key : &d->flock_key) != WIRE_OK) {
        d->stats.bad_tag++;
        return;
    }
    const uint8_t *payload = in->data + WIRE_HEADER;
    d->busy = 1;
    if (anyones_frame(d, &in->peer, &h, payload)) return;
    if (h.session)
        session_frame(d, &in->peer, &h, payload);
    else
        stranger_frame(d, &in->peer, &h, payload);
}
