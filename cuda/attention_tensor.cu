/* attention_tensor.cu: the same attention on tensor cores, for caches kept in bf16 or fp8 (both exact in
 * bf16).
 *
 * A block takes one split for 16 heads (the rows of mma.m16n8k16). Queries and softmax weights are two bf16
 * parts, hi + lo (16 bits), so what the cache's own rounding leaves is kept. Tiles of 32 positions lie in
 * shared memory once and serve as keys and as values. Scores: a warp per 8 positions and half of the
 * dimensions; softmax: a lane per position, two heads a warp; sum of latents: a warp owns every eighth group
 * of 8 latents. */
#include "cuda/attention.cuh"
#include "cuda/kv.cuh"

#define HEADS 16u
#define WARPS 8u
#define P_STRIDE 40u // bf16; an odd number of 16 bytes, as every stride here: no bank conflicts

struct tile_memory {
    __nv_bfloat16 *q_hi, *q_lo, *kv; // (HEADS, stride), (HEADS, stride), (TILE, stride)
    __nv_bfloat16 *p_hi, *p_lo;      // (HEADS, P_STRIDE)
    float *score;                    // (2, HEADS, TILE + 1)
    float *fade;                     // (HEADS)
};

__host__ __device__ static inline uint32_t row_stride(const shape &s)
{
    return s.latent + s.rope + 8;
}

size_t attention_tensor_shared(const shape &s)
{
    return ((2 * HEADS + ATTENTION_TILE) * row_stride(s) + 2 * HEADS * P_STRIDE) * sizeof(__nv_bfloat16) +
           (2 * HEADS * (ATTENTION_TILE + 1) + HEADS) * sizeof(float);
}

bool attention_tensor_serves(const shape &s, enum kv_dtype dtype, size_t shared_limit)
{
    return dtype != KV_F32 && (s.latent + s.rope) % 16 == 0 && s.latent % 8 == 0 &&
           attention_tensor_shared(s) <= shared_limit;
}

__device__ static inline tile_memory carve(const shape &s, uint8_t *shared)
{
    tile_memory m;
    const uint32_t stride = row_stride(s);
    m.q_hi = reinterpret_cast<__nv_bfloat16 *>(shared);
    m.q_lo = m.q_hi + HEADS * stride;
    m.kv = m.q_lo + HEADS * stride;
    m.p_hi = m.kv + ATTENTION_TILE * stride;
    m.p_lo = m.p_hi + HEADS * P_STRIDE;
    m.score = reinterpret_cast<float *>(m.p_lo + HEADS * P_STRIDE);
    m.fade = m.score + 2 * HEADS * (ATTENTION_TILE + 1);
    return m;
}

__device__ static inline void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from));
}

/* Where this lane's position of a tile lies; every warp knows all 32, so a tile costs one walk through list
 * and pages. */
__device__ static inline const uint8_t *find_row(const shape &s, const attention_args &a, const int32_t *list,
                                                 uint32_t base, uint32_t end)
{
    const uint32_t i = base + (threadIdx.x & 31);
    if (i >= end) return nullptr;
    return kv_row(s, a.j->pages, a.layer, list ? (uint32_t)list[i] : i);
}

/* Starts bringing a tile, mine = this lane's find_row(); rows that are not there are zero. */
template <int DTYPE> __device__ static void stage(const shape &s, const tile_memory &m, const uint8_t *mine)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, width = s.latent + s.rope,
                   stride = row_stride(s);
#pragma unroll
    for (uint32_t i = warp; i < ATTENTION_TILE; i += WARPS) {
        __nv_bfloat16 *to = m.kv + i * stride;
        const uint8_t *row = reinterpret_cast<const uint8_t *>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine), i));
        if (!row)
            for (uint32_t c = lane * 8; c < width; c += 256)
                *reinterpret_cast<uint4 *>(to + c) = make_uint4(0, 0, 0, 0);
        else if (DTYPE == KV_BF16)
            for (uint32_t c = lane * 8; c < width; c += 256) copy_async(to + c, row + c * 2);
        else
            for (uint32_t c = lane * 4; c < width; c += 128)
                *reinterpret_cast<uint2 *>(to + c) = to_bf16x4(kv_load_key<DTYPE>(s, row, c));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ static inline void await_stage()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ static inline void split_store(__nv_bfloat16 *hi, __nv_bfloat16 *lo, float v)
{
    *hi = __float2bfloat16_rn(v);
    *lo = __float2bfloat16_rn(v - __bfloat162float(*hi));
}

