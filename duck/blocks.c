/* blocks.c: the memory of runs. A block outlives the plan it was made for, so that a plan that gives a duck
 * most of what it had costs only the rest, and one that comes back costs nothing.
 *
 * New blocks go to the first gap that is large enough. If there is none although the memory would do, the
 * plan's blocks are pushed together; all bulk work is done in pieces, between looks at the NIC. */
#include "duck/duck_internal.h"

#include <string.h>

enum { PIECE_BYTES = 1 << 20 }; // some 100 us

static uint64_t hash_bytes(const struct duck_bank_shape *bank)
{
    return (3 * ((uint64_t)bank->routed + bank->always) * sizeof(uint64_t) + 63) / 64 * 64;
}

uint64_t duck__block_bytes(const struct duck_shape *s, uint32_t run)
{
    return hash_bytes(&s->bank[s->run[run].bank]) + duck_core_run_bytes(s, run);
}

static uint64_t end_of(const struct block *b)
{
    return b->at + b->bytes;
}

static void remove_at(struct blocks *t, uint32_t i)
{
    memmove(t->block + i, t->block + i + 1, (t->count - i - 1) * sizeof *t->block);
    t->count--;
}

/* ---- placing ---- */

static int is_run(const struct block *b, const struct duck_shape *s, const struct duck_run *r)
{
    const struct duck_bank_shape *bank = &s->bank[r->bank];
    return b->run.bank == r->bank && b->run.first == r->first && b->run.count == r->count &&
           b->hidden == s->hidden && b->format == s->format && b->bank.routed == bank->routed &&
           b->bank.always == bank->always && b->bank.width == bank->width;
}

/* Which runs of the plan have a block; a bit each in `has`. */
static void match(struct blocks *t, const struct duck_shape *s, uint8_t *has)
{
    t->plan_no++;
    for (uint32_t i = 0; i < t->count; i++) {
        t->block[i].index = BLOCK_OLD;
        t->block[i].to = t->block[i].at;
    }
    for (uint32_t r = 0; r < s->runs; r++)
        for (uint32_t i = 0; i < t->count; i++) {
            struct block *b = &t->block[i];
            if (b->index != BLOCK_OLD || !is_run(b, s, &s->run[r])) continue;
            b->index = r;
            b->plan_no = t->plan_no;
            wire_set_bit(has, r);
            break;
        }
}

static int evict_oldest(struct blocks *t)
{
    uint32_t oldest = UINT32_MAX;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->block[i].index == BLOCK_OLD &&
            (oldest == UINT32_MAX || t->block[i].plan_no < t->block[oldest].plan_no))
            oldest = i;
    if (oldest == UINT32_MAX) return 0;
    remove_at(t, oldest);
    return 1;
}

/* The block that a gap of so many bytes lies in front of; count: behind all. UINT32_MAX: there is none. */
static uint32_t find_gap(const struct blocks *t, uint64_t bytes, uint64_t limit, uint64_t *at)
{
    *at = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->block[i].at - *at >= bytes) return i;
        *at = end_of(&t->block[i]);
    }
    return *at <= limit && limit - *at >= bytes ? t->count : UINT32_MAX;
}

static void insert(struct blocks *t, uint32_t i, const struct duck_shape *s, uint32_t run, uint64_t at)
{
    memmove(t->block + i + 1, t->block + i, (t->count - i) * sizeof *t->block);
    t->count++;
    t->block[i] = (struct block){.at = at,
                                 .to = at,
                                 .bytes = duck__block_bytes(s, run),
                                 .run = s->run[run],
                                 .hidden = s->hidden,
                                 .format = s->format,
                                 .bank = s->bank[s->run[run].bank],
                                 .index = run,
                                 .plan_no = t->plan_no,
                                 .fresh = 1};
}

static int place_new(struct blocks *t, const struct duck_shape *s, uint32_t run, uint64_t limit)
{
    uint64_t at = 0, bytes = duck__block_bytes(s, run);
    do {
        uint32_t i = t->count < BLOCKS_MAX ? find_gap(t, bytes, limit, &at) : UINT32_MAX;
        if (i == UINT32_MAX) continue;
        insert(t, i, s, run, at);
        return 1;
    } while (evict_oldest(t));
    return 0;
}

/* Only blocks of the plan that hold something stay; they are to lie side by side, the new ones behind them.
 */
static void push_together(struct blocks *t, const struct duck_shape *s, uint8_t *has)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count;) {
        struct block *b = &t->block[i];
        if (b->index == BLOCK_OLD || b->fresh) {
            if (b->fresh) has[b->index / 8] = (uint8_t)(has[b->index / 8] & ~(1u << b->index % 8));
            remove_at(t, i);
            continue;
        }
        b->to = at;
        at += b->bytes;
        i++;
    }
    for (uint32_t r = 0; r < s->runs; r++) {
        if (wire_bit(has, r)) continue;
        insert(t, t->count, s, r, at);
        at += duck__block_bytes(s, r);
    }
}

