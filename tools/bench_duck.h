/* bench_duck.h: what the files of bench-duck share: bench_duck.c sets up, bench_rows.c times, bench_report.c
 * prints.
 *
 * Every repetition times every row once, so that all of them see the same neighbours and clock. Before and
 * after each row a probe asks every thread how many nops its core takes a cycle (bench_limits.h). A core
 * whose other hardware thread is busy, with this machine's work or with another tenant's, takes fewer, and
 * all that is no pure stream of multiply-adds costs more time on it. So a row's repetition counts as
 * undisturbed if both probes came within a tenth of the best one of the whole run. */
#ifndef DUCKD_TOOLS_BENCH_DUCK_H
#define DUCKD_TOOLS_BENCH_DUCK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "duck/duck_core.h"
#include "host/util/pool.h"

enum row {
    READ,
    FMA,
    FMA512,
    L2_OURS,
    L2_E4M3,
    L2_PLAIN,
    STEP,
    HIDDEN,
    DOWN,
    STEP8,
    HIDDEN8,
    DOWN8,
    PLAIN,
    ROWS
};
#define ALONE 0.9 // of the best probe: what is left to noise
enum { CACHED_PANELS = 4, FMA_ROUNDS = 2000, CACHED_PASSES = 8, MAX_REPEATS = 101 };

struct options {
    uint32_t hidden, width, experts, top_k, tokens, threads, repeats;
    int csv, cpu_time, check, rare, has[FP9_FORMATS];
};

/* The same experts in one format. */
struct bank {
    struct duck_core *core;
    void *memory;
    size_t bytes, step_bytes;
    uint8_t *cached;                // panels of each thread's in-cache runs
    uint16_t *marks;                // of these
    uint64_t phase_ns[DUCK_PHASES]; // of the last step
};

struct bench {
    struct options o;
    struct pool *pool;
    const struct fp9_kernels *kernels;
    struct bank bank[FP9_FORMATS];
    const struct bank *largest; // what plain reading reads
    struct duck_work *work;
    enum duck_phase phase;
    enum fp9_format format; // of the step or dot that is being run
    void *scratch;
    uint8_t *cached_plain; // rows of each thread's in-cache runs
    size_t scratch_bytes;
    float *x, *xs, *weights;
    int32_t *ids;
    uint64_t seed;
    size_t plain_rows, plain_chunk, plain_offset; // of the step's weights, as rows of `hidden`
    double *nops_of, *nops_twice; // (threads) of the last probe; the lower one of the last two
    atomic_uint arrived;          // threads at it
    double nops_best; // nops a cycle that two probes running came to: a clock that stands still for
                      // a moment would spoil one
    double seconds[ROWS][MAX_REPEATS];
    double nops[ROWS][MAX_REPEATS]; // the lower one of the probes before and after, slowest thread
};

/* The format that a row is of; FP9_FORMATS: of none. */
extern const uint8_t bench_row_format[ROWS];

/* Uniformly one of 0 .. n - 1. */
uint32_t bench_below(struct bench *b, uint32_t n);
void bench_draw_experts(struct bench *b);
/* One step in format b->format. */
void bench_step(struct bench *b);
/* Whether a row is there: its format was asked for, this CPU has what it needs. */
int bench_has_row(const struct bench *b, enum row row);
/* Times all rows, as repetition `index`. */
void bench_repeat(struct bench *b, uint32_t index);
void bench_report(const struct bench *b);

#endif
