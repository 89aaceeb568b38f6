/* absorb.cu: the absorbed projections of decode: queries into the latent space, the latents' weighted sums
 * into values. Both read what the kernel before left, bring it into the form of a product themselves and
 * multiply each head with its own small matrix, so that none of it takes a launch of its own. */
#include "cuda/attention.cuh"
#include "cuda/tile.cuh"

/* The rows of a small product in shared memory, in the one form its matrix reads. */
template <int TYPE, uint32_t BLOCKS> struct rows_memory {
    static constexpr uint32_t bytes = TYPE == MATRIX_BF16 ? 768 : 512; // a block of 128
    __align__(16) uint8_t data[BLOCKS * bytes];
    float scale[BLOCKS];

    __device__ vec view(uint32_t blocks)
    {
        vec v = {};
        v.blocks = blocks;
        if (TYPE == MATRIX_F32) v.f32 = reinterpret_cast<float *>(data);
        if (TYPE == MATRIX_FP8) v.h = reinterpret_cast<__half *>(data), v.hs = scale;
        if (TYPE == MATRIX_BF16) v.b = reinterpret_cast<__nv_bfloat16 *>(data);
        return v;
    }
};

/* Sum of output o of an fp32 matrix with block `first` and on of row r; a warp. */
__device__ static inline float dot(const uint8_t *weights, uint32_t o, uint32_t ktiles, const vec &x,
                                   uint32_t r, uint32_t first)
{
    const uint32_t lane = threadIdx.x & 31;
    const float4 *w = reinterpret_cast<const float4 *>(weights) + (size_t)o * ktiles * 32 + lane;
    const float4 *v = reinterpret_cast<const float4 *>(x.f32) + (size_t)(r * x.blocks + first) * 32 + lane;
    float sum = 0.0f;
    for (uint32_t k = 0; k < ktiles; k++) {
        const float4 p = w[k * 32], q = v[k * 32];
        sum = fmaf(p.x, q.x, sum);
        sum = fmaf(p.y, q.y, sum);
        sum = fmaf(p.z, q.z, sum);
        sum = fmaf(p.w, q.w, sum);
    }
    return warp_sum(sum);
}

/* A warp's tile with its scale. */
template <int TYPE> struct weights {
    uint4 w[4];
    float scale;

    __device__ void load(const matrix &m, uint32_t strip, uint32_t k)
    {
        const size_t at = (size_t)strip * m.ktiles + k;
        load_tile(m.data + at * 2048 + (threadIdx.x & 31) * 16, w);
        scale = TYPE == MATRIX_FP8 ? __ldg(m.scales + at) : 1.0f;
    }
};

/* Groups of 8 columns that four rows need. */
template <int TYPE> constexpr int column_groups = TYPE == MATRIX_BF16 ? 2 : 1;

/* Blocks of 128 inputs that bf16 or fp8 tiles span: bf16 tiles are half as wide. */
template <int TYPE> __device__ static inline uint32_t tile_blocks(const matrix &m)
{
    return TYPE == MATRIX_BF16 ? (m.ktiles + 1) / 2 : m.ktiles;
}

/* ---- keys ---- */

#define KEY_WARPS 16u
#define KEY_ROWS 2u   // of a block: the columns of one mma
#define KEY_BLOCKS 8u // of 128 values of a head's first part
#define KEY_AHEAD 2   // strips whose first tile is fetched before anything is there to multiply

struct keys_kernel_args {
    matrix m;
    const float2 *rope;
    const float *q;
    float *qa;
    uint32_t rows;
};

