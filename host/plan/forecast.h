/* forecast.h: what a model on some hardware will do: does it fit, how long does it start, prefill, decode.
 *
 * Pure: the same inputs give the same forecast. What decides the speed is found by asking, not by rule: each
 * hardware figure is made twice as good in turn, and the one that helps decode most is the bottleneck. */
#ifndef DUCKD_HOST_PLAN_FORECAST_H
#define DUCKD_HOST_PLAN_FORECAST_H

#include <stdbool.h>

#include "host/model/config.h"
#include "host/plan/inputs.h"
#include "host/plan/sim.h"

struct forecast_fit {
    const char *where;
    double needs_gb, has_gb; // 10^9 bytes
};

struct forecast {
    bool fits;
    struct forecast_fit fit[3]; // GPU, fullest duck, host
    unsigned fits_count;
    double experts_gb, checkpoint_gb; // on disk
    double cold_start_s, disk_s, uplink_s, link_s;
    double ttft_s, prefill_tok_s;
    double round_ms, pair_ms, serial_pair_ms, fast_ms; // pair: both rows; fast: from there to the end of MTP
    double mtp_prompt_ms; // before the first draft, once: the MTP layer over the end of the prompt
    double tpot_ms, decode_tok_s;
    double duck_share, gpu_share; // busy, of a pair
    struct sim_stages stages;
    double duck_step_mb; // read by the fullest duck in one step
    const char *bottleneck;
    double bottleneck_gain; // decode, with twice of it
};

int forecast_make(struct forecast *out, const struct model_config *c, const struct forecast_inputs *in,
                  struct error *err);

#endif
