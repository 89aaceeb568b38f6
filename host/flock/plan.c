/* plan.c: slices dealt to ducks.
 *
 * Every duck gets one fraction of everything: its share by weight, cut where its memory ends (the rest goes
 * to the others by weight). In each bank the fractions become boundaries on the axis of slices. A boundary
 * may move by 1/32 of the smaller neighbour's share to where a large aligned subtree begins, because every
 * further subtree is a vector more to send; where there is no such place it is rounded. Rounding is shifted
 * from bank to bank, so that fractions of a slice, also of ducks with less than one, come out right over all
 * banks of equal width. */
#include "host/flock/plan.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SNAP_DIVISOR 32.0 // how far a boundary may move: 3 % of a duck's time is less than a vector costs

/* What dealing needs to know about a bank. */
struct bank_slices {
    uint32_t slices;
    size_t start; // of its slices in `owner`
    double phase; // shift of rounding, within (-1/2, 1/2)
};

struct dealing {
    const struct plan_duck *duck;
    uint32_t ducks, banks, hidden;
    enum fp9_format format;
    const struct duck_bank_shape *bank; // (banks)
    struct bank_slices *at;             // (banks)
    double total_bytes;                 // in the longest runs; short ones need a little more
    double *share, *cap, *fraction;     // (ducks): wanted, possible, given; of what is dealt out
    uint64_t *used;                     // (ducks) bytes
    uint32_t *bound;                    // (ducks + 1)
    uint32_t *order;                    // (ducks) along the axis of slices
    uint32_t *owner;                    // of every slice of every bank
    uint32_t *origin;                   // run of the old plan that a slice stays in; NEW_RUN: it moved
    size_t slices;
};
#define NEW_RUN UINT32_MAX

uint64_t plan_run_bytes(enum fp9_format format, uint32_t hidden, const struct duck_bank_shape *bank,
                        uint32_t count)
{
    struct duck_run run = {.bank = 0, .first = 0, .count = count};
    struct duck_shape shape = {
        .hidden = hidden, .banks = 1, .bank = bank, .runs = 1, .run = &run, .format = format};
    size_t with = duck_core_bytes(&shape);
    shape.runs = 0;
    return with - duck_core_bytes(&shape);
}

static void dealing_free(struct dealing *d)
{
    free(d->at);
    free(d->share);
    free(d->cap);
    free(d->fraction);
    free(d->used);
    free(d->bound);
    free(d->order);
    free(d->owner);
    free(d->origin);
}

/* A step through 0 .. count - 1 that meets every number once and puts neighbours far apart. */
static uint32_t stride(uint32_t count)
{
    uint32_t s = (uint32_t)(0.618 * count + 0.5);
    for (;; s++) {
        uint32_t a = count, b = s;
        while (b > 0) {
            uint32_t r = a % b;
            a = b;
            b = r;
        }
        if (a == 1) return s;
    }
}

static void count_slices(struct dealing *d, const struct plan *p)
{
    for (uint32_t b = 0; b < p->banks; b++) {
        struct bank_slices *c = &d->at[b];
        c->slices = p->bank[b].width / FP9_LANES;
        c->start = d->slices;
        d->slices += c->slices;
        d->total_bytes += (double)plan_run_bytes(p->format, p->hidden, &p->bank[b], c->slices);
        uint32_t alike = 0, before = 0;
        for (uint32_t i = 0; i < p->banks; i++) {
            if (p->bank[i].width != p->bank[b].width) continue;
            alike++;
            if (i < b) before++;
        }
        c->phase = ((double)((uint64_t)before * stride(alike) % alike) + 0.5) / alike - 0.5;
    }
}

static int dealing_init(struct dealing *d, const struct plan *p, const struct plan_duck *ducks,
                        struct error *err)
{
    *d = (struct dealing){.duck = ducks,
                          .ducks = p->ducks,
                          .banks = p->banks,
                          .hidden = p->hidden,
                          .format = p->format,
                          .bank = p->bank};
    d->at = calloc(p->banks, sizeof *d->at);
    d->share = calloc(p->ducks, sizeof *d->share);
    d->cap = calloc(p->ducks, sizeof *d->cap);
    d->fraction = calloc(p->ducks, sizeof *d->fraction);
    d->used = calloc(p->ducks, sizeof *d->used);
    d->bound = calloc(p->ducks + 1, sizeof *d->bound);
    d->order = calloc(p->ducks, sizeof *d->order);
    if (d->at) count_slices(d, p);
    d->owner = calloc(d->slices + 1, sizeof *d->owner);
    d->origin = calloc(d->slices + 1, sizeof *d->origin);
    if (d->at && d->share && d->cap && d->fraction && d->used && d->bound && d->order && d->owner &&
        d->origin)
        return 0;
    dealing_free(d);
    return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", p->ducks);
}

