/* pack.c: a unit that arrived is hashed and packed by all cores, and then held. */
#include "duck/duck_internal.h"

#include <string.h>

enum { TASK_STRIPS = 48, TASK_FLOAT_STRIPS = 8 }; // packed by a task: some 7 us, of e4m3 and of others

static void note_bad(struct packing *p, uint64_t index)
{
    uint64_t seen = atomic_load(&p->bad);
    while (index < seen && !atomic_compare_exchange_weak(&p->bad, &seen, index)) {
    }
}

/* First the pieces of the hash, then the panels' strips. */
static void pack_task(void *arg, uint32_t task)
{
    struct duck *d = arg;
    struct packing *p = &d->store.packing;
    if (task < p->pieces) {
        uint64_t at = (uint64_t)task * WIRE_HASH_PIECE, left = p->r->total - at;
        d->store.piece_hash[task] =
            wire_piece_hash(p->r->data + at, left < WIRE_HASH_PIECE ? left : WIRE_HASH_PIECE);
        return;
    }
    // Strips of all panels, numbered through.
    uint64_t at = (uint64_t)(task - p->pieces) * p->strips_per_task, end = at + p->strips_per_task, where;
    for (uint32_t n; at < end && at / p->strips < p->panels; at += n) {
        uint32_t first = (uint32_t)(at % p->strips);
        n = p->strips - first < end - at ? p->strips - first : (uint32_t)(end - at);
        if (duck_core_load_strips(d->store.core, &p->part, (uint32_t)(at / p->strips), first, n, &where))
            note_bad(p, where);
    }
}

static void refuse(struct duck *d, struct receiver *r, enum wire_put_reason reason, uint64_t value)
{
    struct wire_put_ack ack = {.kind = WIRE_UNIT,
                               .object = r->object,
                               .status = WIRE_PUT_REFUSED,
                               .reason = reason,
                               .hash = r->hash,
                               .value = value};
    r->state = RECEIVER_FREE;
    duck__tell(d, WIRE_PUT_ACK, 0, &ack, sizeof ack);
}

/* Checks the unit's head and sizes; fills the part. 0: not what the plan says. */
static int unit_is_sound(struct duck *d, const struct receiver *r, struct duck_part *part)
{
    struct store *s = &d->store;
    struct wire_unit u;
    if (r->total < sizeof u) return 0;
    memcpy(&u, r->data, sizeof u);
    if ((u.element_bytes != 1 && u.element_bytes != 2 && u.element_bytes != 4) || u.column >= FP9_BLOCK ||
        u.column % 8 || (s->shape.format == FP9_E4M3 && u.element_bytes != 1))
        return 0;
    struct wire_unit_id id = wire_unit_find(&s->shape, r->object);
    struct wire_unit_layout l =
        wire_unit_layout(s->shape.hidden, id.which, s->shape.run[id.run].count, u.column, u.element_bytes);
    if (u.rows != l.rows || u.cols != l.cols || r->total != l.bytes) return 0;
    *part = (struct duck_part){.run = id.run,
                               .expert = id.expert,
                               .which = id.which,
                               .column = u.column,
                               .element_bytes = u.element_bytes,
                               .data = r->data + l.elements,
                               .stride = l.cols,
                               .scales = r->data + l.scales,
                               .scale_stride = l.scale_cols};
    return 1;
}

static void begin(struct duck *d, struct receiver *r)
{
    struct store *s = &d->store;
    struct packing *p = &s->packing;
    if (!unit_is_sound(d, r, &p->part)) {
        refuse(d, r, WIRE_PUT_BAD_OBJECT, 0);
        return;
    }
    if (s->unit_hash[r->object]) { // a new version: until it is packed this unit is nothing whole
        s->unit_hash[r->object] = 0;
        s->units_held--;
    }
    s->root_hash = 0;
    uint64_t where = 0;
    if (duck_core_load_scales(s->core, &p->part, &where)) {
        refuse(d, r, WIRE_PUT_BAD_SCALE, where);
        return;
    }
    p->r = r;
    r->state = RECEIVER_PACKING;
    atomic_store(&p->bad, UINT64_MAX);
    p->pieces = (r->total + WIRE_HASH_PIECE - 1) / WIRE_HASH_PIECE;
    p->panels = duck_core_part_panels(s->core, &p->part);
    p->strips = duck_core_part_strips(s->core, &p->part);
    p->strips_per_task = p->part.element_bytes == 1 ? TASK_STRIPS : TASK_FLOAT_STRIPS;
    uint64_t strips = (uint64_t)p->panels * p->strips;
    uint32_t tasks = p->pieces + (uint32_t)((strips + p->strips_per_task - 1) / p->strips_per_task);
    duck__start_job(d, &(struct team_job){.fn = pack_task, .arg = d}, tasks);
    d->p->wake(d->p->self, &d->team->mail);
}

int duck__pack_next(struct duck *d)
{
    struct store *s = &d->store;
    for (uint32_t i = 0; i < s->slots; i++) {
        if (s->slot[i].state != RECEIVER_COMPLETE) continue;
        begin(d, &s->slot[i]);
        return 1;
    }
    return 0;
}

void duck__pack_over(struct duck *d)
{
    struct store *s = &d->store;
    struct packing *p = &s->packing;
    struct receiver *r = p->r;
    p->r = NULL;
    uint64_t hash = wire_hash_of_pieces(s->piece_hash, p->pieces), bad = atomic_load(&p->bad);
    if (hash != r->hash) {
        refuse(d, r, WIRE_PUT_BAD_HASH, hash);
    } else if (bad != UINT64_MAX) {
        refuse(d, r, WIRE_PUT_BAD_WEIGHT, bad);
    } else {
        s->unit_hash[r->object] = hash;
        s->units_held++;
        r->state = RECEIVER_FREE;
        struct wire_put_ack ack = {
            .kind = WIRE_UNIT, .object = r->object, .status = WIRE_PUT_HELD, .hash = hash};
        for (uint32_t i = 0; i < s->slots; i++) ack.free_slots += s->slot[i].state == RECEIVER_FREE;
        duck__tell(d, WIRE_PUT_ACK, 0, &ack, sizeof ack);
    }
}
