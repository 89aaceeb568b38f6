/* delayed.h: a backend and a transport that take a set time and compute almost nothing, for tests of overlap.
 *
 * The backend serves one segment at a time, the ducks one step at a time, both in order of request; a step's
 * way to the ducks and back takes the wire's delay and occupies nobody. Time is simulated: it passes only
 * when somebody looks at the clock, so that a busy machine changes nothing. What a job computes depends on
 * every layer it passed, so a lost or repeated step shows. */
#ifndef DUCKD_TESTS_ENGINE_DELAYED_H
#define DUCKD_TESTS_ENGINE_DELAYED_H

#include <stdint.h>

#include "host/engine/lanes.h"
#include "host/flock/transport.h"

enum { DELAYED_LANES = 4 };

struct delayed_lane {
    enum { DELAYED_FREE, DELAYED_COMPUTE, DELAYED_PUBLISHED, DELAYED_READY } state;
    uint32_t layer;
    uint64_t ready_ns; // of the segment
    float x, y;
    bool at_ducks;
    struct mlp_step step;
    uint64_t answer_ns;
};

struct delayed {
    struct backend backend;
    struct transport transport;
    uint32_t layers;
    uint64_t backend_ns, duck_ns, wire_ns; // a segment, a step, one way
    uint64_t backend_free_ns, duck_free_ns;
    struct delayed_lane lane[DELAYED_LANES];
};

uint64_t delayed_clock_ns(void);
void delayed_init(struct delayed *d, uint32_t layers, uint64_t backend_ns, uint64_t duck_ns,
                  uint64_t wire_ns);
struct flock_seam delayed_flock(struct delayed *d);
/* What a job that starts with `x` ends with. */
float delayed_expected(uint32_t layers, float x);

#endif