/* fraction = min(lambda x share, cap) with the lambda that makes them sum to 1; false: the caps do not allow
 * it. */
static bool water_fill(struct dealing *d)
{
    double left = 1;
    for (uint32_t i = 0; i < d->ducks; i++) d->fraction[i] = -1; // not yet decided
    for (;;) {
        double weight = 0;
        for (uint32_t i = 0; i < d->ducks; i++) weight += d->fraction[i] < 0 ? d->share[i] : 0;
        if (weight <= 0) return left < 1e-12;
        bool capped = false;
        double lambda = left / weight;
        for (uint32_t i = 0; i < d->ducks; i++) {
            if (d->fraction[i] >= 0 || lambda * d->share[i] <= d->cap[i]) continue;
            d->fraction[i] = d->cap[i];
            left -= d->cap[i];
            capped = true;
        }
        if (capped) continue;
        for (uint32_t i = 0; i < d->ducks; i++) {
            if (d->fraction[i] < 0) d->fraction[i] = lambda * d->share[i];
        }
        return true;
    }
}

/* The integer within [at - reach, at + reach] where the largest aligned subtree begins; of equals the nearest
 * to `at`. -1: there is none. */
static int64_t snapped(double at, double reach)
{
    int64_t best = -1;
    for (int64_t i = (int64_t)ceil(at - reach); (double)i <= at + reach; i++) {
        int64_t alignment = i & -i, best_alignment = best & -best;
        bool nearer = fabs((double)i - at) < fabs((double)best - at);
        if (best < 0 || alignment > best_alignment || (alignment == best_alignment && nearer)) best = i;
    }
    return best;
}

/* Cuts `slices` along the ducks: duck order[i] gets [bound[i], bound[i + 1]). */
static void deal(struct dealing *d, uint32_t slices, double phase, bool snap)
{
    double at = 0;
    d->bound[0] = 0;
    for (uint32_t i = 0; i + 1 < d->ducks; i++) {
        double mine = d->fraction[d->order[i]] * slices, next = d->fraction[d->order[i + 1]] * slices;
        at += mine;
        int64_t bound = snap ? snapped(at, fmin(mine, next) / SNAP_DIVISOR + 1e-9) : -1;
        if (bound < 0) bound = (int64_t)floor(at + phase + 0.5);
        if (bound < (int64_t)d->bound[i]) bound = d->bound[i];
        if (bound > (int64_t)slices) bound = slices;
        d->bound[i + 1] = (uint32_t)bound;
    }
    d->bound[d->ducks] = slices;
}

/* Owners become runs. A run of the old plan that stays where it is stays a run of its own: its weights, as
 * the duck holds them, are good for this run only. */
static int make_runs(struct plan *p, const struct dealing *d, struct error *err)
{
    uint32_t n = 0;
    for (uint32_t pass = 0; pass < 2; pass++) { // count, then write
        n = 0;
        for (uint32_t b = 0; b < d->banks; b++) {
            const uint32_t *owner = d->owner + d->at[b].start, *origin = d->origin + d->at[b].start;
            for (uint32_t s = 0; s < d->at[b].slices; s++) {
                bool begins = s == 0 || owner[s] != owner[s - 1] || origin[s] != origin[s - 1];
                n += begins;
                if (pass == 0) continue;
                if (begins) p->run[n - 1] = (struct plan_run){.duck = owner[s], .bank = b, .first = s};
                p->run[n - 1].count++;
            }
        }
        if (pass == 1) break;
        p->run = calloc(n, sizeof *p->run);
        if (!p->run) return error_set(err, -ENOMEM, "no memory for a plan of %u runs", n);
    }
    p->runs = n;
    return 0;
}

