/* flock.h: the ducks as the engine sees them: give a step, get the sum of the experts back.
 *
 * Owns the plan (slices -> ducks), the ducks' weights and the reduction. Which transport carries steps
 * (local: ducks are computed by this process's threads; dpdk: frames) is decided at open and unknown
 * to callers. Bits of y do not depend on the number of ducks, the transport or the other tokens of a
 * step (result dtype f32). All calls come from the engine thread; every wait has a deadline. */
#ifndef DUCKD_HOST_FLOCK_FLOCK_H
#define DUCKD_HOST_FLOCK_FLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "duck/wire_dtype.h"
#include "host/flock/mlp_step.h"
#include "host/model/model.h"
#include "host/util/pool.h"

struct flock_spec; // spec.h

struct flock_options {
    const struct model *model;
    struct pool *pool;
    struct flock_spec *spec; // taken over, also on failure: it is empty afterwards
    uint32_t lanes, max_tokens;
    bool mtp;                      // hold the MTP layer's experts too
    enum fp9_format expert_format; // in the ducks' memory; FP9_E4M3 takes a checkpoint whose experts are e4m3
    enum wire_dtype activation, result; // on the wire; local ducks round the same way
};

/* What a duck on a network says of itself, and what its host counts of its frames. */
struct duck_link_stats {
    char address[24], firmware[24], cpu[48];
    bool present; // false: lost, and not back yet
    uint32_t cores, link_mbps;
    uint64_t memory_total, memory_free, read_bytes_per_second;
    uint64_t frames_in, bytes_in, frames_out, bytes_out; // out: to this duck alone
    uint64_t asked_again, served_again, steps_repeated, chunks_repeated, duplicates, late;
    uint64_t wait_ns; // steps waited in its queue
};

/* Counters of one duck; they prove where the work was done. */
struct duck_stats {
    char name[48];
    uint64_t slices;       // held, over all layers
    uint64_t weight_bytes; // resident
    uint64_t steps;        // answered
    uint64_t expert_reads; // (expert, step) pairs computed
    uint64_t expert_bytes; // read for them
    uint64_t compute_ns;
    bool networked; // `link` is filled
    struct duck_link_stats link;
};

/* Where the steps of a network flock spend their time, summed over steps (docs/flock.md), and the ducks' own
 * times of their latest steps. */
struct flock_times {
    uint64_t steps;
    uint64_t prepare_ns, send_ns, judge_wait_ns, fetch_ns, reduce_ns, judge_gap_ns;
    uint32_t duck_p50_us, duck_p90_us, duck_max_us;
    uint32_t session;  // its number
    uint64_t sessions; // that were opened: more than one if ducks went or came
};

struct flock;
int flock_open(struct flock **out, const struct flock_options *o, struct error *err);
void flock_close(struct flock *f);

/* Hands a step over; step->y is written by the time flock_poll() says 1. One step per lane at a time. */
int flock_submit(struct flock *f, uint32_t lane, const struct mlp_step *step, struct error *err);
/* 1: done, 0: not yet, negative: failed. With `wait`, works or sleeps until done or the deadline passes.
 * -EHOSTDOWN: so many ducks are lost that the others cannot hold the model; later steps work again once ducks
 * are back. */
int flock_poll(struct flock *f, uint32_t lane, bool wait, struct error *err);

/* Between steps: ducks that were lost leave, ducks that came back take part. -EHOSTDOWN: those that are there
 * cannot hold the model, and every step fails until others come back. */
int flock_look(struct flock *f, struct error *err);

uint32_t flock_ducks(const struct flock *f);
/* How its ducks keep experts: "fp9", "e4m3". */
const char *flock_format_name(const struct flock *f);
/* A duck on a network tells what a step was only after the step is answered: flock_settle() waits a moment
 * for that. */
void flock_settle(const struct flock *f);
void flock_duck_stats(const struct flock *f, uint32_t duck, struct duck_stats *out);
/* False: its ducks are in this process. */
bool flock_times(const struct flock *f, struct flock_times *out);

#endif
