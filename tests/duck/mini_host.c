/* mini_host.c: a blocking host for one duck. */
#include "tests/duck/mini_host.h"

#include <stdlib.h>
#include <string.h>

enum { RETRY_NS = 10000000, WINDOW = 64 };

struct mini_host mini_host_make(struct mini_wire wire, struct siphash_key flock_key, uint32_t session)
{
    struct mini_host h = {.wire = wire, .flock_key = flock_key, .attempts = 200};
    h.terms = (struct wire_open){.session = session,
                                 .duck = 3,
                                 .payload = WIRE_PAYLOAD,
                                 .lease_ms = 5000,
                                 .gap_us = 200,
                                 .max_tokens = 64,
                                 .max_top_k = 8,
                                 .step_slots = 4,
                                 .address = 0x7f000001,
                                 .port = 1,
                                 .element_bytes = 4};
    memcpy(h.terms.nonce, &session, sizeof session);
    h.key = wire_session_key(&flock_key, h.terms.nonce);
    return h;
}

void mini_send(struct mini_host *h, struct wire_header header, const void *payload, uint32_t bytes)
{
    static uint8_t d[WIRE_DATAGRAM_MAX];
    if (bytes) memcpy(d + WIRE_HEADER, payload, bytes);
    header.length = (uint16_t)bytes;
    header.source = WIRE_HOST;
    h->wire.send(h->wire.self, d, wire_seal(d, header, header.session ? &h->key : &h->flock_key));
}

int mini_receive(struct mini_host *h, uint8_t *payload, uint64_t ns)
{
    static uint8_t d[WIRE_DATAGRAM_MAX];
    uint64_t until = h->wire.now(h->wire.self) + ns;
    do {
        uint64_t now = h->wire.now(h->wire.self);
        uint32_t bytes = h->wire.recv(h->wire.self, d, until > now ? until - now : 0);
        if (bytes == 0 || wire_parse(d, bytes, &h->last) != WIRE_OK) continue;
        if (h->last.session != 0 && h->last.session != h->terms.session) continue;
        if (wire_check_tag(d, h->last.session ? &h->key : &h->flock_key) != WIRE_OK) continue;
        memcpy(payload, d + WIRE_HEADER, h->last.length);
        return 1;
    } while (h->wire.now(h->wire.self) < until);
    return 0;
}

int mini_ask(struct mini_host *h, enum wire_type type, const void *payload, uint32_t bytes,
             enum wire_type reply, enum wire_type other, uint8_t *answer)
{
    uint32_t number = ++h->sequence;
    uint32_t session = type == WIRE_DISCOVER || type == WIRE_OPEN ? 0 : h->terms.session;
    for (uint32_t attempt = 0; attempt < h->attempts; attempt++) {
        mini_send(h, (struct wire_header){.type = (uint8_t)type, .session = session, .sequence = number},
                  payload, bytes);
        uint64_t until = h->wire.now(h->wire.self) + RETRY_NS;
        while (h->wire.now(h->wire.self) < until) {
            if (!mini_receive(h, answer, RETRY_NS)) continue;
            if (h->last.sequence == number && (h->last.type == reply || h->last.type == other)) return 1;
        }
    }
    return 0;
}

int mini_discover(struct mini_host *h)
{
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    if (!mini_ask(h, WIRE_DISCOVER, NULL, 0, WIRE_HELLO, WIRE_HELLO, answer)) return 0;
    memcpy(&h->hello, answer, sizeof h->hello);
    memcpy(h->terms.duck_nonce, h->hello.nonce, WIRE_NONCE);
    return 1;
}

int mini_open(struct mini_host *h)
{
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    if (!mini_ask(h, WIRE_OPEN, &h->terms, sizeof h->terms, WIRE_OPENED, WIRE_REFUSED, answer)) return -1;
    if (h->last.type == WIRE_REFUSED) {
        memcpy(&h->refused, answer, sizeof h->refused);
        return 0;
    }
    memcpy(&h->opened, answer, sizeof h->opened);
    return 1;
}

