/* attention.cuh: what the two forms of attention share: which positions a row attends to and how they are
 * cut. */
#ifndef DUCKD_CUDA_ATTENTION_CUH
#define DUCKD_CUDA_ATTENTION_CUH

#include "cuda/layer.cuh"

#define ATTENTION_TILE 32u

/* How many positions row r of a launch attends to, and whether they come from the list; position: the job's.
 */
__device__ static inline uint32_t attended(const shape &s, const attention_args &a, uint32_t position,
                                           uint32_t r, bool &listed)
{
    const uint32_t n = position + a.row0 + r + 1;
    listed = a.topk && n > s.index_topk;
    return listed ? s.index_topk : n;
}

__device__ static inline uint32_t split_length(uint32_t n)
{
    return ((n + ATTENTION_SPLITS - 1) / ATTENTION_SPLITS + ATTENTION_TILE - 1) / ATTENTION_TILE *
           ATTENTION_TILE;
}

/* attention_tensor.cu */
bool attention_tensor_serves(const shape &s, enum kv_dtype dtype, size_t shared_limit);
cudaError_t attention_tensor_open(const shape &s, enum kv_dtype dtype, size_t shared_limit);
cudaError_t attention_tensor_launch(const shape &s, enum kv_dtype dtype, const attention_args &a,
                                    uint32_t rows, cudaStream_t stream);

#endif
