/* indexer.cu: scores of cached positions and the exact choice of the best index_topk of them.
 *
 * score = sum over heads of relu(q . k) x w, heads in a fixed order, here in fp32 over any cache
 * (indexer_tensor.cu serves bf16 and fp8). Chosen are the index_topk largest;
 * equal scores (-0 counts as 0) go to the lower position. Rows that may see everything are skipped. */
#include "cuda/indexer.cuh"
#include "cuda/kv.cuh"

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
        const uint8_t *mine = lane < tile ? kv_index(s, a.j->pages, a.layer, base + lane) : nullptr;
#pragma unroll
        for (uint32_t i = warp; i < TILE; i += WARPS) {
            const unsigned long long at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine), i);
            if (!at) continue;
            for (uint32_t c = lane * 4; c < s.index_dim; c += 128)
                *reinterpret_cast<float4 *>(k + i * stride + c) =
                    kv_load<DTYPE>(reinterpret_cast<const uint8_t *>(at), c, s.kv.index_scale_at);
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

#define BIN_BITS 11u
#define BINS (1u << BIN_BITS)

#define RUN 4u // neighbouring scores that a thread takes at once

/* The keys of scores i .. i + 3; 0, which no score has, beyond n. */
__device__ static inline void load_keys(const float *scores, uint32_t i, uint32_t n, unsigned key[RUN])
{
    const float4 v = i < n ? *reinterpret_cast<const float4 *>(scores + i) : make_float4(0, 0, 0, 0);
    const float f[RUN] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t j = 0; j < RUN; j++) key[j] = i + j < n ? order(f[j]) : 0;
}

/* Counts the keys whose upper bits are `want`, by their next bits; lanes with equal bins add once. */
__device__ static void count_keys(const float *scores, uint32_t n, unsigned want, unsigned mask,
                                  unsigned shift, unsigned *bins)
{
    const uint32_t lane = threadIdx.x & 31, step = blockDim.x * RUN;
    for (uint32_t base = threadIdx.x * RUN; base < n; base += 4 * step) {
        unsigned key[4][RUN];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) load_keys(scores, base + k * step, n, key[k]);
#pragma unroll
        for (uint32_t k = 0; k < 4 * RUN; k++) {
            const unsigned u = key[k / RUN][k % RUN];
            if (u == 0 || (u & mask) != want) continue;
            const unsigned bin = u >> shift & (BINS - 1), equals = __match_any_sync(__activemask(), bin);
            if (lane == (uint32_t)__ffs(equals) - 1) atomicAdd(&bins[bin], __popc(equals));
        }
    }
}

/* From the largest bin down: the bin in which the wanted-th key lies, and its place there. A thread has two
 * bins. */
