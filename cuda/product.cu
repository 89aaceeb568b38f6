/* product.cu: W x for 1 to 4 rows at the memory limit (more rows: four at a time).
 *
 * A warp reads tiles of one strip of 16 outputs, widens them to half floats (e4m3 is exact in them) or takes
 * bf16 as it is, and multiplies with mma.m16n8k16, whose 8 columns are the parts of up to four rows. Each
 * tile is summed on its own and joins an fp32 sum with its scale; several warps share a strip, interleaved,
 * and their sums are added in warp order. */
#include "cuda/matrix.cuh"

#include <cuda_fp8.h>

struct segment {
    const uint8_t *data;
    const float *scales;
    float *y;
    uint32_t rows, strips, group_strips, ktiles, log_splits, stride, group_stride, first_block;
    bool bf16, add;
};

struct product_args {
    segment seg[PRODUCT_MAX];
    uint32_t count, rows, row_groups;
    vec x;
};

__device__ static inline uint4 load_weights(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__device__ static inline unsigned word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Four e4m3 codes as two pairs of half floats. */
__device__ static inline void widen(unsigned codes, unsigned &low, unsigned &high)
{
    __half2_raw a = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes & 0xffff), __NV_E4M3);
    __half2_raw b = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 16), __NV_E4M3);
    low = (unsigned)a.x | (unsigned)a.y << 16;
    high = (unsigned)b.x | (unsigned)b.y << 16;
}

template <int TYPE>
__device__ static inline void mma(float c[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                  unsigned b1)
{
    if constexpr (TYPE == MATRIX_FP8)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* One tile: cur = this lane's 64 bytes of it, xt = index of the tile's first 64 or 128 inputs in x. */
template <int TYPE, int GROUPS>
__device__ static inline void tile(const product_args &a, const uint4 cur[4], uint32_t row0, uint32_t live,
                                   size_t xt, float scale, float total[GROUPS][4])
{
    const unsigned lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    constexpr unsigned parts = TYPE == MATRIX_FP8 ? 2 : 3;
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const unsigned column = n * 8 + g, r = column / parts, p = column % parts;
        uint4 b[4] = {};
        if (r < live) {
            if constexpr (TYPE == MATRIX_FP8) {
                size_t at = ((size_t)(row0 + r) * a.x.blocks + xt) * 256 + p * 128;
                const uint4 *x = reinterpret_cast<const uint4 *>(a.x.h + at);
                b[0] = x[2 * t];
                b[1] = x[2 * t + 1];
                b[2] = x[8 + 2 * t];
                b[3] = x[8 + 2 * t + 1];
            } else {
                size_t at = ((size_t)(row0 + r) * a.x.blocks + xt / 2) * 384 + p * 128 + (xt & 1) * 64;
                const uint4 *x = reinterpret_cast<const uint4 *>(a.x.b + at);
                b[0] = x[t];
                b[1] = x[4 + t];
            }
        }
        float c[4] = {};
        if constexpr (TYPE == MATRIX_FP8) {
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    unsigned a0, a1, a2, a3;
                    widen(word(cur[2 * h], s), a0, a2);
                    widen(word(cur[2 * h + 1], s), a1, a3);
                    const uint4 &q = b[2 * h + s / 2];
                    mma<TYPE>(c, a0, a1, a2, a3, word(q, 2 * (s & 1)), word(q, 2 * (s & 1) + 1));
                }
            // Columns 2t and 2t + 1 are hi and lo of row t.
            float f = t < live ? scale * a.x.hs[(size_t)(row0 + t) * a.x.blocks + xt] : 0.0f;
            total[0][0] = fmaf(c[0] + c[1], f, total[0][0]);
            total[0][1] = fmaf(c[2] + c[3], f, total[0][1]);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    mma<TYPE>(c, word(cur[2 * h], 2 * s), word(cur[2 * h + 1], 2 * s),
                              word(cur[2 * h], 2 * s + 1), word(cur[2 * h + 1], 2 * s + 1), word(b[h], 2 * s),
                              word(b[h], 2 * s + 1));
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] += c[i];
        }
    }
}

