/* inputs.h: what a forecast is made from: hardware, software, scheme and work, each key once, with its unit.
 *
 * One table (inputs.c) serves the hardware file, --set and the listing; docs/plan.md explains every key. All
 * values are doubles in the unit their name ends with; switches are 0 or 1. Unknown keys and values out of
 * range are refused by name. Unlike ducks stand in the file's "kinds". */
#ifndef DUCKD_HOST_PLAN_INPUTS_H
#define DUCKD_HOST_PLAN_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

#define FORECAST_KINDS 8u

/* So many ducks that differ from the file's duck_* keys, by factors: what changes those changes them alike.
 */
struct duck_kind {
    double ducks, memory, bandwidth, gflops, link;
};

struct forecast_inputs {
    struct duck_kind kind[FORECAST_KINDS]; // ducks 0 .. are of kind[0], and so on; the rest are plain
    unsigned kinds;
    // hardware: the file must give all of these
    double ducks, duck_memory_gib, duck_bandwidth_gb_s, duck_gflops, duck_link_gbit_s;
    double domains, uplink_gbit_s, frame_bytes, latency_us;
    double gpu, gpu_memory_gib, gpu_bandwidth_gb_s, gpu_tflops;
    double host_memory_gib, host_bandwidth_gb_s, host_gflops, disk_gb_s;
    // software: set by the scheme
    double memory_share, flop_share, gpu_layer_us, step_gap_us, prepare_us, prefill_chunk;
    // scheme: switches
    double dual_lane, one_job, streamed, back_to_back, blocked_prefill, shared_on_gpu, merged, merged_lanes,
        host_duck, gpu_duck, copies, mtp, indexer;
    // work
    double acceptance, prompt_tokens, output_tokens, expert_bits, checkpoint_bits, draft_bits,
        activation_bytes, result_bytes, kv_bytes, held_experts;
};

enum input_group { INPUT_HARDWARE, INPUT_SOFTWARE, INPUT_SCHEME, INPUT_WORK };

struct input_key {
    const char *name;
    enum input_group group;
    size_t offset;
    double low, high;
    double preset[2]; // by scheme; hardware has none
    int whole;
    const char *what;
};
extern const struct input_key forecast_keys[];
extern const size_t forecast_key_count;

enum forecast_scheme { SCHEME_REFERENCE, SCHEME_DUCKD };

/* Presets of software, scheme and work, then the hardware file over them. */
int forecast_inputs_read(struct forecast_inputs *out, enum forecast_scheme scheme, const char *path,
                         struct error *err);
/* One "key=value"; -ENOENT: no such key. */
int forecast_inputs_set(struct forecast_inputs *in, const char *assignment, struct error *err);
/* What depends on several keys. */
int forecast_inputs_check(const struct forecast_inputs *in, struct error *err);

/* One duck's figures. Behind the in->ducks come those of the scheme without a wire: the host's memory if
 * host_duck, then the GPU's if gpu_duck (whose weights are fp8 and whose memory is what forecast.c leaves
 * it). */
enum duck_place { DUCK_NETWORK, DUCK_HOST, DUCK_GPU };
struct duck_hardware {
    double memory_gib, bandwidth_gb_s, gflops, link_gbit_s;
    enum duck_place place;
};
struct duck_hardware forecast_duck(const struct forecast_inputs *in, uint32_t duck);
uint32_t forecast_ducks(const struct forecast_inputs *in); // all of them

/* What these inputs suppose that duckd does not do. Returns how many there are, at most FORECAST_UNBUILT. */
#define FORECAST_UNBUILT 8u
struct forecast_unbuilt {
    const char *key, *why;
    double value;
};
unsigned forecast_unbuilt(const struct forecast_inputs *in, struct forecast_unbuilt out[FORECAST_UNBUILT]);

double *forecast_input(struct forecast_inputs *in, const struct input_key *key);

#endif
