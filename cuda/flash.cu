/* flash.cu: causal attention with a running softmax; no score ever leaves the registers.
 *
 * A block takes 128 rows of one head, a warp 16 of them, queries and sums in registers. Tiles of 64 positions
 * come through shared memory, the next while one is used. Products are fp16 with fp32 sums; softmax is fp32.
 * A row's sums run over its positions in ascending tiles from 0, whatever the job's other rows are. */
#include "cuda/flash.cuh"
#include "cuda/kv.cuh"

#define ROWS 128u
#define TILE 64u
#define WARPS 8u
#define K_STRIDE (FLASH_QK + 8) // odd numbers of 16 bytes: no bank conflicts
#define V_STRIDE (FLASH_V + 8)
#define TILE_HALVES (TILE * (K_STRIDE + V_STRIDE))

bool flash_serves(const shape &s, size_t shared_limit)
{
    return s.nope + s.rope <= FLASH_QK && s.v <= FLASH_V && s.nope % 8 == 0 && s.rope % 8 == 0 &&
           s.v % 8 == 0 && s.latent % 8 == 0 && 2 * TILE_HALVES * sizeof(__half) <= shared_limit;
}

/* 16 bytes, or zeros. */
__device__ static inline void copy_async(__half *to, const __half *from, bool there)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from), "r"(there ? 16 : 0));
}

__device__ static inline void load4(unsigned r[4], const __half *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p)));
}

__device__ static inline void load4_transposed(unsigned r[4], const __half *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p)));
}

__device__ static inline void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ static inline unsigned pack(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<unsigned *>(&h);
}

__device__ static void stage(const shape &s, const flash_args &a, __half *tile, uint32_t head, uint32_t key0)
{
    const uint32_t n = a.position + a.rows, width = s.nope + s.v;
    __half *values = tile + TILE * K_STRIDE;
    for (uint32_t i = threadIdx.x; i < TILE * (FLASH_QK / 8); i += WARPS * 32) {
        const uint32_t row = i / (FLASH_QK / 8), c = i % (FLASH_QK / 8) * 8, key = key0 + row;
        const __half *from = a.kv;
        bool there = key < n && c < s.nope + s.rope;
        if (there)
            from = c < s.nope ? a.kv + ((size_t)key * a.heads + head) * width + c
                              : a.rope + (size_t)key * (s.latent + s.rope) + s.latent + (c - s.nope);
        copy_async(tile + row * K_STRIDE + c, from, there);
    }
    for (uint32_t i = threadIdx.x; i < TILE * (FLASH_V / 8); i += WARPS * 32) {
        const uint32_t row = i / (FLASH_V / 8), c = i % (FLASH_V / 8) * 8, key = key0 + row;
        const bool there = key < n && c < s.v;
        copy_async(values + row * V_STRIDE + c,
                   there ? a.kv + ((size_t)key * a.heads + head) * width + s.nope + c : a.kv, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Queries of rows row + g and row + g + 8 as A operands. */
__device__ static inline void load_queries(const shape &s, const flash_args &a, uint32_t head, uint32_t row,
                                           unsigned q[FLASH_QK / 16][4])
{
    const uint32_t lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = row + (lane >> 2) + 8 * half;
        const __half *p = a.q + ((size_t)r * s.heads + a.head0 + head) * FLASH_QK + 2 * t;
#pragma unroll
        for (uint32_t k = 0; k < FLASH_QK / 16; k++) {
            q[k][half] = r < a.rows ? *reinterpret_cast<const unsigned *>(p + k * 16) : 0;
            q[k][2 + half] = r < a.rows ? *reinterpret_cast<const unsigned *>(p + k * 16 + 8) : 0;
        }
    }
}

/* Scores of 16 rows with the tile's 64 positions. */
__device__ static inline void scores(const __half *tile, const unsigned q[FLASH_QK / 16][4],
                                     float c[TILE / 8][4])
{
    const uint32_t lane = threadIdx.x & 31;
    const __half *p = tile + ((lane & 7) + (lane >> 4) * 8) * K_STRIDE + (lane >> 3 & 1) * 8;
#pragma unroll
    for (uint32_t i = 0; i < TILE / 8; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < FLASH_QK / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < TILE / 16; i++) {
            unsigned b[4];
            load4(b, p + i * 16 * K_STRIDE + k * 16);
            mma(c[2 * i], q[k], b[0], b[1]);
            mma(c[2 * i + 1], q[k], b[2], b[3]);
        }
}

__device__ static inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); // what fades below 2^-126 is nothing
    return y;
}

/* c becomes the softmax weights relative to the new maxima; sums and `acc` fade with the old ones. */
__device__ static inline void softmax(float c[TILE / 8][4], float scale, float top[2], float sum[2],
                                      float acc[FLASH_V / 8][4])
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float best = top[half];
#pragma unroll
        for (uint32_t i = 0; i < TILE / 8; i++) best = fmaxf(best, fmaxf(c[i][2 * half], c[i][2 * half + 1]));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        const float fade = exp2_fast((top[half] - best) * scale), shift = best * scale;
        top[half] = best;
        float total = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < TILE / 8; i++) {
            c[i][2 * half] = exp2_fast(fmaf(c[i][2 * half], scale, -shift));
            c[i][2 * half + 1] = exp2_fast(fmaf(c[i][2 * half + 1], scale, -shift));
            total += c[i][2 * half] + c[i][2 * half + 1];
        }
        sum[half] = sum[half] * fade + total;