static void send_chunk(struct mini_host *h, struct wire_put put, const uint8_t *bytes, uint32_t i,
                       int ack_now)
{
    static uint8_t payload[WIRE_PAYLOAD_JUMBO];
    uint32_t chunk = WIRE_CHUNK(h->terms.payload);
    put.offset = i * chunk;
    uint32_t n = put.total - put.offset < chunk ? put.total - put.offset : chunk;
    memcpy(payload, &put, sizeof put);
    memcpy(payload + sizeof put, bytes + put.offset, n);
    mini_send(h,
              (struct wire_header){.type = WIRE_PUT,
                                   .session = h->terms.session,
                                   .sequence = ++h->sequence,
                                   .flags = ack_now ? WIRE_ACK_NOW : 0},
              payload, n + (uint32_t)sizeof put);
}

int mini_put(struct mini_host *h, enum wire_object kind, uint32_t object, const uint8_t *bytes, size_t count,
             struct wire_put_ack *last)
{
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    uint32_t chunk = WIRE_CHUNK(h->terms.payload), chunks = wire_fragments(count, chunk);
    struct wire_put put = {
        .kind = kind, .object = object, .total = (uint32_t)count, .hash = wire_object_hash(bytes, count)};
    struct wire_put_ack ack = {0};
    uint32_t next = 0, done = 0; // chunks sent once; chunks without a gap
    uint32_t stalls = 0;
    while (stalls < 2 * h->attempts) {
        uint32_t end = done + WINDOW < chunks ? done + WINDOW : chunks;
        while (next < end) {
            send_chunk(h, put, bytes, next, next + 1 == end);
            next++;
        }
        if (!mini_receive(h, answer, RETRY_NS) || h->last.type != WIRE_PUT_ACK) {
            if (h->wire.now(h->wire.self) == 0) return -1;
            for (uint32_t i = done; i < next || i == done;
                 i++) { // what is not acknowledged, the last with a question
                uint32_t bit = i - done - 1, mine = ack.kind == kind && ack.object == object;
                if (mine && i > done && bit < 8 * WIRE_SACK_BYTES && wire_bit(ack.bitmap, bit)) continue;
                send_chunk(h, put, bytes, i < chunks ? i : chunks - 1, i + 1 >= next);
                h->put_resends++;
            }
            stalls++;
            continue;
        }
        struct wire_put_ack a;
        memcpy(&a, answer, sizeof a);
        if (a.kind != kind || a.object != object || a.hash != put.hash) continue;
        ack = a;
        if (last) *last = a;
        if (a.status == WIRE_PUT_HELD || a.status == WIRE_PUT_REFUSED) return (int)a.status;
        if (a.status == WIRE_PUT_PARTIAL && a.cumulative / chunk > done) done = a.cumulative / chunk;
    }
    return -1;
}

int mini_load(struct mini_host *h, const struct layers *l)
{
    if (mini_put(h, WIRE_PLAN, 0, l->plan, l->plan_bytes, NULL) != WIRE_PUT_HELD) return 0;
    for (uint64_t u = 0; u < l->units; u++)
        if (mini_put(h, WIRE_UNIT, (uint32_t)u, l->unit[u], l->unit_bytes[u], NULL) != WIRE_PUT_HELD)
            return 0;
    h->hidden = l->shape.hidden;
    return 1;
}

static void send_fragment(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes, uint32_t f)
{
    uint32_t payload = h->terms.payload, fragments = wire_fragments(bytes, payload);
    size_t at = (size_t)f * payload;
    mini_send(h,
              (struct wire_header){.type = WIRE_STEP,
                                   .session = h->terms.session,
                                   .sequence = number,
                                   .fragment = (uint16_t)f,
                                   .fragments = (uint16_t)fragments},
              step + at, (uint32_t)(bytes - at < payload ? bytes - at : payload));
}

void mini_send_step(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes)
{
    for (uint32_t f = 0; f < wire_fragments(bytes, h->terms.payload); f++)
        send_fragment(h, number, step, bytes, f);
}

