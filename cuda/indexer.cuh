/* indexer.cuh: the two forms of the index scores. */
#ifndef DUCKD_CUDA_INDEXER_CUH
#define DUCKD_CUDA_INDEXER_CUH

#include "cuda/layer.cuh"

/* indexer_tensor.cu: for caches in bf16 and fp8. A row's bits depend on it alone. */
bool scores_tensor_serves(const shape &s, enum kv_dtype dtype);
cudaError_t scores_tensor_launch(const shape &s, enum kv_dtype dtype, const index_args &a, uint32_t rows,
                                 uint32_t positions, cudaStream_t stream);

#endif