/* A block per head and two rows. */
template <int TYPE>
__global__ void __launch_bounds__(KEY_WARPS * 32)
    keys_kernel(const __grid_constant__ shape s, const __grid_constant__ keys_kernel_args a)
{
    __shared__ rows_memory<TYPE, KEY_ROWS * KEY_BLOCKS> memory;
    __shared__ float sums[KEY_WARPS][16][8];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.x;
    const uint32_t row0 = blockIdx.y * KEY_ROWS, live = min(KEY_ROWS, a.rows - row0);
    const uint32_t blocks = (s.nope + 127) / 128, strips = s.latent / 16, width = s.latent + s.rope;
    const vec x = memory.view(blocks);
    weights<TYPE> ahead[KEY_AHEAD];
    if constexpr (TYPE != MATRIX_F32)
#pragma unroll
        for (uint32_t i = 0; i < KEY_AHEAD; i++)
            if (warp + i * KEY_WARPS < strips) ahead[i].load(a.m, head * strips + warp + i * KEY_WARPS, 0);
    pdl_wait();
    pdl_trigger();
    for (uint32_t i = warp; i < live * (blocks + 1); i += KEY_WARPS) {
        const uint32_t r = i / (blocks + 1), b = i % (blocks + 1);
        const float *q = a.q + ((size_t)(row0 + r) * s.heads + head) * (s.nope + s.rope);
        if (b < blocks) {
            vec_store(x, r, b, lane, load_block(q, s.nope, b, lane));
            continue;
        }
        float2 *pe =
            reinterpret_cast<float2 *>(a.qa + ((size_t)(row0 + r) * s.heads + head) * width + s.latent);
        const float2 *from = reinterpret_cast<const float2 *>(q + s.nope);
        for (uint32_t k = lane; k < s.rope / 2; k += 32)
            pe[k] = rotate(from[k].x, from[k].y, a.rope[(size_t)(row0 + r) * (s.rope / 2) + k]);
    }
    __syncthreads();
    if constexpr (TYPE == MATRIX_F32) {
        for (uint32_t o = warp; o < s.latent * live; o += KEY_WARPS) {
            const uint32_t r = o / s.latent, m = o % s.latent;
            const float sum = dot(a.m.data, head * s.latent + m, a.m.ktiles, x, r, 0);
            if (lane == 0) a.qa[((size_t)(row0 + r) * s.heads + head) * width + m] = sum;
        }
    } else {
        for (uint32_t base = warp; base < strips; base += KEY_AHEAD * KEY_WARPS) {
#pragma unroll
            for (uint32_t i = 0; i < KEY_AHEAD; i++) {
                const uint32_t strip = base + i * KEY_WARPS, at = head * strips + strip;
                if (strip >= strips) break;
                if (base > warp) ahead[i].load(a.m, at, 0);
                float total[1][4] = {};
                tile<TYPE, 1>(x, ahead[i].w, 0, live, 0, ahead[i].scale, total);
                for (uint32_t k = 1; k < a.m.ktiles; k++) {
                    weights<TYPE> more;
                    more.load(a.m, at, k);
                    tile<TYPE, 1>(x, more.w, 0, live, k, more.scale, total);
                }
                keep_sums<TYPE, 1>(sums[warp], total);
                __syncwarp();
                if (lane < 16 * live)
                    a.qa[((size_t)(row0 + lane / 16) * s.heads + head) * width + strip * 16 + lane % 16] =
                        sum_of<TYPE>(sums[warp][lane % 16], lane / 16);
                __syncwarp();
            }
        }
    }
}

cudaError_t launch_keys(const shape &s, const keys_args &a, uint32_t rows, cudaStream_t stream)
{
    const keys_kernel_args k = {*a.keys, a.rope, a.q, a.qa, rows};
    auto kernel = a.keys->type == MATRIX_FP8    ? keys_kernel<MATRIX_FP8>
                  : a.keys->type == MATRIX_BF16 ? keys_kernel<MATRIX_BF16>
                                                : keys_kernel<MATRIX_F32>;
    return gpu_launch(kernel, dim3(s.heads, div_up(rows, KEY_ROWS)), KEY_WARPS * 32, 0, stream, s, k);
}

/* ---- values ---- */

#define VALUE_WARPS 16u
#define VALUE_ROWS 4u // of a block
#define VALUE_AHEAD 2 // tiles of a warp that are fetched before anything is there to multiply

struct values_kernel_args {
    matrix m;
    attention_args at;
    vec out;
    uint32_t rows;
};

/* 128 latents of a head out of the splits' sums; a warp. */
__device__ static inline float4 join_splits(const shape &s, const attention_args &a, uint32_t r,
                                            uint32_t head, uint32_t block, uint32_t splits)
{
    const uint32_t lane = threadIdx.x & 31;
    const size_t at = ((size_t)r * s.heads + head) * ATTENTION_SPLITS;
    float4 v[ATTENTION_SPLITS];
#pragma unroll
    for (uint32_t i = 0; i < ATTENTION_SPLITS; i++)
        v[i] = i < splits ? load_block(a.part + (at + i) * s.latent, s.latent, block, lane)
                          : make_float4(0, 0, 0, 0);
    const float2 mine =
        lane < splits ? reinterpret_cast<const float2 *>(a.part_ml)[at + lane] : make_float2(-INFINITY, 0.0f);
    float weight = expf(mine.x - warp_max(mine.x));
    weight /= warp_sum(weight * mine.y);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < ATTENTION_SPLITS; i++) { // splits beyond the last have weight 0
        const float f = __shfl_sync(~0u, weight, i);
        sum.x = fmaf(f, v[i].x, sum.x);
        sum.y = fmaf(f, v[i].y, sum.y);
        sum.z = fmaf(f, v[i].z, sum.z);
        sum.w = fmaf(f, v[i].w, sum.w);
    }
    return sum;
}

