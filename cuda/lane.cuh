/* lane.cuh: one lane's memory, and the chain of launches that is a job.
 *
 * A job is a chain of steps: everything up to the publication of a layer's activation (step 1, 2, ...), the
 * last one up to the logits. Small jobs replay the whole chain as one CUDA graph whose norm kernels wait for
 * the host's flag; larger ones, and all while a probe looks on, launch a step when the host has answered the
 * one before. Both run the same kernels and give the same bits. */
#ifndef DUCKD_CUDA_LANE_CUH
#define DUCKD_CUDA_LANE_CUH

#include "cuda/layer.cuh"
#include "cuda/model.cuh"
#include "cuda/prefill.cuh"

#define GRAPH_ROWS 4u    // jobs up to this size are graphs
#define PART_ROWS 16u    // rows whose attention runs in one launch
#define SCORED_ROWS 128u // rows of a large job that choose their positions in one launch

struct lane_sizes {
    uint32_t rows, positions, vocab; // largest job, longest sequence
    enum kv_dtype dtype;
};

struct lane {
    const struct gpu_model *m;
    shape s; // the model's with this backend's KV
    lane_sizes z;
    cudaStream_t stream;
    // mapped
    struct control *c;
    float *x_host, *y_host, *embed_host, *logits_host, *weights_host;
    int32_t *ids_host, *best_host;
    struct backend_candidates *candidates_host; // (PART_ROWS)
    // device
    struct job *j;
    float2 *rope;
    float *h, *a, *q, *iq, *iw, *qa, *part, *part_ml, *scores, *router, *squares, *gate, *up;
    int32_t *topk;
    uint32_t *arrived;
    float *logits; // (PART_ROWS, vocab)
    unsigned long long *best_part;
    double2 *best_mass;
    uint32_t *best_arrived;
    uint32_t a_stride;
    vec x, ql, ov, dv, mtp_in;
    struct prefill big;
    cudaGraphExec_t graphs[2][2][GRAPH_ROWS]; // kind, sparse, rows - 1
    const struct backend_probe *probe;
};

/* Where a chain stands while it is being launched. */
struct chain {
    enum backend_job_kind kind;
    uint32_t rows, logits_from, position;
    bool sparse, big;       // big: prefill.cuh's launches
    uint32_t at, end, step; // next layer, one past the last, steps published so far
    bool pending;           // the last step's result is still to be added
};

/* Carves the lane's device memory from memory[0, ...), or only counts with NULL; returns the bytes. */
size_t lane_layout(struct lane *l, uint8_t *memory);
int lane_open(struct lane *l, uint32_t graph_rows, struct error *err);
void lane_close(struct lane *l);

chain chain_begin(const struct lane *l, enum backend_job_kind kind, uint32_t position, uint32_t rows,
                  uint32_t logits_from);
/* Launches up to the next publication; *done: it was the last step. */
int chain_step(struct lane *l, chain *k, bool *done, struct error *err);
/* The attention block of one layer: h += attention(x), KV of the job's rows written. Part of chain_step(). */
int lane_attend(struct lane *l, const chain *k, uint32_t index, struct error *err);
/* The graph of a job, or NULL: launch it step by step. */
cudaGraphExec_t lane_graph(const struct lane *l, const chain *k);

#endif
