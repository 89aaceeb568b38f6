/* probe.h: what ducks and backend do by themselves, the one without the other. It is the hardware beside a
 * measured run (`duckd bench`), from which `duckd plan` can tell what the run should have taken.
 *
 * Ducks: steps of random experts in the layers that they serve, one after the other, with no backend and no
 * other lane beside them. Backend, where it computes on the cores (those of a GPU are the hardware file's): a
 * job whose steps are answered with zeros at once. Both come in slices, so that they can be spread over a
 * run: what a core gets of the memory changes from one second to the next. */
#ifndef DUCKD_HOST_ENGINE_PROBE_H
#define DUCKD_HOST_ENGINE_PROBE_H

#include "host/engine/engine.h"

/* Rows of a step and of a job: one; two, where a draft is verified so; a prompt's. */
enum probe_rows { PROBE_ONE, PROBE_PAIR, PROBE_MANY, PROBE_KINDS };

/* What all slices of a kind say; NAN: there was none. */
struct probe_rates {
    uint32_t rows;
    bool networked;                // ducks say themselves how long they computed
    double duck_gb_s, duck_gflops; // of one duck: of the experts that it read, two for a multiply-add
    double backend_ms; // many rows: through a layer, on average; else the whole model, head included
};

struct engine_probe;
/* `rows` of many, at most the engine's chunk of a prompt. NULL in *out: a model without experts. */
int engine_probe_open(struct engine_probe **out, struct engine *e, uint32_t rows, struct error *err);
void engine_probe_close(struct engine_probe *p);

/* The next slice, of many rows or of few, of ducks or backend, whichever has had less time: a step; a job, or
 * layers of one of many rows for a quarter of a second. The first two of many, and the first four of few, are
 * at least one of each. Generations may be under way, but between two rounds; -EBUSY: a lane still waits for
 * the answer to a step that was given up. */
int engine_probe_slice(struct engine_probe *p, bool many, struct error *err);
/* cpu_time: in CPU time of this process instead of the clock's; for one thread. */
struct probe_rates engine_probe_rates(const struct engine_probe *p, enum probe_rows kind, bool cpu_time);

#endif