/* A block per 128 outputs (one head or several small ones) and up to four rows; two warps a strip. */
template <int TYPE>
__global__ void __launch_bounds__(VALUE_WARPS * 32)
    values_kernel(const __grid_constant__ shape s, const __grid_constant__ values_kernel_args a)
{
    __shared__ rows_memory<TYPE, VALUE_ROWS * VALUE_BLOCKS> memory;
    __shared__ float sums[VALUE_WARPS][16][8 * column_groups<TYPE>];
    __shared__ __align__(16) float outputs[VALUE_ROWS][128];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t row0 = blockIdx.y * VALUE_ROWS, live = min(VALUE_ROWS, a.rows - row0);
    const uint32_t head0 = blockIdx.x * (128 / s.v), heads = min(128 / s.v, s.heads - head0);
    const uint32_t strip = warp / 2, sub = warp % 2, at = blockIdx.x * 8 + strip;
    const uint32_t blocks = (s.latent + 127) / 128, count = heads * blocks;
    const bool run = strip * 16 < heads * s.v;
    weights<TYPE> ahead[VALUE_AHEAD];
    if constexpr (TYPE != MATRIX_F32)
#pragma unroll
        for (uint32_t i = 0; i < VALUE_AHEAD; i++)
            if (run && sub + 2 * i < a.m.ktiles) ahead[i].load(a.m, at, sub + 2 * i);
    const uint32_t position = early_position(a.at.j);
    pdl_wait();
    // Blocks of o_proj that come early crowd on the multiprocessors that are free first.
    if (live <= 2) pdl_trigger();
    const vec x = memory.view(count);
    for (uint32_t i = warp; i < live * count; i += VALUE_WARPS) {
        const uint32_t r = i / count, b = i % count;
        bool listed;
        const uint32_t n = attended(s, a.at, position, row0 + r, listed);
        vec_store(x, r, b, lane,
                  join_splits(s, a.at, row0 + r, head0 + b / blocks, b % blocks, div_up(n, split_length(n))));
    }
    __syncthreads();
    if constexpr (TYPE == MATRIX_F32) {
        for (uint32_t i = warp; i < live * 128; i += VALUE_WARPS) {
            const uint32_t r = i / 128, o = i % 128;
            float sum = 0.0f;
            if (o < heads * s.v)
                sum = dot(a.m.data, blockIdx.x * 128 + o, a.m.ktiles, x, r, o / s.v * blocks);
            if (lane == 0) outputs[r][o] = sum;
        }
    } else {
        float total[column_groups<TYPE>][4] = {};
        const uint32_t first = strip * 16 / s.v * tile_blocks<TYPE>(a.m) * (TYPE == MATRIX_BF16 ? 2 : 1);
        if (run)
#pragma unroll
            for (uint32_t i = 0; i < VALUE_AHEAD; i++)
                if (sub + 2 * i < a.m.ktiles)
                    tile<TYPE, column_groups<TYPE>>(x, ahead[i].w, 0, live, first + sub + 2 * i,
                                                    ahead[i].scale, total);
        for (uint32_t k = sub + 2 * VALUE_AHEAD; run && k < a.m.ktiles; k += 2) {
            weights<TYPE> more;
            more.load(a.m, at, k);
            tile<TYPE, column_groups<TYPE>>(x, more.w, 0, live, first + k, more.scale, total);
        }
        keep_sums<TYPE, column_groups<TYPE>>(sums[warp], total);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < live * 128; i += VALUE_WARPS * 32) {
            const uint32_t r = i / 128, o = i % 128, w = o / 16 * 2, m = o % 16;
            outputs[r][o] = sum_of<TYPE>(sums[w][m], r) + sum_of<TYPE>(sums[w + 1][m], r);
        }
    }
    __syncthreads();
    if (live > 2) pdl_trigger();
    if (warp < live)
        vec_store(a.out, a.at.row0 + row0 + warp, blockIdx.x, lane,
                  reinterpret_cast<const float4 *>(outputs[warp])[lane]);
}

typedef void values_fn(shape, values_kernel_args);

static values_fn *values_variant(enum matrix_type type)
{
    return type == MATRIX_FP8    ? values_kernel<MATRIX_FP8>
           : type == MATRIX_BF16 ? values_kernel<MATRIX_BF16>
                                 : values_kernel<MATRIX_F32>;
}

cudaError_t absorb_open()
{
    const void *const kernels[] = {
        (const void *)keys_kernel<MATRIX_FP8>,     (const void *)keys_kernel<MATRIX_BF16>,
        (const void *)keys_kernel<MATRIX_F32>,     (const void *)values_variant(MATRIX_FP8),
        (const void *)values_variant(MATRIX_BF16), (const void *)values_variant(MATRIX_F32)};
    for (const void *kernel : kernels) {
        cudaError_t e = gpu_share(kernel);
        if (e) return e;
    }
    return cudaSuccess;
}

cudaError_t launch_values(const shape &s, const matrix *values, const attention_args &a, const vec &out,
                          uint32_t rows, cudaStream_t stream)
{
    const values_kernel_args k = {*values, a, out, rows};
    return gpu_launch(values_variant(values->type),
                      dim3(div_up(s.heads * s.v, 128), div_up(rows, VALUE_ROWS)), VALUE_WARPS * 32, 0, stream,
                      s, k);
}
