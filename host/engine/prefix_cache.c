/* prefix_cache.c: few and long entries, so every search is a walk over all of them. */
#include "host/engine/prefix_cache.h"

#include <errno.h>
#include <stdlib.h>

#include "host/util/clock.h"
#include "host/util/error.h"

#define MAX_ENTRIES 64u
#define MIN_POSITIONS 4u // BOS and a mark are not worth a copy

struct entry {
    struct sequence sequence; // its first main_done tokens and their KV
    uint64_t used;            // clock of the cache
    uint64_t kept_ns;
    bool conversation, saved;
};

struct prefix_cache {
    struct entry entry[MAX_ENTRIES + 1]; // (count) one more while room is being made
    uint32_t count;
    uint64_t budget, bytes_per_position, clock;
    prefix_cache_drop_fn *on_drop; // may be NULL
    void *ctx;
};

struct prefix_cache *prefix_cache_open(uint64_t budget_bytes, uint64_t bytes_per_position)
{
    struct prefix_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->budget = budget_bytes;
    c->bytes_per_position = bytes_per_position;
    return c;
}

void prefix_cache_close(struct prefix_cache *c)
{
    if (!c) return;
    while (c->count) {
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < c->count; i++)
            if (c->entry[i].used < c->entry[oldest].used) oldest = i;
        struct entry *e = &c->entry[oldest];
        if (c->on_drop) c->on_drop(c->ctx, &e->sequence, e->conversation, true);
        sequence_close(&e->sequence);
        *e = c->entry[--c->count];
    }
    free(c);
}

void prefix_cache_on_drop(struct prefix_cache *c, prefix_cache_drop_fn *fn, void *ctx)
{
    c->on_drop = fn;
    c->ctx = ctx;
}

static uint64_t bytes(const struct prefix_cache *c, const struct entry *e)
{
    return c->bytes_per_position * e->sequence.main_done;
}

uint64_t prefix_cache_bytes(const struct prefix_cache *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->count; i++) sum += bytes(c, &c->entry[i]);
    return sum;
}

static uint64_t conversation_bytes(const struct prefix_cache *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->entry[i].conversation) sum += bytes(c, &c->entry[i]);
    return sum;
}

static void drop(struct prefix_cache *c, uint32_t i)
{
    sequence_close(&c->entry[i].sequence);
    c->entry[i] = c->entry[--c->count];
}

static uint32_t common_prefix(const struct sequence *a, const int32_t *ids, uint32_t count)
{
    uint32_t n = 0, end = a->main_done < count ? a->main_done : count;
    while (n < end && a->ids[n] == ids[n]) n++;
    return n;
}

/* The entry that gives the most positions; c->count, and no positions: none gives enough. */
static uint32_t best_entry(const struct prefix_cache *c, const int32_t *ids, uint32_t count,
                           enum prefix_reuse how, uint32_t *positions)
{
    uint32_t best = c->count, most = MIN_POSITIONS - 1;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct sequence *s = &c->entry[i].sequence;
        uint32_t n = common_prefix(s, ids, count);
        // The MTP layer's position t has seen token t + 1.
        if (how != PREFIX_MAIN && n > 0) n--;
        if (how == PREFIX_ALL && n > s->mtp_done) n = s->mtp_done;
        if (n >= count) n = count - 1;
        if (n <= most) continue;
        most = n;
        best = i;
    }
    *positions = best == c->count ? 0 : most;
    return best;
}

uint32_t prefix_cache_match(const struct prefix_cache *c, const int32_t *ids, uint32_t count,
                            enum prefix_reuse how)
{
    uint32_t most;
    best_entry(c, ids, count, how, &most);
    return most;
}

/* The entry that is worth least; `spared` (an index, or more than there are) only if there is no other. */
static void give_up(struct prefix_cache *c, uint32_t spared)
{
    bool spare = conversation_bytes(c) <= c->budget / 4 * 3;
    uint32_t worst = spared == 0 && c->count > 1 ? 1 : 0;
    for (uint32_t i = worst + 1; i < c->count; i++) {
        const struct entry *e = &c->entry[i], *w = &c->entry[worst];
        bool differ = spare && e->conversation != w->conversation;
        if (i != spared && (differ ? w->conversation : e->used < w->used)) worst = i;
    }
    if (c->on_drop) c->on_drop(c->ctx, &c->entry[worst].sequence, c->entry[worst].conversation, false);
    drop(c, worst);
}

