/* load_bar.h: how far the weights are, all ducks' together and the slowest duck's: on stderr and for /health.
 *
 * A thread of its own looks, because those that load wait for ducks most of the time. What counts is what
 * ducks hold; a duck's rate is its own, over the time in which some of its weights were on their way, because
 * all ducks get theirs in the order of the files and wait for the slowest. */
#ifndef DUCKD_HOST_FLOCK_LOAD_BAR_H
#define DUCKD_HOST_FLOCK_LOAD_BAR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "host/flock/transport.h"
#include "host/util/log.h"

struct load_bar {
    struct transport *transport;
    const struct spec_duck *duck; // (ducks) their names
    uint32_t ducks;
    const _Atomic uint64_t *given; // bytes, where the transport does not tell what ducks hold
    struct progress progress;
    struct duck_loading seen[FLOCK_MAX_DUCKS];
    int slowest; // the one shown; -1: none
    bool begun, end;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

/* `given_total`: of *given. Nothing is shown if ducks hold all already. */
int load_bar_begin(struct load_bar *b, struct transport *t, const struct spec_duck *duck, uint32_t ducks,
                   const _Atomic uint64_t *given, uint64_t given_total, struct error *err);
void load_bar_end(struct load_bar *b); // also of one that could not begin

/* Which duck needs the longest for what it lacks, at its own rate; `shown` as long as it is not clearly
 * another one, so that the line does not jump. -1: all is held. */
int load_bar__slowest(const struct duck_loading *d, uint32_t ducks, int shown);

#endif
