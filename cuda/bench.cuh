/* bench.cuh: what the parts of bench-gpu share: a model on the device with one lane, and times. Whatever
 * fails ends the program with its message. */
#ifndef DUCKD_CUDA_BENCH_CUH
#define DUCKD_CUDA_BENCH_CUH

#include "cuda/bench_model.cuh"
#include "cuda/lane.cuh"

extern "C" {
#include "host/util/clock.h"
#include "host/util/log.h"
}

extern const struct backend_ops backend_cuda;

#define REPEATS 20

/* ---- measuring (bench_rig.cu) ---- */

void must(int rc, const struct error *err);
void ok(cudaError_t e, const char *what);
int by_value(const void *a, const void *b); // of floats

/* Median time in microseconds of one replay. */
double time_graph(cudaGraphExec_t g, cudaStream_t s);

template <class F> double time_launches(cudaStream_t s, F launches)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ok(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    launches();
    ok(cudaStreamEndCapture(s, &graph), "capture");
    ok(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    const double us = time_graph(exec, s);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return us;
}

extern double copy_bandwidth; // bytes read and written per microsecond
void measure_copy(cudaStream_t s);

/* ---- the model with a lane ---- */

struct rig {
    struct gpu_model m;
    struct lane l;
    uint32_t *pages;
    uint8_t *memory;
};

void open_rig(rig *t, const struct model *model, uint32_t positions, uint32_t rows, bool shared);
void close_rig(rig *t);
/* The job every replay sees; the results of all its steps count as there. */
void place(rig *t, uint32_t position, uint32_t rows);
/* bf16 values +-[0.5, 1), n pairs of them. */
void fill(void *p, size_t n, cudaStream_t s);
double weight_bytes(const matrix &m);

/* ---- the parts ---- */

void stages(rig *t, uint32_t position, uint32_t rows);         // bench_stages.cu
void prefill_stages(rig *t, uint32_t rows);                    // bench_prefill.cu
void attention_part(rig *t, uint32_t chunk, uint32_t prompt);  // beside plain cuBLAS products
void prefill(rig *t, uint32_t chunk, uint32_t prompt);         // whole layers
void sparse_prefill(rig *t, uint32_t position, uint32_t rows); // beyond index_topk
void flag_round_trips(cudaStream_t s);                         // bench_flags.cu
/* bench_loop.cu: decode through backend.h, the host answering after a delay or with local ducks that hold
 * `layers` layers of `experts` experts. */
void loop_delayed(const struct model *model, uint32_t position, uint32_t rows, uint32_t delay_us);
void loop_ducks(const struct model *model, const char *config, uint32_t position, uint32_t layers,
                uint32_t experts);

#endif
