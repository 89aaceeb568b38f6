/* flash.cuh: attention of many rows of one job over expanded keys and values, on tensor cores. */
#ifndef DUCKD_CUDA_FLASH_CUH
#define DUCKD_CUDA_FLASH_CUH

#include "cuda/layer.cuh"

#define FLASH_QK 192u // width of a query in memory, nope + rope and zeros
#define FLASH_V 128u  // widest value

/* All half floats. */
struct flash_args {
    const __half *q;    // (rows, all heads, FLASH_QK), roped
    const __half *kv;   // (n, heads, nope + v): of these heads
    const __half *rope; // (n, latent + rope): the latents are passed over
    __half *out;        // (rows, out_stride): values of all heads beside each other
    size_t out_stride;
    uint32_t head0, heads;   // of this launch
    uint32_t position, rows; // row i sees positions 0 .. position + i; n = position + rows
};

bool flash_serves(const shape &s, size_t shared_limit);
cudaError_t flash_open(void);
cudaError_t launch_flash(const shape &s, const flash_args &a, cudaStream_t stream);

/* Latents and roped keys of positions 0 .. n - 1 as half floats: (n, latent + rope). */
cudaError_t launch_gather(const shape &s, enum kv_dtype dtype, const job *j, uint32_t layer, __half *out,
                          uint32_t n, cudaStream_t stream);

#endif