__device__ static void find_bin(const unsigned *bins, unsigned shift, unsigned *warp_sums, unsigned &prefix,
                                unsigned &wanted)
{
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31, upper = BINS - 1 - 2 * t;
    const unsigned a = bins[upper], b = bins[upper - 1], want = wanted;
    unsigned sum = a + b;
    for (int o = 1; o < 32; o <<= 1) {
        const unsigned v = __shfl_up_sync(~0u, sum, o);
        if (lane >= (uint32_t)o) sum += v;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    unsigned before = sum - a - b;
    for (uint32_t w = 0; w < warp; w++) before += warp_sums[w];
    if (before < want && want <= before + a + b) { // one thread only
        const bool first = want <= before + a;
        prefix |= (first ? upper : upper - 1) << shift;
        wanted = first ? want - before : want - before - a;
    }
    __syncthreads();
}

/* A block per row. Radix select (11, 11, 10 bits) finds the smallest chosen score and how many of its equals
 * are chosen; then every warp counts and writes its own stretch of positions, ascending. */
__global__ void __launch_bounds__(1024)
    topk_kernel(const __grid_constant__ shape s, const __grid_constant__ index_args a)
{
    __shared__ unsigned bins[BINS], sums[32], above[32], equal[32], prefix, wanted;
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
    // The last pass sees one bit again that is decided: all its keys have it.
    const unsigned shifts[] = {21, 10, 0}, masks[] = {0, ~0u << 21, ~0u << 10};
    for (int pass = 0; pass < 3; pass++) {
        bins[t] = bins[t + 1024] = 0;
        __syncthreads();
        count_keys(scores, n, prefix, masks[pass], shifts[pass], bins);
        __syncthreads();
        find_bin(bins, shifts[pass], sums, prefix, wanted);
    }
    const unsigned threshold = prefix, ties = wanted;
    const uint32_t stretch = (n + 32 * 128 - 1) / (32 * 128) * 128, first = warp * stretch,
                   end = min(n, first + stretch);
    unsigned counts = 0; // keys above the threshold, and from bit 16 on keys equal to it
    for (uint32_t base = first; base < end; base += 512) {
        unsigned key[4][RUN];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) load_keys(scores, base + k * 128 + lane * RUN, end, key[k]);
#pragma unroll
        for (uint32_t k = 0; k < 4 * RUN; k++)
            counts +=
                (key[k / RUN][k % RUN] > threshold) + ((unsigned)(key[k / RUN][k % RUN] == threshold) << 16);
    }
    for (int o = 16; o; o >>= 1) counts += __shfl_xor_sync(~0u, counts, o);
    if (lane == 0) above[warp] = counts & 0xffff, equal[warp] = counts >> 16;
    __syncthreads();
    unsigned o = 0, e = 0;
    for (uint32_t w = 0; w < warp; w++) o += above[w], e += equal[w];
    for (uint32_t base = first; base < end; base += 128) {
        unsigned key[RUN], mine = 0;
        const uint32_t i = base + lane * RUN;
        load_keys(scores, i, end, key);
#pragma unroll
        for (uint32_t j = 0; j < RUN; j++)
            mine += (key[j] > threshold) + ((unsigned)(key[j] == threshold) << 16);
        unsigned sum = mine;
        for (int d = 1; d < 32; d <<= 1) {
            const unsigned v = __shfl_up_sync(~0u, sum, d);
            if (lane >= (uint32_t)d) sum += v;
        }
        unsigned over = o + ((sum - mine) & 0xffff), tied = e + ((sum - mine) >> 16);
#pragma unroll
        for (uint32_t j = 0; j < RUN; j++) {
            if (key[j] > threshold) out[over++ + min(tied, ties)] = (int32_t)(i + j);
            if (key[j] == threshold) {
                if (tied < ties) out[over + tied] = (int32_t)(i + j);
                tied++;
            }
        }
        const unsigned all = __shfl_sync(~0u, sum, 31);
        o += all & 0xffff, e += all >> 16;
    }
}

cudaError_t launch_scores(const shape &s, enum kv_dtype dtype, const index_args &a, uint32_t rows,
                          uint32_t positions, cudaStream_t stream)
{
    if (scores_tensor_serves(s, dtype)) return scores_tensor_launch(s, dtype, a, rows, positions, stream);
    const size_t bytes = ((size_t)s.index_heads * s.index_dim + TILE * (s.index_dim + 4)) * sizeof(float);
    const uint32_t blocks = div_up(positions, TILE) < 1024 ? div_up(positions, TILE) : 1024;
    auto kernel = dtype == KV_F32    ? scores_kernel<KV_F32>
                  : dtype == KV_BF16 ? scores_kernel<KV_BF16>
                                     : scores_kernel<KV_FP8>;
    cudaError_t e =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!e)
        e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (e) return e;
    return gpu_launch(kernel, dim3(blocks, rows), WARPS * 32, bytes, stream, s, a);
}

cudaError_t launch_topk(const shape &s, const index_args &a, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(topk_kernel, dim3(rows), 1024, 0, stream, s, a);
}
