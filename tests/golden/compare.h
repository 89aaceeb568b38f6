/* compare.h: one golden model on one engine: every value that the goldens hold against what duckd computes.
 *
 * compare_forced() runs prompt and greedy continuation through engine_evaluate() with the backend's probe set
 * and adds up differences per kind of value; compare_greedy() generates. Rows that are undecided (two
 * index scores at the threshold closer than fp32 rounding) are left out of comparisons of argmax and of
 * log-probability. */
#ifndef DUCKD_TESTS_GOLDEN_COMPARE_H
#define DUCKD_TESTS_GOLDEN_COMPARE_H

#include <stdbool.h>

#include "host/engine/engine.h"
#include "tests/golden/goldens.h"

enum { COMPARE_ROWS = 2048 }; // the longest prompt with its continuation

/* Relative L2 error of all values of a kind together. */
struct distance {
    double difference, reference; // sums of squares
    uint64_t values;
};
double distance_relative(const struct distance *d);

struct comparison {
    struct distance logits, mtp_logits, hidden, final_norm, router_weights, index_scores, mtp_hidden;
    double mtp_logits_max;   // largest absolute difference
    double next_logprob_max; // of all rows
    uint64_t argmax_rows, argmax_wrong, mtp_argmax_rows, mtp_argmax_wrong;
    uint64_t router_rows, router_wrong, index_rows, index_wrong;
    uint64_t left_out;              // logits rows, because `base` chose otherwise
    uint64_t choices[COMPARE_ROWS]; // per position: hash of the experts and index positions of all layers
};

struct engine *compare_open(const char *dir, const struct engine_options *o); // fails the test if it cannot
/* base: NULL, or an exact run of the same text. A rounded activation can tip a router or an indexer between
 * two candidates of nearly the same score, and then that row has a different result, not a nearby one: logits
 * rows for which `base` chose otherwise are left out and counted. */
void compare_forced(struct engine *e, const struct goldens *g, const char *prompt,
                    const struct comparison *base, struct comparison *out);
/* Generates as many tokens as the golden has and fails unless they are equal. */
struct generation_result compare_greedy(struct engine *e, const struct goldens *g, const char *prompt,
                                        bool ignore_eos);

#endif
