/* product.cu: W x for 1 to 4 rows at the memory limit (more rows: four at a time).
 *
 * A warp reads tiles of one strip of 16 outputs, widens them to half floats (e4m3 is exact in them) or takes
 * bf16 as it is, and multiplies with mma.m16n8k16, whose 8 columns are the parts of up to four rows. Each
 * tile is summed on its own and joins an fp32 sum with its scale; several warps share a strip, interleaved,
 * and their sums are added in warp order. */
#include "cuda/tile.cuh"

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

/* A block's share of one matrix: its strips' sums of rows row0 .. row0 + live - 1. */
template <int TYPE, int GROUPS, unsigned WARPS>
__device__ static inline void run_segment(const product_args &a, const segment &s, uint32_t block,
                                          uint32_t row0, uint32_t live, float (*sums)[16][8 * GROUPS],
                                          float *factors)
{
    const unsigned warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t splits = 1u << s.log_splits, sub = warp & (splits - 1);
    const uint32_t strip0 = (block - s.first_block) * (WARPS >> s.log_splits);
    const uint32_t strip = strip0 + (warp >> s.log_splits);
    const bool run = strip < s.strips && sub < s.ktiles;
    const uint8_t *w = s.data + ((size_t)strip * s.ktiles + sub) * 2048 + lane * 16;
    const float *scales = s.scales + (size_t)strip * s.ktiles;
    const size_t step = (size_t)splits * 2048;
    // fp8 has registers for two tiles on their way, and its scales come from memory as slowly as its weights.
    constexpr bool two = TYPE == MATRIX_FP8;
    uint4 cur[4] = {}, next[4] = {};
    float scale = 1.0f, next_scale = 1.0f;
    if (run) load_tile(w, cur);
    if (two && run) {
        scale = __ldg(scales + sub);
        if (sub + splits < s.ktiles) {
            load_tile(w + step, next);
            next_scale = __ldg(scales + sub + splits);
        }
    }
    pdl_wait();
    pdl_trigger();
    float total[GROUPS][4] = {}, squares[SQUARES];
    if (warp < live) load_squares(a.x, row0 + warp, lane, squares);
    if (run) {
        const size_t x0 =
            (size_t)(strip / s.group_strips) * (TYPE == MATRIX_FP8 ? s.ktiles : (s.ktiles + 1) / 2 * 2);
        for (uint32_t k = sub; k < s.ktiles; k += splits) {
            w += step;
            if (!two && k + splits < s.ktiles) load_tile(w, next);
            tile<TYPE, GROUPS>(a.x, cur, row0, live, x0 + k, scale, total);
#pragma unroll
            for (int i = 0; i < 4; i++) cur[i] = next[i];
            scale = next_scale;
            if (two && k + 2 * splits < s.ktiles) {
                load_tile(w + step, next);
                next_scale = __ldg(scales + k + 2 * splits);
            }
        }
    }
    keep_sums<TYPE, GROUPS>(sums[warp], total);
    if (warp < live) {
        const float f = factor_of(a.x, squares);
        if (lane == 0) factors[warp] = f;
    }
    __syncthreads();
    const uint32_t outputs = 16 * WARPS >> s.log_splits;
    for (uint32_t i = threadIdx.x; i < outputs * live; i += blockDim.x) {
        const uint32_t m = i % outputs, r = i / outputs;
        const uint32_t first = (m >> 4) << s.log_splits, row = (strip0 + (m >> 4)) * 16 + (m & 15);
        if (row >= s.rows) continue;
        float sum = 0.0f;
        for (uint32_t j = 0; j < splits; j++) sum += sum_of<TYPE>(sums[first + j][m & 15], r);
        sum *= factors[r];
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
    __shared__ float sums[WARPS][16][8 * GROUPS], factors[4];
    const uint32_t block = blockIdx.x / a.row_groups, row0 = blockIdx.x % a.row_groups * 4;
    const uint32_t live = min(4u, a.rows - row0);
    unsigned i = 0;
    while (i + 1 < a.count && block >= a.seg[i + 1].first_block) i++;
    const segment &s = a.seg[i];
    if constexpr (KINDS == 1)
        run_segment<MATRIX_FP8, 1, WARPS>(a, s, block, row0, live, sums, factors);
    else if constexpr (KINDS == 2)
        run_segment<MATRIX_BF16, GROUPS, WARPS>(a, s, block, row0, live, sums, factors);
    else if (s.bf16)
        run_segment<MATRIX_BF16, GROUPS, WARPS>(a, s, block, row0, live, sums, factors);
    else
        run_segment<MATRIX_FP8, GROUPS, WARPS>(a, s, block, row0, live, sums, factors);
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
    float squares[SQUARES];
    load_squares(x, r, lane, squares);
    sum = warp_sum(sum) * factor_of(x, squares);
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
        if (!out[i].y) continue;
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