/* Exact bytes of what a duck holds of a bank. */
static uint64_t bytes_of_bank(const struct dealing *d, uint32_t bank, uint32_t duck)
{
    const uint32_t *owner = d->owner + d->at[bank].start, *origin = d->origin + d->at[bank].start;
    uint64_t bytes = 0;
    uint32_t run = 0;
    for (uint32_t s = 0; s <= d->at[bank].slices; s++) {
        bool mine = s < d->at[bank].slices && owner[s] == duck;
        if (run > 0 && (!mine || origin[s] != origin[s - 1])) {
            bytes += plan_run_bytes(d->format, d->hidden, &d->bank[bank], run);
            run = 0;
        }
        run += mine;
    }
    return bytes;
}

static void count_used(struct dealing *d)
{
    for (uint32_t i = 0; i < d->ducks; i++) {
        d->used[i] = 0;
        for (uint32_t b = 0; b < d->banks; b++) d->used[i] += bytes_of_bank(d, b, i);
    }
}

static uint64_t room(const struct dealing *d, uint32_t duck)
{
    uint64_t memory = d->duck[duck].memory_bytes;
    return d->used[duck] < memory ? memory - d->used[duck] : 0;
}

static bool too_full(const struct dealing *d, uint32_t duck)
{
    return d->used[duck] > d->duck[duck].memory_bytes;
}

static uint32_t roomiest(const struct dealing *d)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < d->ducks; i++) {
        if (room(d, i) > room(d, best)) best = i;
    }
    return best;
}

/* Gives slice s of a bank to another duck if that has the memory. */
static bool hand_over(struct dealing *d, uint32_t bank, uint32_t s, uint32_t to)
{
    uint32_t *owner = &d->owner[d->at[bank].start + s], from = *owner;
    if (to == from || room(d, to) == 0) return false;
    uint64_t from_before = bytes_of_bank(d, bank, from), to_before = bytes_of_bank(d, bank, to);
    *owner = to;
    uint64_t to_after = bytes_of_bank(d, bank, to);
    if (to_after > to_before && to_after - to_before > room(d, to)) {
        *owner = from;
        return false;
    }
    d->used[from] += bytes_of_bank(d, bank, from) - from_before;
    d->used[to] += to_after - to_before;
    return true;
}

/* A neighbour takes a slice first, so that runs stay whole, or with `anybody` the duck with the most room. */
static void hand_on(struct dealing *d, uint32_t bank, uint32_t s, bool anybody)
{
    const uint32_t *owner = d->owner + d->at[bank].start;
    if (s > 0 && hand_over(d, bank, s, owner[s - 1])) return;
    if (s + 1 < d->at[bank].slices && hand_over(d, bank, s, owner[s + 1])) return;
    if (anybody) hand_over(d, bank, s, roomiest(d));
}

/* Rounding may have put a slice too many on a duck whose memory is nearly full: hands such slices on. Only
 * those that were `from`'s before may move (before = NULL: all may). False: nobody has room for one of them.
 * What a duck held before is not looked at: it may be lost too, with no memory, and dealt with later. */
static bool relieve(struct dealing *d, const uint32_t *before, uint32_t from)
{
    enum { NEIGHBOURS, ANYBODY, NOBODY };
    for (int who = NEIGHBOURS; who <= NOBODY; who++) {
        for (uint32_t b = 0; b < d->banks; b++) {
            const struct bank_slices *c = &d->at[b];
            for (uint32_t s = 0; s < c->slices; s++) {
                if (before && before[c->start + s] != from) continue;
                if (!too_full(d, d->owner[c->start + s])) continue;
                if (who == NOBODY) return false;
                hand_on(d, b, s, who == ANYBODY);
            }
        }
    }
    return true;
}

struct size_text {
    char s[24];
};

/* Five digits: the two sides of "too close" differ in few. */
static struct size_text size_text(double bytes)
{
    struct size_text t;
    snprintf(t.s, sizeof t.s, "%.5g %s", bytes / (bytes < 1e9 ? 1e6 : 1e9), bytes < 1e9 ? "MB" : "GB");
    return t;
}

