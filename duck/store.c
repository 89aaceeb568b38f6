/* store.c: the memory for a plan's weights, and what of them is there.
 *
 * The arena holds, from its beginning: hashes of the units, the duck core; behind them what belongs to the
 * session: staging slots and step slots. A new plan drops all weights. */
#include "duck/duck_internal.h"

#include <string.h>

enum { CLEAR_BYTES = 1 << 20 }; // between two looks at the NIC: some 100 us

void duck__store_start(struct duck *d, uint64_t *at)
{
    uint8_t *base = d->p->memory;
    struct store *s = &d->store;
    s->plan = (struct receiver){.room = PLAN_MAX, .data = carve(base, at, PLAN_MAX)};
    s->plan.bitmap = carve(base, at, PLAN_MAX / 128);
    s->program = (struct receiver){.room = PROGRAM_MAX, .data = carve(base, at, PROGRAM_MAX)};
    s->program.bitmap = carve(base, at, PROGRAM_MAX / 128);
}

void duck__store_drop(struct duck *d)
{
    struct store *s = &d->store;
    duck__drain(d);
    duck__judge_reset(d);
    d->judge.slots = 0;
    s->slots = 0;
    s->state = STORE_EMPTY;
    s->core = NULL;
    s->plan_hash = s->root_hash = 0;
    s->units = s->units_held = 0;
}

/* Shape of the plan that was received; 0: impossible. The limits keep all sizes below 2^63. */
static int parse_plan(struct store *s)
{
    struct wire_plan p;
    if (s->plan.total < sizeof p) return 0;
    memcpy(&p, s->plan.data, sizeof p);
    if (p.banks == 0 || p.banks > 256 || p.runs > PLAN_MAX / sizeof(struct wire_run) || p.hidden > 65536)
        return 0;
    if (s->plan.total != sizeof p + p.banks * sizeof(struct wire_bank) + p.runs * sizeof(struct wire_run))
        return 0;
    const void *banks = s->plan.data + sizeof p,
               *runs = s->plan.data + sizeof p + p.banks * sizeof(struct wire_bank);
    s->shape =
        (struct duck_shape){.hidden = p.hidden, .banks = p.banks, .bank = banks, .runs = p.runs, .run = runs};
    for (uint32_t i = 0; i < p.banks; i++) {
        const struct duck_bank_shape *b = &s->shape.bank[i];
        if (b->routed > 65535 || b->always > 4096 || b->width > 1u << 18) return 0;
    }
    return duck_shape_is_possible(&s->shape);
}

int duck__plan_arrived(struct duck *d, struct wire_put_ack *ack)
{
    struct store *s = &d->store;
    ack->status = WIRE_PUT_REFUSED;
    ack->value = wire_object_hash(s->plan.data, s->plan.total);
    ack->reason = WIRE_PUT_BAD_HASH;
    if (ack->value != s->plan.hash) return 0;
    ack->reason = WIRE_PUT_BAD_PLAN;
    if (!parse_plan(s)) return 0;
    uint64_t at = 0, units = wire_units(&s->shape);
    carve(NULL, &at, units * sizeof *s->unit_hash);
    s->core_at = at;
    s->core_bytes = duck_core_bytes(&s->shape);
    carve(NULL, &at, s->core_bytes);
    ack->reason = WIRE_PUT_NO_MEMORY;
    ack->value = at;
    ack->available = d->arena_bytes;
    if (units > UINT32_MAX || at > d->arena_bytes) return 0;
    ack->status = WIRE_PUT_RECEIVED;
    ack->reason = 0;
    ack->value = ack->available = 0;
    s->weights_end = at;
    s->units = (uint32_t)units;
    s->units_held = 0;
    s->cleared = s->core_at;
    s->state = STORE_CLEARING;
    return 1;
}

uint64_t duck__lay_out_session(struct duck *d)
{
    uint64_t at = d->store.weights_end;
    duck__staging_lay_out(d, NULL, &at);
    duck__judge_lay_out(d, NULL, &at);
    if (at > d->arena_bytes) return at;
    at = d->store.weights_end;
    duck__staging_lay_out(d, d->arena, &at);
    duck__judge_lay_out(d, d->arena, &at);
    if (at > d->store.dirty) d->store.dirty = at;
    return 0;
}

