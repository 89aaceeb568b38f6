/* probe.h: what the ducks do by themselves: steps of random experts, one after the other, with no backend and
 * no other lane beside them. It is the hardware beside a measured run (`duckd bench`), from which `duckd
 * plan` can tell what the run should have taken. */
#ifndef DUCKD_HOST_ENGINE_PROBE_H
#define DUCKD_HOST_ENGINE_PROBE_H

#include "host/engine/engine.h"

struct engine_probe {
    uint32_t tokens; // of a step
    uint32_t steps;
    double seconds, cpu_s; // of the steps; of all threads of this process
    double bytes, flops;   // of experts, read by all ducks; two for a multiply-add
    double duck_s;         // computing, as ducks on a network say, all of them together; 0: ducks are local
};

/* Steps of `tokens` rows through the MoE layers in turn, for at least so many seconds. No
 * generation may be under way. A model without such layers: no steps. */
int engine_probe(struct engine *e, uint32_t tokens, double seconds, struct engine_probe *out,
                 struct error *err);

#endif
