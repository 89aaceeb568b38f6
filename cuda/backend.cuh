/* backend.cuh: what the CUDA backend holds between calls: the model, its lanes and their jobs, the KV cache.
 */
#ifndef DUCKD_CUDA_BACKEND_CUH
#define DUCKD_CUDA_BACKEND_CUH

#include "cuda/lane.cuh"
#include "cuda/sequences.cuh"

/* A lane moves inside poll only: a follower that must not enter a layer yet is held back by not being polled.
 */
enum lane_state {
    LANE_FREE,
    LANE_STARTED,
    LANE_RESUMED,
    LANE_RUNNING,
    LANE_PUBLISHED,
    LANE_DONE,
    LANE_FAILED
};

struct lane_job {
    enum lane_state state;
    chain k;
    bool graph, last; // last: the step being waited for makes the logits
    uint32_t base, step, logits_from;
    bool candidates;  // the job's
    uint32_t fetched; // of those, rows on the device whose logits are on the host, too: a bit each
    uint64_t since_ns, asked_ns;
    struct error failure;
};

struct cuda_backend {
    struct backend b;
    struct gpu_model m;
    uint32_t lanes, vocab, max_positions;
    kv_layout kv;
    enum kv_dtype dtype;
    struct lane *lane;
    struct lane_job *job;
    uint8_t *lane_memory, *kv_memory;
    struct sequences q;
    uint64_t bytes;
    bool prefill; // large jobs go through cuBLAS
    bool broken;  // the device faulted; nothing works any more
    struct backend_probe probe;
};

/* Decides what goes where on the device, says so, and allocates and loads it (backend_plan.cu). lanes, vocab,
 * max_positions and dtype are set; what a failure leaves behind is cuda_close()'s. */
int backend_place(struct cuda_backend *c, const struct backend_options *o, struct error *err);

#endif