static int does_not_fit(const struct dealing *d, struct error *err)
{
    double have = 0, largest = 0;
    uint32_t there = 0; // those that are lost have no memory
    for (uint32_t i = 0; i < d->ducks; i++) {
        double m = (double)d->duck[i].memory_bytes;
        have += m;
        largest = fmax(largest, m);
        there += m > 0;
    }
    char ducks[40];
    const uint32_t n = largest > 0 ? there : d->ducks;
    snprintf(ducks, sizeof ducks, n == 1 ? "the duck has" : "the %u ducks have", n);
    const struct size_text needed = size_text(d->total_bytes), held = size_text(have);
    if (have < d->total_bytes && largest == 0)
        return error_set(err, -ENOMEM, "the model's experts need %s of duck memory, %s none", needed.s,
                         ducks);
    if (have < d->total_bytes)
        return error_set(err, -ENOMEM,
                         "the model's experts need %s of duck memory, %s %s; %.0f ducks of %s would fit",
                         needed.s, ducks, held.s, ceil(d->total_bytes / largest), size_text(largest).s);
    return error_set(
        err, -ENOMEM,
        "the model's experts need %s of duck memory, %s %s, which is too close to deal out whole "
        "slices; a little more memory or one more duck would fit",
        needed.s, ducks, held.s);
}

static int check_ducks(const struct plan_duck *ducks, uint32_t count, struct error *err)
{
    if (count == 0) return error_set(err, -EINVAL, "a plan needs at least one duck");
    for (uint32_t i = 0; i < count; i++) {
        if (!(ducks[i].weight > 0) || !isfinite(ducks[i].weight)) {
            return error_set(err, -EINVAL, "duck %u has weight %g, which is not a positive number", i,
                             ducks[i].weight);
        }
    }
    return 0;
}

static int make_banks(struct plan *p, const struct model_config *c, int with_mtp, struct error *err)
{
    p->hidden = c->hidden_size;
    p->banks = c->layers + (with_mtp && c->mtp_layers > 0 ? 1 : 0);
    p->bank = calloc(p->banks, sizeof *p->bank);
    if (!p->bank) return error_set(err, -ENOMEM, "no memory for a plan of %u layers", p->banks);
    for (uint32_t b = 0; b < p->banks; b++) {
        p->bank[b] = model_layer_is_dense(c, b)
                         ? (struct duck_bank_shape){.routed = 0, .always = 1, .width = c->dense_width}
                         : (struct duck_bank_shape){
                               .routed = c->experts, .always = c->shared_experts, .width = c->expert_width};
        if (p->bank[b].width == 0 || p->bank[b].width % FP9_LANES != 0) {
            return error_set(err, -EINVAL, "layer %u: feed-forward width %u is not a positive multiple of %u",
                             b, p->bank[b].width, FP9_LANES);
        }
    }
    return 0;
}

static void deal_all(struct dealing *d, bool snap)
{
    for (uint32_t b = 0; b < d->banks; b++) {
        deal(d, d->at[b].slices, d->at[b].phase, snap);
        for (uint32_t i = 0; i < d->ducks; i++) {
            for (uint32_t s = d->bound[i]; s < d->bound[i + 1]; s++)
                d->owner[d->at[b].start + s] = d->order[i];
        }
    }
    count_used(d);
}

static int place_all(struct dealing *d, struct error *err)
{
    for (uint32_t i = 0; i < d->ducks; i++) {
        d->order[i] = i;
        d->share[i] = d->duck[i].weight;
        d->cap[i] = (double)d->duck[i].memory_bytes / d->total_bytes;
    }
    if (!water_fill(d)) return does_not_fit(d, err);
    deal_all(d, true);
    bool fits = true;
    for (uint32_t i = 0; i < d->ducks; i++) fits = fits && !too_full(d, i);
    if (fits) return 0;
    deal_all(d, false); // memory is too scarce to move boundaries
    return relieve(d, NULL, 0) ? 0 : does_not_fit(d, err);
}

int plan_make(struct plan *out, const struct model_config *c, enum fp9_format format, int with_mtp,
              const struct plan_duck *ducks, uint32_t duck_count, struct error *err)
{
    *out = (struct plan){.ducks = duck_count, .format = format};
    struct dealing d = {0};
    int rc = check_ducks(ducks, duck_count, err);
    if (rc == 0) rc = make_banks(out, c, with_mtp, err);
    if (rc == 0) rc = dealing_init(&d, out, ducks, err);
    if (rc == 0) {
        rc = place_all(&d, err);
        if (rc == 0) rc = make_runs(out, &d, err);
        dealing_free(&d);
    }
    if (rc != 0) plan_free(out);
    return rc;
}

void plan_free(struct plan *p)
{
    free(p->bank);
    free(p->run);
    *p = (struct plan){0};
}

/* ---- a duck is gone ---- */

