/* best.cu: what becomes of logits on the device: rows of which only the largest is wanted send its id to the
 * host, the others every value. Blocks share a row; the last to come joins their bests. */
#include "cuda/layer.cuh"

#define THREADS 256u

/* Larger logits first, of equal ones (-0 equals 0) the lower id; a NaN before everything. */
__device__ static inline unsigned long long key_of(float v, uint32_t id)
{
    uint32_t bits = __float_as_uint(v + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (isnan(v)) bits = ~0u;
    return (unsigned long long)bits << 32 | (~0u - id);
}

__device__ static inline int32_t id_of(unsigned long long key)
{
    const uint32_t bits = (uint32_t)(key >> 32);
    if (bits >= 0xff800000u || bits <= 0x007fffffu) return -1; // NaN, +Inf; nothing but -Inf
    return (int32_t)(~0u - (uint32_t)key);
}

__device__ static inline unsigned long long warp_best(unsigned long long v)
{
    for (int o = 16; o; o >>= 1) v = max(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

__global__ void __launch_bounds__(THREADS) best_kernel(const __grid_constant__ best_args a)
{
    __shared__ unsigned long long tops[THREADS / 32];
    const uint32_t r = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    pdl_wait();
    pdl_trigger();
    const bool all = !a.j->best_only;
    const float *x = a.logits + (size_t)r * a.vocab;
    float *host = a.logits_host + (size_t)r * a.vocab;
    unsigned long long top = 0;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < a.vocab; i += BEST_BLOCKS * THREADS) {
        const float v = x[i];
        if (all) host[i] = v;
        top = max(top, key_of(v, i));
    }
    top = warp_best(top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    if (warp != 0) return;
    top = warp_best(lane < THREADS / 32 ? tops[lane] : 0);
    uint32_t before = 0;
    if (lane == 0) {
        a.part[r * BEST_BLOCKS + blockIdx.x] = top;
        __threadfence();
        before = atomicAdd(a.arrived + r, 1);
    }
    before = __shfl_sync(~0u, before, 0);
    if (before + 1 < BEST_BLOCKS) return;
    __threadfence();
    top = 0;
    for (uint32_t i = lane; i < BEST_BLOCKS; i += 32) top = max(top, __ldcg(a.part + r * BEST_BLOCKS + i));
    top = warp_best(top);
    if (lane != 0) return;
    a.arrived[r] = 0;
    a.ids_host[r] = id_of(top);
}

cudaError_t launch_best(const best_args &a, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(best_kernel, dim3(BEST_BLOCKS, rows), THREADS, 0, stream, a);
}