/* All is clear: the duck core comes into being. */
static void make_core(struct duck *d)
{
    struct store *s = &d->store;
    struct wire_put_ack ack = {.kind = WIRE_PLAN, .status = WIRE_PUT_HELD, .hash = s->plan.hash};
    s->unit_hash = (uint64_t *)(void *)d->arena;
    memset(s->unit_hash, 0, s->units * sizeof *s->unit_hash);
    s->core = duck_core_init_zeroed(d->arena + s->core_at, s->core_bytes, &s->shape, d->kernels);
    if (s->weights_end > s->dirty) s->dirty = s->weights_end;
    s->state = STORE_READY;
    s->plan_hash = s->plan.hash;
    s->plan.state = RECEIVER_FREE;
    if (!d->session.open) return;
    uint64_t needed = duck__lay_out_session(d);
    if (needed) {
        ack.status = WIRE_PUT_REFUSED;
        ack.reason = WIRE_PUT_NO_MEMORY;
        ack.value = needed;
        ack.available = d->arena_bytes;
        duck__store_drop(d);
    }
    duck__tell(d, WIRE_PUT_ACK, 0, &ack, sizeof ack);
    duck__log(d, "plan: units", s->units);
}

int duck__store_poll(struct duck *d)
{
    struct store *s = &d->store;
    if (s->state != STORE_CLEARING) return 0;
    uint64_t end = s->weights_end < s->dirty ? s->weights_end : s->dirty;
    if (s->cleared < end) {
        uint64_t bytes = end - s->cleared < CLEAR_BYTES ? end - s->cleared : CLEAR_BYTES;
        memset(d->arena + s->cleared, 0, bytes);
        s->cleared += bytes;
    } else {
        make_core(d);
    }
    return 1;
}

int duck__store_complete(const struct duck *d)
{
    const struct store *s = &d->store;
    return s->state == STORE_READY && s->units_held == s->units &&
           (d->session.terms.program_hash == 0 || d->session.terms.program_hash == s->program_hash);
}

uint64_t duck__root_hash(struct duck *d)
{
    struct store *s = &d->store;
    if (s->state != STORE_READY || s->units_held < s->units) return 0;
    if (s->root_hash == 0) s->root_hash = wire_root_hash(s->unit_hash, s->units);
    return s->root_hash;
}

void duck__store_status(struct duck *d, struct wire_opened *o)
{
    const struct store *s = &d->store;
    const struct wire_open *terms = &d->session.terms;
    o->plan_held = s->state == STORE_READY && s->plan_hash == terms->plan_hash;
    o->program_held = terms->program_hash == 0 || s->program_hash == terms->program_hash;
    o->boot_id = d->p->boot_id;
    o->memory_free = d->arena_bytes;
    if (!o->plan_held) return;
    o->units = s->units;
    o->units_held = s->units_held;
    o->staging_slots = s->slots;
    o->root_hash = duck__root_hash(d);
}

/* Bytes of the largest unit, and how many pieces its hash has. */
static uint64_t largest_unit(const struct duck *d)
{
    const struct duck_shape *s = &d->store.shape;
    uint64_t most = sizeof(struct wire_unit);
    for (uint32_t i = 0; i < s->runs; i++)
        for (int which = DUCK_GATE; which <= DUCK_DOWN; which++) {
            struct wire_unit_layout l = wire_unit_layout(s->hidden, (enum duck_matrix)which, s->run[i].count,
                                                         FP9_BLOCK - 8, d->session.terms.element_bytes);
            if (l.bytes > most) most = l.bytes;
        }
    return most;
}

void duck__staging_lay_out(struct duck *d, uint8_t *base, uint64_t *at)
{
    struct store *s = &d->store;
    uint64_t room = largest_unit(d), slots = STAGING_BYTES / room;
    if (slots < 2) slots = 2;
    if (slots > STAGING_SLOTS_MAX) slots = STAGING_SLOTS_MAX;
    s->slots = (uint32_t)slots;
    for (uint32_t i = 0; i < s->slots; i++) {
        struct receiver r = {.room = room, .data = carve(base, at, room)};
        r.bitmap = carve(base, at, room / WIRE_CHUNK(d->session.terms.payload) / 8 + 1);
        s->slot[i] = r;
    }
    s->piece_hash = carve(base, at, (room / WIRE_HASH_PIECE + 1) * sizeof *s->piece_hash);
}