int duck__blocks_cut(struct duck *d, uint64_t limit)
{
    struct blocks *t = &d->store.blocks;
    while (t->count && end_of(&t->block[t->count - 1]) > limit) {
        if (t->block[t->count - 1].index != BLOCK_OLD) return 0;
        t->count--;
    }
    return 1;
}

void duck__blocks_place(struct duck *d, uint64_t limit)
{
    struct blocks *t = &d->store.blocks;
    const struct duck_shape *s = &d->store.shape;
    uint8_t has[BLOCKS_MAX / 8] = {0};
    match(t, s, has);
    int fits = duck__blocks_cut(d, limit);
    for (uint32_t r = 0; r < s->runs && fits; r++) {
        if (wire_bit(has, r)) continue;
        fits = place_new(t, s, r, limit);
        if (fits) wire_set_bit(has, r);
    }
    if (!fits) push_together(t, s, has);
    t->cursor = 0;
    t->phase = 0;
    t->done = 0;
}

/* ---- moving and clearing ---- */

/* A piece of the move to a lower place; pieces go upwards, so nothing is overwritten before it is read. */
static void move_piece(struct duck *d, struct block *b)
{
    struct blocks *t = &d->store.blocks;
    uint64_t left = b->bytes - t->done, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    memmove(d->arena + b->to + t->done, d->arena + b->at + t->done, n);
    t->done += n;
    if (t->done == b->bytes) b->at = b->to;
}

static void clear_piece(struct duck *d, struct block *b)
{
    struct blocks *t = &d->store.blocks;
    uint64_t at = b->at + t->done, left = b->bytes - t->done, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (at < t->clean_from || at + n > t->clean_to) memset(d->arena + at, 0, n);
    t->done += n;
    if (t->done == b->bytes) b->fresh = 0;
}

int duck__blocks_poll(struct duck *d)
{
    struct blocks *t = &d->store.blocks;
    for (; t->phase < 2; t->phase++, t->cursor = 0)
        for (; t->cursor < t->count; t->cursor++, t->done = 0) {
            struct block *b = &t->block[t->cursor];
            if (t->phase == 0 && b->to != b->at) {
                move_piece(d, b);
                return 1;
            }
            if (t->phase == 1 && b->fresh) {
                clear_piece(d, b);
                return 1;
            }
        }
    for (uint32_t i = 0; i < t->count; i++)
        if (end_of(&t->block[i]) > t->clean_from) t->clean_from = end_of(&t->block[i]);
    return 0;
}

void duck__blocks_forget_unfinished(struct duck *d)
{
    struct blocks *t = &d->store.blocks;
    if (t->phase == 0 && t->cursor < t->count && t->done) t->block[t->cursor].fresh = 1; // half of it is gone
    for (uint32_t i = 0; i < t->count;) {
        if (t->block[i].fresh)
            remove_at(t, i);
        else
            i++;
    }
}

/* ---- hashes ---- */

static uint32_t units_of(const struct block *b)
{
    return 3 * (b->bank.routed + b->bank.always);
}

static uint64_t first_unit(const struct duck_shape *s, uint32_t run)
{
    return wire_unit_number(s, (struct wire_unit_id){.run = run});
}

void duck__blocks_gather(struct duck *d)
{
    struct store *s = &d->store;
    s->units_held = 0;
    for (uint32_t i = 0; i < s->blocks.count; i++) {
        const struct block *b = &s->blocks.block[i];
        if (b->index == BLOCK_OLD) continue;
        memcpy(s->unit_hash + first_unit(&s->shape, b->index), d->arena + b->at,
               units_of(b) * sizeof(uint64_t));
    }
    for (uint32_t i = 0; i < s->units; i++) s->units_held += s->unit_hash[i] != 0;
}

void duck__blocks_scatter(struct duck *d)
{
    const struct store *s = &d->store;
    for (uint32_t i = 0; i < s->blocks.count; i++) {
        const struct block *b = &s->blocks.block[i];
        if (b->index == BLOCK_OLD) continue;
        memcpy(d->arena + b->at, s->unit_hash + first_unit(&s->shape, b->index),
               units_of(b) * sizeof(uint64_t));
    }
}

void duck__blocks_tell_core(struct duck *d)
{
    struct store *s = &d->store;
    for (uint32_t i = 0; i < s->blocks.count; i++) {
        const struct block *b = &s->blocks.block[i];
        if (b->index != BLOCK_OLD)
            duck_core_place_run(s->core, b->index, d->arena + b->at + hash_bytes(&b->bank));
    }
}
