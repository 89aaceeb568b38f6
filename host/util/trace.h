/* trace.h: what happened when, as a Chrome/Perfetto trace: one row per lane, port and duck, and for the
 * engine.
 *
 * Off, a span costs one test of a flag. On, it costs one atomic addition and a store into a ring that was
 * allocated at the start: the newest TRACE_SPANS spans are kept. Spans of a row nest or follow each other;
 * those of the backend and the flock may overlap (one per lane) and are asynchronous events. Names must be
 * string literals. Any thread may add spans; start and write are for the main thread while nobody does. */
#ifndef DUCKD_HOST_UTIL_TRACE_H
#define DUCKD_HOST_UTIL_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "host/util/error.h"

#define TRACE_SPANS (1u << 19)

enum trace_kind {
    TRACE_ENGINE,  // sampling, idling; index 0
    TRACE_LANE,    // jobs, and inside them backend and flock; index: lane
    TRACE_BACKEND, // overlapping; index: lane
    TRACE_FLOCK,   // overlapping; index: lane
    TRACE_PORT,    // of a network flock: sending, adding up; index: port
    TRACE_DUCK,    // computing; index: duck
    TRACE_KINDS
};

extern bool trace_on;

int trace_start(struct error *err);
/* Writes the JSON of everything since trace_start() and ends tracing. Returns how many spans were lost. */
uint64_t trace_write(FILE *to);

#define TRACE_NO_LAYER UINT32_MAX
void trace__add(enum trace_kind kind, uint32_t index, const char *name, uint64_t from_ns, uint64_t to_ns,
                uint32_t layer, uint32_t position, uint32_t rows);

static inline void trace_span(enum trace_kind kind, uint32_t index, const char *name, uint64_t from_ns,
                              uint64_t to_ns, uint32_t layer, uint32_t position, uint32_t rows)
{
    if (__builtin_expect(trace_on, false))
        trace__add(kind, index, name, from_ns, to_ns, layer, position, rows);
}

#endif
