/* bench_model.cuh: bench-gpu's model: random codes, scaled so that activations stay finite, behind the
 * interface through which the backend's own loader reads a checkpoint. */
#ifndef DUCKD_CUDA_BENCH_MODEL_CUH
#define DUCKD_CUDA_BENCH_MODEL_CUH

#include "cuda/gpu.cuh"

/* Makes what bench_host's matrices consist of; one at a time. */
void bench_model_open(const struct model_config *c);
void bench_model_close();

extern const struct cuda_host bench_host;

#endif