__device__ static void load_queries(const shape &s, const tile_memory &m, const float *qa, uint32_t head0)
{
    const uint32_t width = s.latent + s.rope, stride = row_stride(s);
#pragma unroll 4
    for (uint32_t i = threadIdx.x * 4; i < HEADS * width; i += WARPS * 128) {
        const uint32_t h = i / width, c = i % width;
        float4 v = make_float4(0, 0, 0, 0);
        if (head0 + h < s.heads) v = *reinterpret_cast<const float4 *>(qa + (size_t)head0 * width + i);
        const uint2 hi = to_bf16x4(v);
        const float4 f = bf16x4(hi);
        *reinterpret_cast<uint2 *>(m.q_hi + h * stride + c) = hi;
        *reinterpret_cast<uint2 *>(m.q_lo + h * stride + c) =
            to_bf16x4(make_float4(v.x - f.x, v.y - f.y, v.z - f.z, v.w - f.w));
    }
}

__device__ static inline void load_matrices4(unsigned r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
}

__device__ static inline void load_matrices4_transposed(unsigned r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
}

__device__ static inline void load_matrices2(unsigned r[2], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
}

__device__ static inline void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Rows 0-15, columns 0-15 of a tile as the A operand: this lane's address for ldmatrix. */
__device__ static inline uint32_t a_offset(uint32_t lane, uint32_t stride)
{
    return (lane & 15) * stride + (lane >> 4) * 8;
}

/* Half of the dimensions of the scores of 16 heads with 8 positions. */
__device__ static void scores(const shape &s, const tile_memory &m, uint32_t warp, uint32_t lane)
{
    const uint32_t stride = row_stride(s), steps = (s.latent + s.rope) / 16, half = warp >> 2,
                   positions = (warp & 3) * 8;
    const uint32_t first = half ? steps / 2 : 0, end = half ? steps : steps / 2;
    float hi[4] = {}, lo[4] = {};
    const __nv_bfloat16 *qh = m.q_hi + a_offset(lane, stride), *ql = m.q_lo + a_offset(lane, stride);
    const __nv_bfloat16 *k = m.kv + (positions + (lane & 7)) * stride + (lane >> 3 & 1) * 8;
#pragma unroll 4
    for (uint32_t i = first; i < end; i++) {
        unsigned a[4], c[4], b[2];
        load_matrices4(a, qh + i * 16);
        load_matrices4(c, ql + i * 16);
        load_matrices2(b, k + i * 16);
        mma(hi, a, b[0], b[1]);
        mma(lo, c, b[0], b[1]);
    }
    float *out = m.score + half * HEADS * (ATTENTION_TILE + 1) + positions + 2 * (lane & 3);
    const uint32_t g = lane >> 2;
    out[g * (ATTENTION_TILE + 1)] = hi[0] + lo[0];
    out[g * (ATTENTION_TILE + 1) + 1] = hi[1] + lo[1];
    out[(g + 8) * (ATTENTION_TILE + 1)] = hi[2] + lo[2];
    out[(g + 8) * (ATTENTION_TILE + 1) + 1] = hi[3] + lo[3];
}

__device__ static void softmax(const shape &s, const tile_memory &m, uint32_t warp, uint32_t lane,
                               uint32_t tile, float top[2], float sum[2])
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t h = warp * 2 + i, at = h * (ATTENTION_TILE + 1) + lane;
        const float score = lane < tile
                                ? (m.score[at] + m.score[HEADS * (ATTENTION_TILE + 1) + at]) * s.softmax_scale
                                : -INFINITY;
        const float best = fmaxf(top[i], warp_max(score)), fade = expf(top[i] - best), e = expf(score - best);
        top[i] = best;
        sum[i] = sum[i] * fade + warp_sum(e);
        split_store(m.p_hi + h * P_STRIDE + lane, m.p_lo + h * P_STRIDE + lane, e);
        if (lane == 0) m.fade[h] = fade;
    }
}

#define GROUPS (LATENT_MAX / 8 / WARPS) // of 8 latents that a warp owns

