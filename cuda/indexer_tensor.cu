/* indexer_tensor.cu: index scores on tensor cores, for caches kept in bf16 or fp8 (both exact in bf16).
 *
 * A warp has the keys of 32 positions in registers, as the B operand, and meets the queries of many rows with
 * them: 16 heads are the rows of mma.m16n8k16. Queries are three bf16 parts (24 bits), so a score is as good
 * as one in fp32. They lie in shared memory in the order in which a lane takes its share of an operand, 16
 * bytes at once. Dimensions are dealt to lanes in runs instead of the instruction's order, to keys and
 * queries alike. */
#include "cuda/indexer.cuh"
#include "cuda/kv.cuh"

#define WARPS 8u
#define SPAN 32u // positions of a warp
#define TILE (WARPS * SPAN)
#define GROUP 16u // rows that one block does
#define PARTS 3u
#define HEADS_MAX 64u

__device__ static inline void mma(float c[4], const uint4 &a, const uint2 &b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

/* Four values of a cached key as two pairs of bf16. */
template <int DTYPE> __device__ static inline uint2 key_at(const shape &s, const uint8_t *row, uint32_t i)
{
    if constexpr (DTYPE == KV_BF16) return *reinterpret_cast<const uint2 *>(row + (size_t)i * 2);
    return to_bf16x4(kv_load<DTYPE>(row, i, s.kv.index_scale_at));
}

/* The next bf16 part of four values, which keep the rest. */
__device__ static inline uint2 next_part(float4 &v)
{
    const uint2 part = to_bf16x4(v);
    const float4 p = bf16x4(part);
    v = make_float4(v.x - p.x, v.y - p.y, v.z - p.z, v.w - p.w);
    return part;
}

/* A row's queries: operand [16 heads][step][part], and the heads' weights. */
template <uint32_t DIM>
__device__ static inline void stage_row(const shape &s, const index_args &a, uint32_t row, uint32_t tiles,
                                        uint4 *queries, float *weights)
{
    constexpr uint32_t steps = DIM / 16;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const float *q = a.iq + (size_t)row * s.index_heads * DIM;
    for (uint32_t i = threadIdx.x; i < tiles * 16; i += WARPS * 32)
        weights[i] = i < s.index_heads ? a.iw[(size_t)row * s.index_heads + i] : 0.0f;
    for (uint32_t u = warp; u < tiles * steps; u += WARPS) {
        const uint32_t head = u / steps * 16 + g, i = t * (DIM / 4) + u % steps * 4;
        float4 v[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            v[k] = head + 8 * k < s.index_heads
                       ? *reinterpret_cast<const float4 *>(q + (size_t)(head + 8 * k) * DIM + i)
                       : make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t p = 0; p < PARTS; p++) {
            const uint2 x = next_part(v[0]), y = next_part(v[1]);
            queries[(u * PARTS + p) * 32 + lane] = make_uint4(x.x, y.x, x.y, y.y);
        }
    }
}

/* Scores of the staged row with the warp's positions: out[j] of positions 8 j + 2 t and the one behind. */
template <uint32_t DIM>
__device__ static inline void score_row(const uint4 *queries, const float *weights, uint32_t tiles,
                                        const uint2 keys[SPAN / 8][DIM / 16], float2 out[SPAN / 8])
{
    constexpr uint32_t steps = DIM / 16;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
#pragma unroll
    for (uint32_t j = 0; j < SPAN / 8; j++) out[j] = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (uint32_t m = 0; m < tiles; m++) {
        float c[SPAN / 8][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < steps * PARTS; i++) {
            const uint4 q = queries[(m * steps * PARTS + i) * 32 + lane];
#pragma unroll
            for (uint32_t j = 0; j < SPAN / 8; j++) mma(c[j], q, keys[j][i / PARTS]);
        }
        const float w0 = weights[m * 16 + g], w1 = weights[m * 16 + g + 8];
#pragma unroll
        for (uint32_t j = 0; j < SPAN / 8; j++) {
            out[j].x = fmaf(fmaxf(c[j][2], 0.0f), w1, fmaf(fmaxf(c[j][0], 0.0f), w0, out[j].x));
            out[j].y = fmaf(fmaxf(c[j][3], 0.0f), w1, fmaf(fmaxf(c[j][1], 0.0f), w0, out[j].y));
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < SPAN / 8; j++)
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) {
            out[j].x += __shfl_xor_sync(~0u, out[j].x, o);
            out[j].y += __shfl_xor_sync(~0u, out[j].y, o);
        }
}

template <int DTYPE, uint32_t DIM>
__global__ void __launch_bounds__(WARPS * 32, 2)
    scores_tensor_kernel(const __grid_constant__ shape s, const __grid_constant__ index_args a, uint32_t rows)
{
    extern __shared__ __align__(16) uint4 queries[];
    __shared__ float weights[HEADS_MAX];
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, tiles = (s.index_heads + 15) / 16;
    const uint32_t row0 = blockIdx.y * GROUP, end = min(rows, row0 + GROUP);
    pdl_wait();
    pdl_trigger();
    const uint32_t before = a.j->position + a.row0 + 1; // row r sees `before` + r positions
    const uint32_t *pages = a.j->pages;
    for (uint32_t base = blockIdx.x * TILE; base < before + end - 1; base += gridDim.x * TILE) {
        const uint32_t first = base + threadIdx.x / 32 * SPAN;
        uint2 keys[SPAN / 8][DIM / 16];
#pragma unroll
        for (uint32_t j = 0; j < SPAN / 8; j++) {
            const uint32_t p = first + j * 8 + g;
            const uint8_t *row = p < before + end - 1 ? kv_index(s, pages, a.layer, p) : nullptr;
#pragma unroll
            for (uint32_t i = 0; i < DIM / 16; i++)
                keys[j][i] = row ? key_at<DTYPE>(s, row, t * (DIM / 4) + i * 4) : make_uint2(0, 0);
        }
#pragma unroll 1
        for (uint32_t r = row0; r < end; r++) {
            const uint32_t n = before + r;
            if ((n <= s.index_topk && !a.all) || base >= n) continue;
            __syncthreads();
            stage_row<DIM>(s, a, a.row0 + r, tiles, queries, weights);
            __syncthreads();
            float2 out[SPAN / 8];
            score_row<DIM>(queries, weights, tiles, keys, out);
            float *to = a.scores + (size_t)r * a.stride + first + 2 * t;
#pragma unroll
            for (uint32_t j = 0; j < SPAN / 8; j++) {
                if (g != j) continue;
                if (first + j * 8 + 2 * t < n) to[j * 8] = out[j].x;
                if (first + j * 8 + 2 * t + 1 < n) to[j * 8 + 1] = out[j].y;
            }
        }
    }
}

typedef void scores_fn(shape, index_args, uint32_t);

static scores_fn *variant(enum kv_dtype dtype, uint32_t dim)
{
    if (dim == 64)
        return dtype == KV_BF16 ? scores_tensor_kernel<KV_BF16, 64> : scores_tensor_kernel<KV_FP8, 64>;
    return dtype == KV_BF16 ? scores_tensor_kernel<KV_BF16, 128> : scores_tensor_kernel<KV_FP8, 128>;
}

bool scores_tensor_serves(const shape &s, enum kv_dtype dtype)
{
    return dtype != KV_F32 && s.index_heads <= HEADS_MAX && (s.index_dim == 64 || s.index_dim == 128);
}

cudaError_t scores_tensor_launch(const shape &s, enum kv_dtype dtype, const index_args &a, uint32_t rows,
                                 uint32_t positions, cudaStream_t stream)
{
    scores_fn *const kernel = variant(dtype, s.index_dim);
    const size_t bytes = (size_t)div_up(s.index_heads, 16) * (s.index_dim / 16) * PARTS * 32 * sizeof(uint4);
    cudaError_t e =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!e) e = gpu_share((const void *)kernel);
    if (e) return e;
    return gpu_launch(kernel, dim3(div_up(positions, TILE), div_up(rows, GROUP)), WARPS * 32, bytes, stream,
                      s, a, rows);
}