/* What the duck asks for. */
static void answer_resend(struct mini_host *h, const uint8_t *payload, const uint8_t *step, size_t bytes)
{
    struct wire_resend r;
    memcpy(&r, payload, sizeof r);
    uint32_t fragments = wire_fragments(bytes, h->terms.payload), number = h->last.sequence;
    for (uint32_t f = 0; f < fragments; f++) {
        int wanted = r.count == 0 || (f >= r.first && f < (uint32_t)r.first + r.count &&
                                      wire_bit(payload + sizeof r, f - r.first));
        if (!wanted) continue;
        send_fragment(h, number, step, bytes, f);
        h->step_resends++;
    }
}

static void ask_results(struct mini_host *h, uint32_t number, const uint8_t *have, uint32_t fragments)
{
    static uint8_t payload[WIRE_PAYLOAD_JUMBO];
    struct wire_resend r = {.count = (uint16_t)fragments};
    memcpy(payload, &r, sizeof r);
    memset(payload + sizeof r, 0, (fragments + 7) / 8);
    for (uint32_t f = 0; f < fragments; f++)
        if (!wire_bit(have, f)) wire_set_bit(payload + sizeof r, f);
    mini_send(h, (struct wire_header){.type = WIRE_RESEND, .session = h->terms.session, .sequence = number},
              payload, (uint32_t)sizeof r + (fragments + 7) / 8);
    h->result_resends++;
}

static void place(const struct wire_result_plan *plan, enum wire_dtype dtype, uint32_t fragment,
                  const uint8_t *payload, float *out)
{
    struct wire_result_part p = wire_result_part(plan, fragment);
    for (uint32_t t = 0; t < p.tokens; t++) {
        size_t at = ((size_t)p.subtree * plan->tokens + p.first_token + t) * plan->hidden + p.first_row;
        wire_unpack(dtype, payload, 1, p.rows, out + at);
        payload += wire_packed_bytes(dtype, 1, p.rows);
    }
}

int mini_collect(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes, uint32_t subtrees,
                 float *out, struct wire_done *done)
{
    static uint8_t payload[WIRE_PAYLOAD_JUMBO], have[8192];
    struct wire_step w;
    memcpy(&w, step, sizeof w);
    enum wire_dtype dtype = (enum wire_dtype)w.result;
    struct wire_result_plan plan = wire_result_plan(h->hidden, w.tokens, subtrees, dtype, h->terms.payload);
    uint32_t got = 0;
    int acknowledged = 0, finished = 0;
    memset(have, 0, sizeof have);
    uint64_t until = h->wire.now(h->wire.self) + MINI_DEADLINE_NS;
    while (got < plan.fragments || !finished) {
        if (h->wire.now(h->wire.self) > until) return 0;
        if (!mini_receive(h, payload, RETRY_NS)) {
            if (acknowledged)
                ask_results(h, number, have, plan.fragments);
            else
                mini_send_step(h, number, step, bytes);
            continue;
        }
        if (h->last.sequence != number) continue;
        if (h->last.type == WIRE_STEP_ACK) {
            struct wire_step_ack a;
            memcpy(&a, payload, sizeof a);
            if (a.status != WIRE_STEP_QUEUED) return 0;
            if (a.fragments != plan.fragments) return 0;
            acknowledged = 1;
            if (a.fragments == 0) return 1;
        }
        if (h->last.type == WIRE_RESEND) answer_resend(h, payload, step, bytes);
        if (h->last.type == WIRE_DONE) {
            finished = acknowledged = 1;
            if (done) memcpy(done, payload, sizeof *done);
            if (got < plan.fragments) ask_results(h, number, have, plan.fragments);
        }
        if (h->last.type == WIRE_RESULT && h->last.fragments == plan.fragments &&
            !wire_bit(have, h->last.fragment)) {
            acknowledged = 1;
            wire_set_bit(have, h->last.fragment);
            got++;
            place(&plan, dtype, h->last.fragment, payload, out);
        }
    }
    return 1;
}