#pragma unroll
        for (uint32_t i = 0; i < FLASH_V / 8; i++) acc[i][2 * half] *= fade, acc[i][2 * half + 1] *= fade;
    }
}

__device__ static inline void add_values(const __half *values, const float c[TILE / 8][4],
                                         float acc[FLASH_V / 8][4])
{
    const uint32_t lane = threadIdx.x & 31;
    const __half *p = values + ((lane & 7) + (lane >> 3 & 1) * 8) * V_STRIDE + (lane >> 4) * 8;
#pragma unroll
    for (uint32_t k = 0; k < TILE / 16; k++) {
        const unsigned w[4] = {pack(c[2 * k][0], c[2 * k][1]), pack(c[2 * k][2], c[2 * k][3]),
                               pack(c[2 * k + 1][0], c[2 * k + 1][1]),
                               pack(c[2 * k + 1][2], c[2 * k + 1][3])};
#pragma unroll
        for (uint32_t i = 0; i < FLASH_V / 16; i++) {
            unsigned b[4];
            load4_transposed(b, p + k * 16 * V_STRIDE + i * 16);
            mma(acc[2 * i], w, b[0], b[1]);
            mma(acc[2 * i + 1], w, b[2], b[3]);
        }
    }
}

__device__ static inline void store(const shape &s, const flash_args &a, uint32_t head, uint32_t row,
                                    const float sum[2], const float acc[FLASH_V / 8][4])
{
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = row + (lane >> 2) + 8 * half;
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float f = 1.0f / total;
        if (r >= a.rows) continue;
        __half *out = a.out + (size_t)r * a.out_stride + (size_t)(a.head0 + head) * s.v;
#pragma unroll
        for (uint32_t i = 0; i < FLASH_V / 8; i++) {
            const uint32_t c = i * 8 + 2 * (lane & 3);
            if (c < s.v)
                *reinterpret_cast<unsigned *>(out + c) = pack(acc[i][2 * half] * f, acc[i][2 * half + 1] * f);
        }
    }
}

__global__ void __launch_bounds__(WARPS * 32, 1)
    flash_kernel(const __grid_constant__ shape s, const __grid_constant__ flash_args a)
{
    extern __shared__ __align__(16) __half tiles[]; // two of them
    const uint32_t head = blockIdx.x, lane = threadIdx.x & 31;
    // Blocks that see most come first.
    const uint32_t row0 = (gridDim.y - 1 - blockIdx.y) * ROWS, row = row0 + (threadIdx.x >> 5) * 16;
    const float scale = s.softmax_scale * 1.44269504f; // exponents of 2
    pdl_wait();
    pdl_trigger();
    const uint32_t seen = a.position + min(row0 + ROWS, a.rows), count = (seen + TILE - 1) / TILE;
    unsigned q[FLASH_QK / 16][4];
    float acc[FLASH_V / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < FLASH_V / 8; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    stage(s, a, tiles, head, 0);
    load_queries(s, a, head, row, q);
    for (uint32_t i = 0; i < count; i++) {
        const __half *tile = tiles + (i & 1) * TILE_HALVES;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (i + 1 < count) stage(s, a, tiles + (~i & 1) * TILE_HALVES, head, (i + 1) * TILE);
        if (i * TILE > a.position + row + 15) continue; // nothing this warp's rows see
        float c[TILE / 8][4];
        scores(tile, q, c);
        if (i * TILE + TILE - 1 > a.position + row)
#pragma unroll
            for (uint32_t k = 0; k < TILE / 8; k++)
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t key = i * TILE + k * 8 + 2 * (lane & 3) + (e & 1);
                    if (key > a.position + row + (lane >> 2) + 8 * (e >> 1)) c[k][e] = -INFINITY;
                }
        softmax(c, scale, top, sum, acc);
        add_values(tile + TILE * K_STRIDE, c, acc);
    }
    store(s, a, head, row, sum, acc);
}

cudaError_t flash_open(void)
{
    return cudaFuncSetAttribute((const void *)flash_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(2 * TILE_HALVES * sizeof(__half)));
}

cudaError_t launch_flash(const shape &s, const flash_args &a, cudaStream_t stream)
{
    return gpu_launch(flash_kernel, dim3(a.heads, div_up(a.rows, ROWS)), WARPS * 32,
                      2 * TILE_HALVES * sizeof(__half), stream, s, a);
}

/* A warp per position. */
template <int DTYPE>
__global__ void __launch_bounds__(128)
    gather_kernel(const __grid_constant__ shape s, const job *j, uint32_t layer, __half *out, uint32_t n)
{
    const uint32_t p = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31,
                   width = s.latent + s.rope;
    pdl_wait();
    pdl_trigger();
    if (p >= n) return;
    const uint8_t *row = kv_row(s, j->pages, layer, p);
    for (uint32_t c = lane * 4; c < width; c += 128) {
        const float4 v = kv_load_key<DTYPE>(s, row, c);
        *reinterpret_cast<uint2 *>(out + (size_t)p * width + c) = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
    }
}

cudaError_t launch_gather(const shape &s, enum kv_dtype dtype, const job *j, uint32_t layer, __half *out,
                          uint32_t n, cudaStream_t stream)
{
    auto kernel = dtype == KV_F32    ? gather_kernel<KV_F32>
                  : dtype == KV_BF16 ? gather_kernel<KV_BF16>
                                     : gather_kernel<KV_FP8>;
    return gpu_launch(kernel, dim3(div_up(n, 4)), 128, 0, stream, s, j, layer, out, n);
}