static bool makes_way(struct prefix_cache *c, int rc, uint32_t spared)
{
    bool full = rc == -ENOMEM || rc == -EBUSY;
    if (!full || c->count == 0) return false;
    give_up(c, spared);
    return true;
}

bool prefix_cache_makes_way(struct prefix_cache *c, int rc)
{
    return makes_way(c, rc, UINT32_MAX);
}

/* What a fork's first n positions are worth. */
static void inherit(struct sequence *s, const struct sequence *from, uint32_t n, enum prefix_reuse how)
{
    s->main_done = s->hidden_from = n; // hidden states do not always come along
    if (how == PREFIX_MAIN || from->mtp_from > n || from->mtp_done < n) return;
    s->mtp_from = from->mtp_from;
    s->mtp_done = n;
}

int prefix_cache_begin(struct prefix_cache *c, struct sequence *s, struct backend *b,
                       const struct sequence_start *start, enum prefix_reuse how, uint32_t *reused,
                       struct error *err)
{
    uint32_t i;
    int rc;
    do {
        i = best_entry(c, start->ids, start->count, how, reused);
        rc = *reused ? sequence_fork(s, &c->entry[i].sequence, *reused, start, err)
                     : sequence_open(s, b, start, err);
    } while (makes_way(c, rc, i));
    if (rc || *reused == 0) return rc;
    c->entry[i].used = ++c->clock;
    inherit(s, &c->entry[i].sequence, *reused, how);
    return 0;
}

/* Gives up entries until the budget holds. */
static void make_room(struct prefix_cache *c)
{
    while (c->count > MAX_ENTRIES || (c->count && prefix_cache_bytes(c) > c->budget)) give_up(c, UINT32_MAX);
}

/* A sequence may own far more positions than it used; what is kept owns as many as it holds. */
static int shrink(struct sequence *s)
{
    struct sequence small;
    uint32_t n = s->main_done;
    if (s->room <= 2 * n) return 0;
    struct error err;
    const struct sequence_start start = {.ids = s->ids, .count = n, .room = n, .positions = n};
    int rc = sequence_fork(&small, s, n, &start, &err);
    if (rc) return rc;
    small.main_done = n;
    small.mtp_from = s->mtp_from;
    small.mtp_done = s->mtp_done;
    sequence_close(s);
    *s = small;
    return 0;
}

void prefix_cache_keep(struct prefix_cache *c, struct sequence *s, bool continued)
{
    uint32_t n = s->main_done;
    for (uint32_t i = 0; i < c->count && n >= MIN_POSITIONS;) {
        struct entry *e = &c->entry[i];
        uint32_t m = e->sequence.main_done, same = common_prefix(&e->sequence, s->ids, n);
        if (same == n && m > n) { // known, and more
            e->used = ++c->clock;
            n = 0;
        } else if (same == m) { // what is there begins this one
            drop(c, i);
        } else {
            i++;
        }
    }
    int rc = n < MIN_POSITIONS || n * c->bytes_per_position > c->budget ? -E2BIG : shrink(s);
    while (makes_way(c, rc, UINT32_MAX)) rc = shrink(s);
    if (rc) {
        sequence_close(s);
        return;
    }
    c->entry[c->count++] =
        (struct entry){.sequence = *s, .used = ++c->clock, .kept_ns = clock_ns(), .conversation = continued};
    *s = (struct sequence){0};
    make_room(c);
}

const struct sequence *prefix_cache_unsaved(struct prefix_cache *c, uint64_t before_ns, bool *conversation,
                                            bool *later)
{
    struct entry *latest = NULL;
    *later = false;
    for (uint32_t i = 0; i < c->count; i++) {
        struct entry *e = &c->entry[i];
        if (e->saved) continue;
        if (latest || e->kept_ns > before_ns) *later = true;
        if (e->kept_ns <= before_ns && (!latest || e->kept_ns > latest->kept_ns)) latest = e;
    }
    if (!latest) return NULL;
    latest->saved = true;
    *conversation = latest->conversation;
    return &latest->sequence;
}