/* What each survivor should take: what it lacks to its share of the whole. */
static void shares_of_survivors(struct dealing *d, uint32_t lost, double lost_bytes)
{
    double weight = 0;
    for (uint32_t i = 0; i < d->ducks; i++) weight += i == lost ? 0 : d->duck[i].weight;
    double sum = 0;
    for (uint32_t i = 0; i < d->ducks; i++) {
        double held = (double)d->used[i], whole = d->duck[i].weight / weight * d->total_bytes;
        d->share[i] = i == lost ? 0 : fmax(0, whole - held);
        d->cap[i] = i == lost ? 0 : fmax(0, ((double)d->duck[i].memory_bytes - held) / lost_bytes);
        sum += d->share[i];
    }
    for (uint32_t i = 0; i < d->ducks; i++) {
        // Ducks that have their share already still take something if the others' memory ends.
        if (i != lost) d->share[i] = d->share[i] / sum + 1e-9 * d->duck[i].weight / weight;
    }
}

static void deal_lost(struct dealing *d, const uint32_t *before, uint32_t lost)
{
    for (uint32_t b = 0; b < d->banks; b++) {
        const struct bank_slices *c = &d->at[b];
        uint32_t slices = 0, taken = 0, piece = 0;
        for (uint32_t s = 0; s < c->slices; s++) slices += before[c->start + s] == lost;
        deal(d, slices, c->phase, false);
        for (uint32_t s = 0; s < c->slices; s++) {
            if (before[c->start + s] != lost) continue;
            while (d->bound[piece + 1] <= taken) piece++;
            d->owner[c->start + s] = d->order[piece];
            taken++;
        }
    }
    count_used(d);
}

static int place_lost(const struct plan *old, uint32_t lost, struct dealing *d, struct error *err)
{
    for (uint32_t i = 0; i < old->runs; i++) {
        const struct plan_run *r = &old->run[i];
        for (uint32_t s = 0; s < r->count; s++) {
            d->owner[d->at[r->bank].start + r->first + s] = r->duck;
            d->origin[d->at[r->bank].start + r->first + s] = r->duck == lost ? NEW_RUN : i;
        }
    }
    count_used(d);
    double lost_bytes = (double)d->used[lost];
    if (lost_bytes == 0) return 0;
    uint32_t *before = calloc(d->slices, sizeof *before);
    if (!before) return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", old->ducks);
    memcpy(before, d->owner, d->slices * sizeof *before);
    // The neighbour below takes the first piece and the one above the last: their runs only grow. The lost
    // duck itself stands at the end with nothing.
    for (uint32_t i = 0; i < d->ducks; i++) d->order[i] = (lost + d->ducks - 1 - i) % d->ducks;
    shares_of_survivors(d, lost, lost_bytes);
    bool fits = water_fill(d);
    if (fits) {
        deal_lost(d, before, lost);
        fits = relieve(d, before, lost);
    }
    free(before);
    if (fits) return 0;
    int rc = does_not_fit(d, err);
    error_prefix(err, "without duck %u", lost);
    return rc;
}

int plan_without(struct plan *out, const struct plan *old, uint32_t lost, const struct plan_duck *ducks,
                 struct error *err)
{
    *out =
        (struct plan){.hidden = old->hidden, .banks = old->banks, .ducks = old->ducks, .format = old->format};
    int rc = check_ducks(ducks, old->ducks, err);
    if (rc != 0) return rc;
    if (old->ducks < 2)
        return error_set(err, -ENODEV, "the only duck is lost: nobody is left to hold its slices");
    out->bank = calloc(old->banks, sizeof *out->bank);
    if (!out->bank) return error_set(err, -ENOMEM, "no memory for a plan of %u layers", old->banks);
    memcpy(out->bank, old->bank, old->banks * sizeof *out->bank);
    struct plan_duck *left = calloc(old->ducks, sizeof *left);
    struct dealing d = {0};
    if (!left) {
        rc = error_set(err, -ENOMEM, "no memory for a plan of %u ducks", old->ducks);
    } else {
        memcpy(left, ducks, old->ducks * sizeof *left);
        left[lost].memory_bytes = 0;
        rc = dealing_init(&d, out, left, err);
    }
    if (rc == 0) {
        rc = place_lost(old, lost, &d, err);
        if (rc == 0) rc = make_runs(out, &d, err);
        dealing_free(&d);
    }
    free(left);
    if (rc != 0) plan_free(out);
    return rc;
}
