/* bench_probe.h: the machine by itself, timed in the pauses of a run (host/engine/probe.h).
 *
 * Before each case a slice of every kind, and between its rounds one for every so much time that rounds have
 * taken: with many rows behind rounds of a prompt, with one or two behind those of decoding. So the two are
 * timed in the same seconds as what they are beside. A case's own times leave these pauses out. */
#ifndef DUCKD_HOST_CLI_BENCH_PROBE_H
#define DUCKD_HOST_CLI_BENCH_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/engine/probe.h"

struct bench_probe {
    struct engine_probe *engine; // NULL: a model without experts, for which there is nothing to time
    uint64_t round_ns;           // when the round under way began
    double owed_s[2];            // of few rows, of many
    double paused_s[2];          // so far
    uint64_t cpu_ns;             // that all slices took
};

/* `rows`: of the longest prompt. */
int bench_probe_open(struct bench_probe *p, struct engine *e, uint32_t rows, struct error *err);
void bench_probe_close(struct bench_probe *p);
int bench_probe_begin(struct bench_probe *p, struct error *err); // a case begins behind it
int bench_probe_round(struct bench_probe *p, bool prefill, struct error *err);

#endif
