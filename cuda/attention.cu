/* attention.cu: absorbed MLA over the cached latents, the context cut into splits that run beside each other.
 *
 * Positions of a row (all of them, or the indexer's choice, ascending) are cut into splits of equal length
 * that depends on their number only. A block takes one split for some heads: tiles of 32 positions go to
 * shared memory once, a warp computes its heads' scores (a lane per position), their running softmax, and the
 * weighted sum of latents (lanes along the latent). absorb.cu joins the splits. All arithmetic is fp32. */
#include "cuda/attention.cuh"
#include "cuda/kv.cuh"

#define TILE ATTENTION_TILE
#define WARPS 8u

static size_t shared_bytes(const shape &s, enum kv_dtype dtype, uint32_t heads_per_warp)
{
    const uint32_t width = s.latent + s.rope, heads = WARPS * heads_per_warp;
    size_t kv = TILE * (dtype == KV_F32 ? (width + 4) * sizeof(float) : (width + 8) * 2);
    return kv + heads * (size_t)width * sizeof(float) + heads * TILE * sizeof(float);
}

/* Values i .. i + 3 of a staged row. */
template <int DTYPE> __device__ static inline float4 staged(const uint8_t *row, uint32_t i)
{
    if constexpr (DTYPE == KV_F32) return *reinterpret_cast<const float4 *>(row + i * 4);
    return bf16x4(*reinterpret_cast<const uint2 *>(row + i * 2));
}

/* The queries of a block's heads; zero where it has one too many. */
template <int HEADS>
__device__ static inline void stage_queries(const shape &s, const float *qa, uint32_t head0, float *q)
{
    const uint32_t width = s.latent + s.rope;
    for (uint32_t i = threadIdx.x * 4; i < WARPS * HEADS * width; i += WARPS * 32 * 4) {
        float4 v = make_float4(0, 0, 0, 0);
        if (head0 + i / width < s.heads)
            v = *reinterpret_cast<const float4 *>(qa + (size_t)head0 * width + i);
        *reinterpret_cast<float4 *>(q + i) = v;
    }
}

/* Position base + i, or the one that is listed there, to row i of `kv`. */
template <int DTYPE>
__device__ static inline void stage_tile(const shape &s, const attention_args &a, bool listed,
                                         const int32_t *list, uint32_t base, uint32_t tile, uint8_t *kv,
                                         uint32_t row_bytes)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, width = s.latent + s.rope;
    for (uint32_t i = warp; i < tile; i += WARPS) {
        const uint32_t position = listed ? (uint32_t)list[base + i] : base + i;
        const uint8_t *row = kv_row(s, a.j->pages, a.layer, position);
        for (uint32_t c = lane * 4; c < width; c += 128) {
            float4 v = kv_load_key<DTYPE>(s, row, c);
            if (DTYPE == KV_F32)
                *reinterpret_cast<float4 *>(kv + i * row_bytes + c * 4) = v;
            else
                *reinterpret_cast<uint2 *>(kv + i * row_bytes + c * 2) = to_bf16x4(v);
        }
    }
}

/* What a warp has of its heads: a running softmax over the positions so far. */
template <int DTYPE, int HEADS> struct running {
    float m[HEADS], l[HEADS];
    float4 acc[HEADS][LATENT_MAX / 128]; // 4 values of the latent in every 128, those of this lane

    __device__ inline running()
    {
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            m[h] = -INFINITY;
            l[h] = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < LATENT_MAX / 128; j++) acc[h][j] = make_float4(0, 0, 0, 0);
        }
    }

    /* A tile's positions, one a lane: their weights go to pw, (HEADS, TILE). */
    __device__ inline void weigh(const shape &s, const float *qw, const uint8_t *kv, uint32_t row_bytes,
                                 uint32_t tile, float *pw)
    {
        const uint32_t lane = threadIdx.x & 31, width = s.latent + s.rope;
        float dot[HEADS] = {};
        if (lane < tile) {
            const uint8_t *row = kv + lane * row_bytes;
            for (uint32_t c = 0; c < width; c += 4) {
                const float4 k = staged<DTYPE>(row, c);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    const float4 v = *reinterpret_cast<const float4 *>(qw + h * width + c);
                    dot[h] = fmaf(v.x, k.x, dot[h]);
                    dot[h] = fmaf(v.y, k.y, dot[h]);
                    dot[h] = fmaf(v.z, k.z, dot[h]);
                    dot[h] = fmaf(v.w, k.w, dot[h]);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            const float score = lane < tile ? dot[h] * s.softmax_scale : -INFINITY;
            const float top = fmaxf(m[h], warp_max(score)), fade = expf(m[h] - top), e = expf(score - top);
            m[h] = top;
            l[h] = l[h] * fade + warp_sum(e);
            pw[h * TILE + lane] = e;
#pragma unroll
            for (uint32_t j = 0; j < LATENT_MAX / 128; j++)
                acc[h][j].x *= fade, acc[h][j].y *= fade, acc[h][j].z *= fade, acc[h][j].w *= fade;
        }
    }

    /* Adds the tile's latents with those weights. */
    __device__ inline void add(const shape &s, const uint8_t *kv, uint32_t row_bytes, uint32_t tile,
                               const float *pw)
    {
        const uint32_t lane = threadIdx.x & 31;
        for (uint32_t i = 0; i < tile; i++) {
            float e[HEADS];
#pragma unroll
            for (int h = 0; h < HEADS; h++) e[h] = pw[h * TILE + i];
#pragma unroll
            for (uint32_t j = 0; j < LATENT_MAX / 128; j++) {
                const uint32_t c = j * 128 + lane * 4;
                if (c >= s.latent) continue;
                const float4 k = staged<DTYPE>(kv + i * row_bytes, c);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    acc[h][j].x = fmaf(e[h], k.x, acc[h][j].x);
                    acc[h][j].y = fmaf(e[h], k.y, acc[h][j].y);
                    acc[h][j].z = fmaf(e[h], k.z, acc[h][j].z);
                    acc[h][j].w = fmaf(e[h], k.w, acc[h][j].w);
                }
            }
        }
    }
};

