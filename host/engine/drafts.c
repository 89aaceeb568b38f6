/* drafts.c: see drafts.h. Medians, because one round that was interrupted says nothing about the next. */
#include "host/engine/drafts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN 3u            // rounds after which a price counts
#define REFRESH_ROUNDS 256u // single rounds are measured again after so many: contexts grow
#define PROBE_ROUNDS 8u     // a trial of drafts that were dropped
#define FIRST_PAUSE 64u     // rounds without drafts before a trial; doubles with each that fails
#define LONGEST_PAUSE 256u
#define FADE (1.0 - 1.0 / 32) // of the weight of older drafts
#define HYSTERESIS 0.02       // of the rate: less is not worth a change
#define PRIOR_ACCEPTANCE 0.8  // of a generation that has shown nothing yet, worth two drafts
#define PRIOR_WEIGHT 2.0

void drafts_begin(const struct drafts *d, struct draft_state *s)
{
    *s = d->last;
    s->accepted = PRIOR_ACCEPTANCE * PRIOR_WEIGHT;
    s->proposed = PRIOR_WEIGHT;
    if (s->pause == 0) s->pause = FIRST_PAUSE;
}

void drafts_end(struct drafts *d, const struct draft_state *s)
{
    d->last = *s;
}

void drafts_judged(struct draft_state *s, bool accepted)
{
    s->accepted = s->accepted * FADE + (accepted ? 1 : 0);
    s->proposed = s->proposed * FADE + 1;
}

static uint32_t row_of(uint32_t generations)
{
    if (generations == 0) return 0;
    return (generations < DRAFTS_GENERATIONS ? generations : DRAFTS_GENERATIONS) - 1;
}

void drafts_measured(struct drafts *d, uint32_t generations, bool with_drafts, uint64_t ns)
{
    uint32_t row = row_of(generations);
    struct drafts_cost *c = &d->cost[row][with_drafts];
    c->ns[c->count++ % DRAFTS_SAMPLES] = ns;
    c->round = ++d->round;
    if (!with_drafts && d->single_due[row] > 0) d->single_due[row]--;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median(const struct drafts_cost *c)
{
    uint64_t sorted[DRAFTS_SAMPLES];
    uint32_t n = c->count < DRAFTS_SAMPLES ? c->count : DRAFTS_SAMPLES;
    memcpy(sorted, c->ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    uint32_t middle = n / 2;
    return (double)sorted[middle];
}

double drafts_break_even(const struct drafts *d, uint32_t generations)
{
    const struct drafts_cost *c = d->cost[row_of(generations)];
    if (c[0].count < KNOWN || c[1].count < KNOWN) return NAN;
    return median(&c[1]) / median(&c[0]) - 1;
}

/* Rounds without drafts are due where their price is unknown or old and drafts have been measured. */
static bool single_due(struct drafts *d, uint32_t row)
{
    const struct drafts_cost *without = &d->cost[row][0], *with = &d->cost[row][1];
    if (d->single_due[row] == 0 && with->count >= KNOWN &&
        (without->count < KNOWN || d->round - without->round > REFRESH_ROUNDS))
        d->single_due[row] = without->count < KNOWN ? KNOWN - without->count : 2;
    return d->single_due[row] > 0;
}

static void drop(struct draft_state *s)
{
    s->dropped = true;
    s->wait = s->pause;
    s->pause = s->pause < LONGEST_PAUSE ? 2 * s->pause : LONGEST_PAUSE;
}

/* What was accepted before the trial still counts, but the trial's own drafts outweigh it. */
static void try_again(struct draft_state *s)
{
    s->dropped = false;
    s->probe = PROBE_ROUNDS;
    if (s->proposed > PRIOR_WEIGHT) {
        s->accepted *= PRIOR_WEIGHT / s->proposed;
        s->proposed = PRIOR_WEIGHT;
    }
}

bool drafts_wanted(struct drafts *d, struct draft_state *s, uint32_t generations)
{
    double price = drafts_break_even(d, generations);
    double gain = (1 + s->accepted / s->proposed) / (1 + price); // NAN: not known
    if (s->dropped) {
        if (s->wait > 0) s->wait--;
        if (gain > 1 + HYSTERESIS || s->wait == 0) try_again(s);
        return !s->dropped;
    }
    if (single_due(d, row_of(generations))) return false;
    if (s->probe > 0) {
        s->probe--;
        return true;
    }
    if (gain < 1 - HYSTERESIS)
        drop(s);
    else if (gain > 1 + HYSTERESIS)
        s->pause = FIRST_PAUSE;
    return !s->dropped;
}