/* A block's share of one matrix: its strips' sums of rows row0 .. row0 + live - 1. */
template <int TYPE, int GROUPS, unsigned WARPS>
__device__ static inline void run_segment(const product_args &a, const segment &s, uint32_t block,
                                          uint32_t row0, uint32_t live, float (*sums)[16][8 * GROUPS])
{
    const unsigned warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t splits = 1u << s.log_splits, sub = warp & (splits - 1);
    const uint32_t strip0 = (block - s.first_block) * (WARPS >> s.log_splits);
    const uint32_t strip = strip0 + (warp >> s.log_splits);
    const bool run = strip < s.strips && sub < s.ktiles;
    const uint8_t *w = s.data + ((size_t)strip * s.ktiles + sub) * 2048 + lane * 16;
    uint4 cur[4] = {}, next[4] = {};
    if (run)
#pragma unroll
        for (int i = 0; i < 4; i++) cur[i] = load_weights(w + i * 512);
    pdl_wait();
    pdl_trigger();
    float total[GROUPS][4] = {};
    if (run) {
        const size_t x0 =
            (size_t)(strip / s.group_strips) * (TYPE == MATRIX_FP8 ? s.ktiles : (s.ktiles + 1) / 2 * 2);
        const float *scales = s.scales + (size_t)strip * s.ktiles;
        for (uint32_t k = sub; k < s.ktiles; k += splits) {
            w += (size_t)splits * 2048;
            if (k + splits < s.ktiles)
#pragma unroll
                for (int i = 0; i < 4; i++) next[i] = load_weights(w + i * 512);
            float scale = TYPE == MATRIX_FP8 ? __ldg(scales + k) : 1.0f;
            tile<TYPE, GROUPS>(a, cur, row0, live, x0 + k, scale, total);
#pragma unroll
            for (int i = 0; i < 4; i++) cur[i] = next[i];
        }
    }
    if constexpr (TYPE == MATRIX_FP8) {
        sums[warp][g][t] = total[0][0];
        sums[warp][g + 8][t] = total[0][1];
    } else {
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[warp][g + 8 * (i / 2)][n * 8 + 2 * t + (i & 1)] = total[n][i];
    }
    __syncthreads();
    const uint32_t outputs = 16 * WARPS >> s.log_splits;
    for (uint32_t i = threadIdx.x; i < outputs * live; i += blockDim.x) {
        const uint32_t m = i % outputs, r = i / outputs;
        const uint32_t first = (m >> 4) << s.log_splits, row = (strip0 + (m >> 4)) * 16 + (m & 15);
        if (row >= s.rows) continue;
        float sum = 0.0f;
        for (uint32_t j = 0; j < splits; j++)
            if constexpr (TYPE == MATRIX_FP8)
                sum += sums[first + j][m & 15][r];
            else
                sum += (sums[first + j][m & 15][3 * r] + sums[first + j][m & 15][3 * r + 1]) +
                       sums[first + j][m & 15][3 * r + 2];
        const uint32_t group_rows = s.group_strips * 16;
        float *y = s.y + (size_t)(row0 + r) * s.stride + (size_t)(row / group_rows) * s.group_stride +
                   row % group_rows;
        *y = s.add ? *y + sum : sum;
    }
}

/* KINDS: bit 0 fp8, bit 1 bf16 matrices in the launch; GROUPS: of 8 columns that bf16 needs (2 beyond two
 * rows). */
template <int KINDS, int GROUPS, unsigned WARPS>
__global__ void __launch_bounds__(WARPS * 32, WARPS == 8                   ? (GROUPS == 1 ? 4 : 3)
                                              : WARPS == 16 && GROUPS == 1 ? 2
                                                                           : 1)
    product_kernel(const __grid_constant__ product_args a)
{
    __shared__ float sums[WARPS][16][8 * GROUPS];
    const uint32_t block = blockIdx.x / a.row_groups, row0 = blockIdx.x % a.row_groups * 4;
    const uint32_t live = min(4u, a.rows - row0);
    unsigned i = 0;
    while (i + 1 < a.count && block >= a.seg[i + 1].first_block) i++;
    const segment &s = a.seg[i];
    if constexpr (KINDS == 1)
        run_segment<MATRIX_FP8, 1, WARPS>(a, s, block, row0, live, sums);
    else if constexpr (KINDS == 2)
        run_segment<MATRIX_BF16, GROUPS, WARPS>(a, s, block, row0, live, sums);
    else if (s.bf16)
        run_segment<MATRIX_BF16, GROUPS, WARPS>(a, s, block, row0, live, sums);
    else
        run_segment<MATRIX_FP8, GROUPS, WARPS>(a, s, block, row0, live, sums);
}