__device__ static void add_values(const shape &s, const tile_memory &m, uint32_t warp, uint32_t lane,
                                  float acc[GROUPS][4])
{
    const uint32_t stride = row_stride(s);
    const float f0 = m.fade[lane >> 2], f1 = m.fade[(lane >> 2) + 8];
    unsigned ph[2][4], pl[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        load_matrices4(ph[k], m.p_hi + a_offset(lane, P_STRIDE) + 16 * k);
        load_matrices4(pl[k], m.p_lo + a_offset(lane, P_STRIDE) + 16 * k);
    }
    const __nv_bfloat16 *v = m.kv + lane * stride;
#pragma unroll
    for (uint32_t i = 0; i < GROUPS; i++) {
        const uint32_t c = (warp + i * WARPS) * 8;
        if (c >= s.latent) break;
        unsigned b[4];
        load_matrices4_transposed(b, v + c);
        acc[i][0] *= f0, acc[i][1] *= f0, acc[i][2] *= f1, acc[i][3] *= f1;
        mma(acc[i], ph[0], b[0], b[1]);
        mma(acc[i], pl[0], b[0], b[1]);
        mma(acc[i], ph[1], b[2], b[3]);
        mma(acc[i], pl[1], b[2], b[3]);
    }
}

template <int DTYPE>
__global__ void __launch_bounds__(WARPS * 32, 2)
    attention_tensor_kernel(const __grid_constant__ shape s, const __grid_constant__ attention_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r = blockIdx.z, split = blockIdx.x;
    const uint32_t width = s.latent + s.rope, head0 = blockIdx.y * HEADS;
    const tile_memory m = carve(s, shared);
    pdl_wait();
    pdl_trigger();
    bool listed;
    const uint32_t n = attended(s, a, r, listed), length = split_length(n), first = split * length;
    if (first >= n) return;
    const uint32_t end = min(n, first + length);
    const int32_t *list = listed ? a.topk + (size_t)r * s.index_topk : nullptr;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, acc[GROUPS][4] = {};
    stage<DTYPE>(s, m, find_row(s, a, list, first, end));
    load_queries(s, m, a.qa + (size_t)(a.row0 + r) * s.heads * width, head0);
    const uint8_t *next = nullptr;
    for (uint32_t base = first; base < end; base += ATTENTION_TILE) {
        const uint32_t tile = min(ATTENTION_TILE, end - base);
        if (base > first) {
            __syncthreads();
            stage<DTYPE>(s, m, next);
        }
        next = find_row(s, a, list, base + ATTENTION_TILE, end);
        await_stage();
        __syncthreads();
        scores(s, m, warp, lane);
        __syncthreads();
        softmax(s, m, warp, lane, tile, top, sum);
        __syncthreads();
        add_values(s, m, warp, lane, acc);
    }
    const uint32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (uint32_t i = 0; i < GROUPS; i++) {
        const uint32_t c = (warp + i * WARPS) * 8 + 2 * t;
        if (c >= s.latent) break;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t head = head0 + g + 8 * k;
            if (head >= s.heads) continue;
            const size_t at = ((size_t)r * s.heads + head) * ATTENTION_SPLITS + split;
            *reinterpret_cast<float2 *>(a.part + at * s.latent + c) =
                make_float2(acc[i][2 * k], acc[i][2 * k + 1]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t head = head0 + warp * 2 + i;
        if (head >= s.heads || lane) continue;
        reinterpret_cast<float2 *>(a.part_ml)[((size_t)r * s.heads + head) * ATTENTION_SPLITS + split] =
            make_float2(top[i], sum[i]);
    }
}

cudaError_t attention_tensor_open(const shape &s, enum kv_dtype dtype)
{
    auto kernel = dtype == KV_BF16 ? attention_tensor_kernel<KV_BF16> : attention_tensor_kernel<KV_FP8>;
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)attention_tensor_shared(s));
    if (e) return e;
    // Two blocks a multiprocessor, not what one block needs.
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

cudaError_t attention_tensor_launch(const shape &s, enum kv_dtype dtype, const attention_args &a,
                                    uint32_t rows, cudaStream_t stream)
{
    auto kernel = dtype == KV_BF16 ? attention_tensor_kernel<KV_BF16> : attention_tensor_kernel<KV_FP8>;
    return gpu_launch(kernel, dim3(ATTENTION_SPLITS, div_up(s.heads, HEADS), rows), WARPS * 32,
                      attention_tensor_shared(s), stream, s, a);
}
