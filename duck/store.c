/* store.c: a plan, its weights, and what of them is there.
 *
 * The arena holds, from its beginning, blocks of weights (blocks.c); up to its end what is made anew for
 * every plan: the head of the duck core and the hashes of the units; below that what belongs to the session:
 * staging slots and step slots. A new plan drops nothing but its predecessor's order: runs that both have
 * stay. The judge's program may read all of it, and write the step slots, which have pages of their own. */
#include "duck/duck_internal.h"

#include <string.h>

void duck__store_start(struct duck *d, uint64_t *at)
{
    uint8_t *base = d->p->memory;
    struct store *s = &d->store;
    s->plan = (struct receiver){.room = PLAN_MAX, .data = carve(base, at, PLAN_MAX)};
    s->plan.bitmap = carve(base, at, PLAN_MAX / 128);
    s->program = (struct receiver){.room = PROGRAM_MAX, .data = carve(base, at, PROGRAM_MAX)};
    s->program.bitmap = carve(base, at, PROGRAM_MAX / 128);
    s->blocks.block = carve(base, at, BLOCKS_MAX * sizeof *s->blocks.block);
    s->blocks.clean_to = UINT64_MAX;
}

void duck__store_drop(struct duck *d)
{
    struct store *s = &d->store;
    duck__drain(d);
    duck__judge_reset(d);
    d->judge.slots = 0;
    s->slots = 0;
    if (s->state == STORE_READY) duck__blocks_scatter(d);
    if (s->state == STORE_CLEARING) duck__blocks_forget_unfinished(d);
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
    if (p.banks == 0 || p.banks > 256 || p.runs > BLOCKS_MAX || p.hidden > 65536) return 0;
    if (s->plan.total != sizeof p + p.banks * sizeof(struct wire_bank) + p.runs * sizeof(struct wire_run))
        return 0;
    const void *banks = s->plan.data + sizeof p,
               *runs = s->plan.data + sizeof p + p.banks * sizeof(struct wire_bank);
    s->shape = (struct duck_shape){.hidden = p.hidden,
                                   .banks = p.banks,
                                   .bank = banks,
                                   .runs = p.runs,
                                   .run = runs,
                                   .format = (enum fp9_format)p.format};
    for (uint32_t i = 0; i < p.banks; i++) {
        const struct duck_bank_shape *b = &s->shape.bank[i];
        if (b->routed > 65535 || b->always > 4096 || b->width > 1u << 18) return 0;
    }
    return duck_shape_is_possible(&s->shape);
}

/* Bytes of the largest unit. */
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

/* The session's staging slots; with base NULL only counts. */
static void lay_out_staging(struct duck *d, uint8_t *base, uint64_t *at)
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

static uint64_t session_bytes(struct duck *d)
{
    uint64_t staging = 0, steps = 0;
    lay_out_staging(d, NULL, &staging);
    duck__judge_lay_out(d, NULL, &steps);
    align_to(&steps, d->grain); // they end at s->top
    return staging + steps;
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
    uint64_t units = wire_units(&s->shape), head = 0, hashes = 0;
    carve(NULL, &head, duck_core_head_bytes(&s->shape));
    carve(NULL, &hashes, units * sizeof *s->unit_hash);
    s->core_bytes = 0;
    for (uint32_t i = 0; i < s->shape.runs; i++) s->core_bytes += duck__block_bytes(&s->shape, i);
    ack->reason = WIRE_PUT_NO_MEMORY;
    ack->value = s->core_bytes + head + hashes;
    ack->available = d->arena_bytes;
    if (units > UINT32_MAX || ack->value > d->arena_bytes) return 0;
    s->top = (d->arena_bytes - head - hashes) / d->grain * d->grain;
    struct blocks *t = &s->blocks;
    while (t->count && t->block[t->count - 1].at + t->block[t->count - 1].bytes > s->top) t->count--;
    s->core = duck_core_init_head(d->arena + s->top, &s->shape, d->kernels);
    s->unit_hash = (uint64_t *)(void *)(d->arena + s->top + head);
    uint64_t session = session_bytes(d);
    ack->value = s->core_bytes + session + d->arena_bytes - s->top;
    if (ack->value > d->arena_bytes) return 0;
    ack->status = WIRE_PUT_RECEIVED;
    ack->reason = 0;
    ack->value = ack->available = 0;
    duck__blocks_place(d, s->top - session);
    s->units = (uint32_t)units;
    s->state = STORE_CLEARING;
    return 1;
}

static void share(struct duck *d, uint64_t at, uint64_t end, enum program_rights rights)
{
    const struct program_ops *program = d->p->program;
    if (program && program->share) program->share(d->p->self, d->arena + at, end - at, rights);
}

uint64_t duck__lay_out_session(struct duck *d)
{
    struct store *s = &d->store;
    uint64_t bytes = session_bytes(d);
    if (s->core_bytes > s->top || bytes > s->top - s->core_bytes)
        return s->core_bytes + bytes + d->arena_bytes - s->top;
    uint64_t at = s->top - bytes;
    if (!duck__blocks_cut(d, at)) {
        duck__store_drop(d);
        return 0;
    }
    if (at < s->blocks.clean_to) s->blocks.clean_to = at;
    lay_out_staging(d, d->arena, &at);
    uint64_t steps = at;
    duck__judge_lay_out(d, d->arena, &at);
    duck__drain(d);
    share(d, 0, steps, PROGRAM_READ);
    share(d, steps, s->top, PROGRAM_WRITE);
    share(d, s->top, d->arena_bytes, PROGRAM_READ);
    return 0;
}

/* All is in its place for the session that there is now; another than the plan came with may need more room.
 */
static int session_fits(struct duck *d, struct wire_put_ack *ack)
{
    struct store *s = &d->store;
    uint64_t bytes = session_bytes(d);
    ack->value = s->core_bytes + bytes + d->arena_bytes - s->top;
    ack->available = d->arena_bytes;
    if (ack->value > d->arena_bytes) {
        ack->status = WIRE_PUT_REFUSED;
        ack->reason = WIRE_PUT_NO_MEMORY;
        s->plan.state = RECEIVER_FREE;
        duck__store_drop(d);
        duck__tell(d, WIRE_PUT_ACK, 0, ack, sizeof *ack);
        return 0;
    }
    ack->value = ack->available = 0;
    if (duck__blocks_cut(d, s->top - bytes)) return 1;
    duck__blocks_place(d, s->top - bytes);
    return 0;
}

/* The duck core comes into being. */
static void make_core(struct duck *d)
{
    struct store *s = &d->store;
    struct wire_put_ack ack = {.kind = WIRE_PLAN, .status = WIRE_PUT_HELD, .hash = s->plan.hash};
    if (d->session.open && !session_fits(d, &ack)) return;
    duck__blocks_tell_core(d);
    duck__blocks_gather(d);
    s->state = STORE_READY;
    s->plan_hash = s->plan.hash;
    s->plan.state = RECEIVER_FREE;
    if (!d->session.open) return;
    duck__lay_out_session(d); // fits
    duck__tell(d, WIRE_PUT_ACK, 0, &ack, sizeof ack);
    duck__log(d, "plan: units", s->units);
    duck__log(d, "of these held already:", s->units_held);
}

int duck__store_poll(struct duck *d)
{
    if (d->store.state != STORE_CLEARING) return 0;
    if (!duck__blocks_poll(d)) make_core(d);
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
