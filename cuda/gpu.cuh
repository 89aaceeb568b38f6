/* gpu.cuh: what all CUDA sources share: error checks, launches, small device helpers.
 *
 * Launches go through gpu_launch(): with programmatic dependent launch the next kernel of a stream may
 * become resident while its predecessor still runs; every kernel calls pdl_wait() before it reads
 * anything a predecessor wrote (weights are constant and may be fetched before), and pdl_trigger() once
 * its successor may come. */
#ifndef DUCKD_CUDA_GPU_CUH
#define DUCKD_CUDA_GPU_CUH

#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "cuda/cuda_host.h"
}

extern const struct cuda_host *gpu_host; // set once by the object's entry

/* 0, or -EIO with "what: CUDA's name and text of the error". */
int gpu_check(cudaError_t e, struct error *err, const char *what);

#define GPU_TRY(call)                                                                                        \
    do {                                                                                                     \
        int gpu_try_rc = gpu_check((call), err, #call);                                                      \
        if (gpu_try_rc) return gpu_try_rc;                                                                   \
    } while (0)

/* The share of a multiprocessor's memory that is shared memory, the same for all kernels whose loads go
 * through the first-level cache (docs/gpu.md): it changes only while nothing runs there, and what is left
 * must hold all loads that are under way. */
static inline cudaError_t gpu_share(const void *kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 58);
}

/* Whether a switch for tools is off: a debugger or race checker that runs a kernel to its end before the next
 * call of the program returns would wait forever for a graph that waits for the program. */
bool gpu_off(const char *variable);

extern bool gpu_pdl; // off for sanitizers and for measuring what it brings

template <class... P, class... A>
inline cudaError_t gpu_launch_with(void (*kernel)(P...), dim3 grid, unsigned block, size_t shared,
                                   unsigned cluster, cudaStream_t stream, A... args)
{
    cudaLaunchAttribute attribute[2];
    unsigned n = 0;
    if (gpu_pdl) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = cluster;
        attribute[n].val.clusterDim.y = attribute[n].val.clusterDim.z = 1;
        n++;
    }
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(block);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = attribute;
    c.numAttrs = n;
    return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

template <class... P, class... A>
inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, unsigned block, size_t shared,
                              cudaStream_t stream, A... args)
{
    return gpu_launch_with(kernel, grid, block, shared, 1, stream, args...);
}

/* Blocks in clusters of `cluster` along x. */
template <class... P, class... A>
inline cudaError_t gpu_launch_clusters(void (*kernel)(P...), dim3 grid, unsigned block, unsigned cluster,
                                       cudaStream_t stream, A... args)
{
    return gpu_launch_with(kernel, grid, block, 0, cluster, stream, args...);
}

__host__ __device__ static inline uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

__device__ static inline void pdl_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ static inline void pdl_trigger()
{
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Butterfly sums give every lane the same bits. */
__device__ static inline float warp_sum(float v)
{
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

__device__ static inline float warp_max(float v)
{
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* Sum over a block of up to 32 warps, the same bits in every thread; `scratch` has 33 floats. */
__device__ static inline float block_sum(float v, float *scratch)
{
    unsigned warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    v = warp_sum(v);
    __syncthreads(); // scratch may still be read from an earlier sum
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = v;
    }
    __syncthreads();
    return scratch[32];
}

#endif
