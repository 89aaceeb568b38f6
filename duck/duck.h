/* duck.h: a duck: frames in, results out. Portable; everything of the machine comes through duck/platform.h.
 *
 * Core 0 calls duck_poll() for ever (or duck_run()), the other cores sit in duck_worker(). All state lies in
 * the platform's memory: nothing is allocated, weights stay over sessions. Bad frames are counted, never
 * fatal. */
#ifndef DUCK_DUCK_H
#define DUCK_DUCK_H

#include "duck/platform.h"
#include "duck/wire.h"

struct duck;

struct duck_options {
    const struct platform *platform; // constant from now on
    const struct link *link;
    struct siphash_key flock_key;
    const struct fp9_kernels *kernels; // of this CPU
    int needs_program;                 // 1: computes only with a program that the host sends (bare metal)
};

/* NULL: the platform's memory is too small for a duck (DUCK_MEMORY_MIN). */
struct duck *duck_start(const struct duck_options *o);
#define DUCK_MEMORY_MIN ((uint64_t)4 << 20)

/* One round: receives a batch, keeps timers, sends what is ready, computes for some 20 microseconds. Returns
 * how long nothing will happen without a frame, in nanoseconds; 0: there is more to do at once. */
uint64_t duck_poll(struct duck *d);
/* Polls until *stop; sleeps (platform->idle) after platform->spin_ns without work. */
void duck_run(struct duck *d, const _Atomic uint32_t *stop);
/* Cores 1 ..: takes tasks until *stop. */
void duck_worker(struct duck *d, const _Atomic uint32_t *stop);

/* The program failed (struct program_ops), and no core is inside it any more: tells the holder, ends the
 * session, forgets the program, keeps the weights. */
void duck_fault(struct duck *d, const struct wire_fault *fault);

#endif
