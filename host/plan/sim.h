/* sim.h: the event model: jobs through layers, alternating between GPU and flock as host/engine/lanes.c does.
 *
 * Every resource (GPU, uplinks, each duck's link and cores) serves in order of request; time is what the
 * resources say, nothing else. All times are seconds from the start of a run. The slices of every duck come
 * from the flock's own plan. */
#ifndef DUCKD_HOST_PLAN_SIM_H
#define DUCKD_HOST_PLAN_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "host/flock/plan.h"
#include "host/model/config.h"
#include "host/plan/inputs.h"

struct sim_job {
    double rows, context;
    double last_rows;     // that go through the last layer: 0 .. rows
    uint32_t first, last; // layers; last == config's layers: the MTP layer too
    bool head;            // ends with the output head
    bool follows;         // enters a layer only after the job before it has left that layer
    double start_s;
    double end_s; // written by sim_run()
};

/* One step alone on an idle flock, in the reference's stages. */
struct sim_stages {
    double prepare_s, send_s, gap_s, compute_s, return_s, fetch_s, reduce_s, total_s;
};

struct sim;
/* The ducks of the plan, numbered as forecast_duck() does. NULL: no memory. */
struct sim *sim_open(const struct model_config *c, const struct forecast_inputs *in, const struct plan *plan);
void sim_close(struct sim *s);

/* Runs jobs[count] in order on `lanes` lanes, all resources idle at 0. Returns when the last one ends, or -1:
 * no memory. */
double sim_run(struct sim *s, struct sim_job *jobs, uint32_t count, uint32_t lanes);
/* Shares of the last run's time that a resource was in use. */
double sim_gpu_share(const struct sim *s);
double sim_duck_share(const struct sim *s); // of the busiest duck's cores

struct sim_stages sim_step_alone(struct sim *s);

#endif
