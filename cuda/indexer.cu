/* indexer.cu: scores of cached positions and the exact choice of the best index_topk of them.
 *
 * score = sum over heads of relu(q . k) x w, heads in a fixed order, fp32. Chosen are the index_topk largest;
 * equal scores (-0 counts as 0) go to the lower position. Rows that may see everything are skipped. */
#include "cuda/kv.cuh"
#include "cuda/layer.cuh"

#define TILE 32u
#define WARPS 8u
#define PER_WARP 8u // heads
#define DIM_MAX 256u

template <int DTYPE>
__global__ void __launch_bounds__(WARPS * 32)
    scores_kernel(const __grid_constant__ shape s, const __grid_constant__ index_args a)
{
    extern __shared__ __align__(16) float smem[];
    __shared__ float sums[WARPS][TILE];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r = blockIdx.y, stride = s.index_dim + 4;
    float *q = smem, *k = smem + s.index_heads * s.index_dim; // (heads, dim), (TILE, stride)
    pdl_wait();
    pdl_trigger();
    const uint32_t n = a.j->position + a.row0 + r + 1;
    if ((n <= s.index_topk && !a.all) || blockIdx.x * TILE >= n) return;
    const float *iq = a.iq + (size_t)(a.row0 + r) * s.index_heads * s.index_dim;
    const float *iw = a.iw + (size_t)(a.row0 + r) * s.index_heads;
    for (uint32_t i = threadIdx.x * 4; i < s.index_heads * s.index_dim; i += WARPS * 128)
        *reinterpret_cast<float4 *>(q + i) = *reinterpret_cast<const float4 *>(iq + i);
    for (uint32_t base = blockIdx.x * TILE; base < n; base += gridDim.x * TILE) {
        const uint32_t tile = min(TILE, n - base);
        __syncthreads();
        for (uint32_t i = warp; i < tile; i += WARPS) {
            const uint8_t *row = kv_index(s, a.j->pages, a.layer, base + i);
            for (uint32_t c = lane * 4; c < s.index_dim; c += 128)
                *reinterpret_cast<float4 *>(k + i * stride + c) = kv_load<DTYPE>(row, c, s.kv.index_scale_at);
        }
        __syncthreads();
        float score = 0.0f;
        for (uint32_t h0 = warp * PER_WARP; h0 < s.index_heads; h0 += WARPS * PER_WARP) {
            const uint32_t heads = min(PER_WARP, s.index_heads - h0);
            float dot[PER_WARP] = {};
            for (uint32_t c = 0; c < s.index_dim; c += 4) {
                const float4 kv = *reinterpret_cast<const float4 *>(k + lane * stride + c);
#pragma unroll
                for (uint32_t h = 0; h < PER_WARP; h++) {
                    if (h >= heads) break;
                    const float4 v = *reinterpret_cast<const float4 *>(q + (h0 + h) * s.index_dim + c);
                    dot[h] = fmaf(v.x, kv.x, dot[h]);
                    dot[h] = fmaf(v.y, kv.y, dot[h]);
                    dot[h] = fmaf(v.z, kv.z, dot[h]);
                    dot[h] = fmaf(v.w, kv.w, dot[h]);
                }
            }
#pragma unroll
            for (uint32_t h = 0; h < PER_WARP; h++)
                if (h < heads) score = fmaf(fmaxf(dot[h], 0.0f), iw[h0 + h], score);
        }
        sums[warp][lane] = score;
        __syncthreads();
        if (warp == 0 && lane < tile) {
            float sum = 0.0f;
            for (uint32_t w = 0; w < WARPS; w++) sum += sums[w][lane];
            a.scores[(size_t)r * a.stride + base + lane] = sum;
        }
    }
}

/* Order-preserving bits of a score; both zeros are the same. */
__device__ static inline unsigned order(float f)
{
    unsigned u = __float_as_uint(f == 0.0f ? 0.0f : f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A block per row. Radix select: four passes of 8 bits find the smallest chosen score and how many of its
 * equals are chosen; one more pass writes the positions in ascending order. */
__global__ void __launch_bounds__(1024)
    topk_kernel(const __grid_constant__ shape s, const __grid_constant__ index_args a)
{
    __shared__ unsigned bins[256], prefix, wanted;
    __shared__ unsigned above[33], equal[33];
    const uint32_t r = blockIdx.x, t = threadIdx.x, warp = t >> 5, lane = t & 31;
    pdl_wait();
    pdl_trigger();
    const uint32_t n = a.j->position + a.row0 + r + 1;
    int32_t *out = a.topk + (size_t)r * s.index_topk;
    if (n <= s.index_topk) {
        for (uint32_t i = t; i < n; i += blockDim.x) out[i] = (int32_t)i;
        return;
    }
    const float *scores = a.scores + (size_t)r * a.stride;
    if (t == 0) prefix = 0, wanted = s.index_topk;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (t < 256) bins[t] = 0;
        __syncthreads();
        const unsigned mask = shift == 24 ? 0 : ~0u << (shift + 8), want = prefix;
        for (uint32_t i = t; i < n; i += blockDim.x) {
            unsigned key = order(scores[i]);
            if ((key & mask) == want) atomicAdd(&bins[key >> shift & 255], 1);
        }
        __syncthreads();
        if (t == 0) {
            unsigned left = wanted;
            int b = 255;
            while (bins[b] < left) left -= bins[b--];
            prefix |= (unsigned)b << shift;
            wanted = left;
        }
        __syncthreads();
    }
    const unsigned threshold = prefix, ties = wanted;
    if (t == 0) above[32] = equal[32] = 0;
    __syncthreads();
    for (uint32_t base = 0; base < n; base += blockDim.x) {
        const uint32_t i = base + t;
        const unsigned key = i < n ? order(scores[i]) : 0;
        const bool over = i < n && key > threshold, tie = i < n && key == threshold;
        const unsigned overs = __ballot_sync(~0u, over), tied = __ballot_sync(~0u, tie),
                       lower = (1u << lane) - 1;
        if (lane == 0) above[warp] = __popc(overs), equal[warp] = __popc(tied);
        __syncthreads();
        unsigned o = above[32], e = equal[32];
        for (uint32_t w = 0; w < warp; w++) o += above[w], e += equal[w];
        const unsigned ties_before = e + __popc(tied & lower);
        const unsigned at = o + __popc(overs & lower) + min(ties_before, ties);
        if (over || (tie && ties_before < ties)) out[at] = (int32_t)i;
        __syncthreads();
        if (t == 0) {
            for (uint32_t w = 0; w < 32; w++) above[32] += above[w], equal[32] += equal[w];
        }
        __syncthreads();
    }
}

cudaError_t launch_index(const shape &s, enum kv_dtype dtype, const index_args &a, uint32_t rows,
                         uint32_t positions, cudaStream_t stream)
{
    const size_t bytes = ((size_t)s.index_heads * s.index_dim + TILE * (s.index_dim + 4)) * sizeof(float);
    const uint32_t blocks = div_up(positions, TILE) < 1024 ? div_up(positions, TILE) : 1024;
    dim3 grid(blocks, rows);
    auto kernel = dtype == KV_F32    ? scores_kernel<KV_F32>
                  : dtype == KV_BF16 ? scores_kernel<KV_BF16>
                                     : scores_kernel<KV_FP8>;
    cudaError_t e =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e) return e;
    e = gpu_launch(kernel, grid, WARPS * 32, bytes, stream, s, a);
    if (e) return e;
    return gpu_launch(topk_kernel, dim3(rows), 1024, 0, stream, s, a);
}
