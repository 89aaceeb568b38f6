/* drafts.h: whether drafts pay, from what rounds with and without them were measured to take.
 *
 * A round in which every generation verifies a draft and makes the next one takes longer than a round of
 * single tokens; the draft pays if the share of accepted ones exceeds that price. Prices belong to the engine
 * and to the number of generations that share a round, acceptance to the generation. What is not known is
 * tried: a few rounds without drafts now and then, and a few with them while they are dropped, more rarely
 * each time they fail. Owns numbers only: time and events come from the caller, so tests need no clock. */
#ifndef DUCKD_HOST_ENGINE_DRAFTS_H
#define DUCKD_HOST_ENGINE_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFTS_GENERATIONS 8u // rounds of more share the last price
#define DRAFTS_SAMPLES 9u     // the median of so many rounds is a round's time

struct drafts_cost {
    uint64_t ns[DRAFTS_SAMPLES]; // ring
    uint32_t count;              // ever measured
    uint64_t round;              // when last
};

/* A generation's own. */
struct draft_state {
    double accepted, proposed; // recent ones: older ones fade
    bool dropped;
    uint32_t probe;       // rounds left before a trial is judged
    uint32_t wait, pause; // rounds until the next trial; how long the next wait is
};

struct drafts {
    struct drafts_cost cost[DRAFTS_GENERATIONS][2]; // [generations - 1][with drafts]
    uint64_t round;
    uint32_t single_due[DRAFTS_GENERATIONS]; // rounds without drafts that are still to be measured
    struct draft_state last;                 // of the generation that ended last
};

/* A new generation takes over the trials of the one before, or short answers would never see one. */
void drafts_begin(const struct drafts *d, struct draft_state *s);
void drafts_end(struct drafts *d, const struct draft_state *s);
void drafts_judged(struct draft_state *s, bool accepted);

/* A round of `generations`, all of them with drafts or all without. */
void drafts_measured(struct drafts *d, uint32_t generations, bool with_drafts, uint64_t ns);

/* The acceptance above which a draft pays; NAN until both kinds of rounds are known. */
double drafts_break_even(const struct drafts *d, uint32_t generations);

/* Once per generation and round: shall a draft be made for the next one? */
bool drafts_wanted(struct drafts *d, struct draft_state *s, uint32_t generations);

#endif