template <int DTYPE, int HEADS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_kernel(const __grid_constant__ shape s, const __grid_constant__ attention_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r = blockIdx.z, split = blockIdx.x;
    const uint32_t width = s.latent + s.rope, head0 = blockIdx.y * WARPS * HEADS;
    const uint32_t row_bytes = DTYPE == KV_F32 ? (width + 4) * 4 : (width + 8) * 2;
    uint8_t *kv = shared;
    float *q = reinterpret_cast<float *>(shared + TILE * row_bytes);
    float *p = q + WARPS * HEADS * width; // (heads, TILE)
    pdl_wait();
    pdl_trigger();
    bool listed;
    const uint32_t n = attended(s, a, a.j->position, r, listed), length = split_length(n),
                   first = split * length;
    if (first >= n) return;
    const uint32_t end = min(n, first + length);
    const int32_t *list = a.topk + (size_t)r * s.index_topk;
    stage_queries<HEADS>(s, a.qa + (size_t)(a.row0 + r) * s.heads * width, head0, q);
    running<DTYPE, HEADS> w;
    float *pw = p + warp * HEADS * TILE;
    const float *qw = q + warp * HEADS * width;
    for (uint32_t base = first; base < end; base += TILE) {
        const uint32_t tile = min(TILE, end - base);
        __syncthreads();
        stage_tile<DTYPE>(s, a, listed, list, base, tile, kv, row_bytes);
        __syncthreads();
        w.weigh(s, qw, kv, row_bytes, tile, pw);
        __syncwarp();
        w.add(s, kv, row_bytes, tile, pw);
        __syncwarp();
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const uint32_t head = head0 + warp * HEADS + h;
        if (head >= s.heads) continue;
        const size_t at = ((size_t)r * s.heads + head) * ATTENTION_SPLITS + split;
#pragma unroll
        for (uint32_t j = 0; j < LATENT_MAX / 128; j++)
            if (j * 128 + lane * 4 < s.latent)
                *reinterpret_cast<float4 *>(a.part + at * s.latent + j * 128 + lane * 4) = w.acc[h][j];
        if (lane == 0) reinterpret_cast<float2 *>(a.part_ml)[at] = make_float2(w.m[h], w.l[h]);
    }
}

typedef void attention_fn(shape, attention_args);

static attention_fn *variant(enum kv_dtype dtype, uint32_t heads)
{
    static attention_fn *const table[3][3] = {
        {attention_kernel<KV_F32, 1>, attention_kernel<KV_F32, 2>, attention_kernel<KV_F32, 4>},
        {attention_kernel<KV_BF16, 1>, attention_kernel<KV_BF16, 2>, attention_kernel<KV_BF16, 4>},
        {attention_kernel<KV_FP8, 1>, attention_kernel<KV_FP8, 2>, attention_kernel<KV_FP8, 4>}};
    return table[dtype][heads == 4 ? 2 : heads - 1];
}

static uint32_t heads_per_warp; // chosen by attention_open; does not change any bit
static bool tensor;             // attention_tensor.cu serves

cudaError_t attention_open(const shape &s, enum kv_dtype dtype, size_t shared_limit)
{
    tensor = attention_tensor_serves(s, dtype, shared_limit);
    cudaError_t e = rows_open();
    if (!e) e = product_open();
    if (!e) e = queries_open();
    if (!e) e = absorb_open();
    if (!e) e = router_open();
    if (!e) e = experts_open(shared_limit);
    if (e) return e;
    if (tensor) return attention_tensor_open(s, dtype, shared_limit);
    heads_per_warp = 4;
    while (heads_per_warp > 1 &&
           (shared_bytes(s, dtype, heads_per_warp) > shared_limit || WARPS * heads_per_warp >= 2 * s.heads))
        heads_per_warp /= 2;
    return cudaFuncSetAttribute((const void *)variant(dtype, heads_per_warp),
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)shared_bytes(s, dtype, heads_per_warp));
}

cudaError_t launch_attention(const shape &s, enum kv_dtype dtype, const attention_args &a, uint32_t rows,
                             cudaStream_t stream)
{
    if (tensor) return attention_tensor_launch(s, dtype, a, rows, stream);
    return gpu_launch(variant(dtype, heads_per_warp),
                      dim3(ATTENTION_SPLITS, div_up(s.heads, WARPS * heads_per_warp), rows), WARPS * 32,
                      shared_bytes(s, dtype, heads_per_warp), stream, s, a);
}