/* fp32 weights: a warp per output and row. */
__global__ void __launch_bounds__(256) product_f32_kernel(const float *w, uint32_t outputs, uint32_t ktiles,
                                                          uint32_t group_rows, vec x, product_out out)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, o = blockIdx.x * 8 + warp,
                   r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (o >= outputs) return;
    const float4 *wp = reinterpret_cast<const float4 *>(w + (size_t)o * ktiles * 128) + lane;
    const float4 *xp = reinterpret_cast<const float4 *>(
                           x.f32 + ((size_t)r * x.blocks + (size_t)(o / group_rows) * ktiles) * 128) +
                       lane;
    float sum = 0.0f;
    for (uint32_t k = 0; k < ktiles; k++) {
        float4 p = wp[k * 32], q = xp[k * 32];
        sum = fmaf(p.x, q.x, sum);
        sum = fmaf(p.y, q.y, sum);
        sum = fmaf(p.z, q.z, sum);
        sum = fmaf(p.w, q.w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        float *y =
            out.y + (size_t)r * out.stride + (size_t)(o / group_rows) * out.group_stride + o % group_rows;
        *y = out.add ? *y + sum : sum;
    }
}

/* Warps that share a strip: enough to keep the memory busy with at least two tiles each. Depends on the shape
 * only, so a sum's order does too. Above 8 the whole block grows, which pays only for matrices of few strips
 * (router, q_a). */
static uint32_t log_splits(uint32_t strips, uint32_t ktiles)
{
    uint32_t l = 0;
    while (l < 5 && (strips << l) < (l < 3 ? 4096u : 2048u) && (ktiles >> (l + 1)) >= 2) l++;
    return l;
}

template <int KINDS, unsigned WARPS>
static cudaError_t launch_kind(const product_args &a, uint32_t blocks, cudaStream_t stream)
{
    const dim3 grid(blocks * a.row_groups);
    if (KINDS == 1 || a.rows <= 2)
        return gpu_launch(product_kernel<KINDS, 1, WARPS>, grid, WARPS * 32, 0, stream, a);
    if constexpr (KINDS == 1) return cudaErrorUnknown;
    return gpu_launch(product_kernel < KINDS, KINDS == 1 ? 1 : 2, WARPS >, grid, WARPS * 32, 0, stream, a);
}

template <unsigned WARPS>
static cudaError_t launch_product(const product_args &a, int kinds, uint32_t blocks, cudaStream_t stream)
{
    if (kinds == 1) return launch_kind<1, WARPS>(a, blocks, stream);
    if (kinds == 2) return launch_kind<2, WARPS>(a, blocks, stream);
    return launch_kind<3, WARPS>(a, blocks, stream);
}

static cudaError_t product_f32(const matrix *m, product_out out, const vec &x, uint32_t rows,
                               cudaStream_t stream)
{
    if (out.group_stride == 0) out.group_stride = m->group_rows;
    return gpu_launch(product_f32_kernel, dim3(div_up(m->rows, 8), rows), 256, 0, stream,
                      (const float *)m->data, m->rows, m->ktiles, m->group_rows, x, out);
}

cudaError_t product(const matrix *const m[], const product_out out[], uint32_t count, const vec &x,
                    uint32_t rows, cudaStream_t stream)
{
    product_args a = {};
    uint32_t strips[2] = {}, blocks = 0, warps = 8;
    int kinds = 0;
    for (uint32_t i = 0; i < count; i++)
        if (m[i]->type != MATRIX_F32) strips[m[i]->type == MATRIX_BF16] += m[i]->strips;
    for (uint32_t i = 0; i < count; i++) {
        const bool bf16 = m[i]->type == MATRIX_BF16;
        if (m[i]->type == MATRIX_F32) {
            cudaError_t e = product_f32(m[i], out[i], x, rows, stream);
            if (e) return e;
            continue;
        }
        kinds |= bf16 ? 2 : 1;
        const uint32_t l = log_splits(strips[bf16], m[i]->ktiles);
        if ((1u << l) > warps && (!bf16 || strips[0] == 0))
            warps = 1u << l; // beside fp8, bf16 takes what that has
        a.seg[a.count++] = {m[i]->data,
                            m[i]->scales,
                            out[i].y,
                            m[i]->rows,
                            m[i]->strips,
                            div_up(m[i]->group_rows, 16),
                            m[i]->ktiles,
                            l,
                            out[i].stride,
                            out[i].group_stride ? out[i].group_stride : m[i]->group_rows,
                            0,
                            bf16,
                            out[i].add};
    }
    if (a.count == 0) return cudaSuccess;
    for (uint32_t i = 0; i < a.count; i++) {
        while ((1u << a.seg[i].log_splits) > warps) a.seg[i].log_splits--;
        a.seg[i].first_block = blocks;
        blocks += div_up(a.seg[i].strips, warps >> a.seg[i].log_splits);
    }
    a.rows = rows;
    a.row_groups = div_up(rows, 4);
    a.x = x;
    if (warps == 8) return launch_product<8>(a, kinds, blocks, stream);
    if (warps == 16) return launch_product<16>(a, kinds, blocks, stream);
    return launch_product<32>(a, kinds, blocks, stream);
}
