/* fake.h: a language model made of hashes behind the backend and flock seams.
 *
 * Each layer's state of a position is a hash of the states of all positions before it, so any KV entry that
 * is wrong or missing when it is read changes everything after it. fake_reference() computes the same model
 * directly from the whole text, without jobs, lanes or KV. Jobs can be slow, answers late, calls can fail. */
#ifndef DUCKD_TESTS_ENGINE_FAKE_H
#define DUCKD_TESTS_ENGINE_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/engine/engine_internal.h"

enum {
    FAKE_LAYERS = 3,
    FAKE_VOCAB = 40,
    FAKE_POSITIONS = 160,
    FAKE_EOS = 39,
    FAKE_SEQS = 32,
    FAKE_LANES = 8,
    FAKE_CANDIDATES = 6
};

#define FAKE_NOTHING 0xeeeeeeeeu // in place of a state that was not computed

struct fake_kv {
    uint32_t main[FAKE_LAYERS][FAKE_POSITIONS], mtp[FAKE_POSITIONS];
    uint32_t hidden[FAKE_POSITIONS];
};

struct fake_seq {
    bool open;
    uint32_t capacity, main_end, mtp_end;
    struct fake_kv kv;
};

struct fake_lane {
    enum { FAKE_FREE, FAKE_COMPUTE, FAKE_PUBLISHED, FAKE_READY } state;
    struct backend_job job;
    int32_t ids[FAKE_POSITIONS];
    uint32_t layer, busy;
    uint32_t h[FAKE_POSITIONS];
    float x[2 * FAKE_POSITIONS], y[2 * FAKE_POSITIONS];
    float logits[FAKE_POSITIONS][FAKE_VOCAB];
    struct backend_candidates candidates[FAKE_POSITIONS];
    struct mlp_step step; // at the flock
    bool at_flock;
    uint32_t delay;
};

enum fake_sickness { SICK_NO, SICK_START, SICK_POLL, SICK_SUBMIT, SICK_ANSWER, SICK_NAN, SICK_OPEN };

struct fake_start {
    enum backend_job_kind kind;
    backend_seq seq;
    uint32_t lane, position, tokens;
};

struct fake {
    struct backend backend;
    struct model model;
    uint32_t max_tokens;
    bool two_lanes; // a job may start while the position before it is in another lane
    struct fake_seq seq[FAKE_SEQS];
    struct fake_lane lane[FAKE_LANES];
    uint32_t most_seqs; // more are refused; 0: FAKE_SEQS

    uint32_t slow;        // calls that a poll is busy or a step unanswered, at most
    uint32_t random;      // state
    bool never_answers;   // the flock
    bool never_publishes; // the backend
    backend_seq sick_seq; // whose calls of the kind below fail; FAKE_SEQS: nobody's
    uint32_t sick_position;
    enum fake_sickness sick;

    struct fake_start start[4096];
    uint32_t starts, most_at_once;
    uint32_t rows_asked; // whole rows of jobs that wanted candidates
    struct fake_seq last_closed;
};

struct fake *fake_open(void);
struct flock_seam fake_flock(struct fake *f);

/* Main logits after ids[0, count): what token `count` is chosen by. kv may be NULL. */
void fake_reference(const int32_t *ids, uint32_t count, float *logits, struct fake_kv *kv);
/* MTP logits of position count - 2: what token `count` is drafted by. */
void fake_mtp_reference(const int32_t *ids, uint32_t count, float *logits);

#endif
