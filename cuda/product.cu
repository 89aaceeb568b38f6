/* product.cu: W x for 1 to 4 rows at the memory limit (more rows: four at a time).
 *
 * A warp reads tiles of one strip of 16 outputs, widens them to half floats (e4m3 is exact in them) or takes
 * bf16 as it is, and multiplies with mma.m16n8k16, whose 8 columns are the parts of up to four rows. Each
 * tile is summed on its own and joins an fp32 sum with its scale.
 *
 * The inputs of a launch are cut among the blocks of a cluster: a block copies its part of x once and has it
 * for several strips. Sums of a strip meet in one block of the cluster and are added in order. */
#include "cuda/cluster.cuh"
#include "cuda/tile.cuh"

#define CLUSTER_MAX 8u
#define SLOTS 16u // sums of a strip or a block's strips that meet in a block

struct segment {
    const uint8_t *data;
    const float *scales;
    float *y;
    uint32_t rows, strips, ktiles, log_subs, stride, first_unit; // a unit: what a cluster does
    bool bf16, add;
};

struct product_args {
    segment seg[PRODUCT_MAX];
    uint32_t count, rows, row_groups, log_cluster, scales_at; // scales_at: in shared memory, behind x
    vec x;
};

/* Blocks [first, first + count) of 128 inputs of rows row0 .. row0 + live - 1 into `memory`. */
template <int TYPE>
__device__ static inline vec stage(const vec &x, uint32_t row0, uint32_t live, uint32_t first, uint32_t count,
                                   uint8_t *memory)
{
    constexpr uint32_t chunks = TYPE == MATRIX_FP8 ? 32 : 48; // of 16 bytes in a block
    const uint8_t *from = TYPE == MATRIX_FP8 ? (const uint8_t *)x.h : (const uint8_t *)x.b;
    const unsigned to = shared_address(memory);
    const uint32_t n = count * chunks;
    vec v = {};
    v.blocks = count;
    v.h = reinterpret_cast<__half *>(memory);
    v.b = reinterpret_cast<__nv_bfloat16 *>(memory);
    v.hs = reinterpret_cast<float *>(memory + live * n * 16);
    for (uint32_t r = 0; r < live; r++)
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            copy_start(to + (r * n + i) * 16,
                       from + (((size_t)(row0 + r) * x.blocks + first) * chunks + i) * 16);
    if (TYPE == MATRIX_FP8)
        for (uint32_t i = threadIdx.x; i < live * count; i += blockDim.x)
            copy_float(to + live * n * 16 + i * 4,
                       x.hs + (size_t)(row0 + i / count) * x.blocks + first + i % count);
    copies_await();
    __syncthreads();
    return v;
}

/* A warp's sums of a strip to where they meet: slot `slot` of block `owner`. */
template <int TYPE, int GROUPS>
__device__ static inline void push_sums(const float *sums, uint32_t owner, uint32_t slot,
                                        const float total[GROUPS][4])
{
    constexpr uint32_t columns = TYPE == MATRIX_FP8 ? 4 : 8 * GROUPS;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const unsigned to = cluster_address(shared_address(sums), owner) + slot * 16 * columns * 4;
    if constexpr (TYPE == MATRIX_FP8) {
        cluster_store(to + (g * 4 + t) * 4, total[0][0]);
        cluster_store(to + ((g + 8) * 4 + t) * 4, total[0][1]);
    } else {
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                cluster_store(to + ((g + 8 * (i / 2)) * columns + n * 8 + 2 * t + (i & 1)) * 4, total[n][i]);
    }
}

/* A block's share of one matrix: its strips' sums of rows row0 .. row0 + live - 1. */
template <int TYPE, int GROUPS>
__device__ static inline void run_segment(const product_args &a, const segment &s, uint32_t unit,
                                          uint32_t rank, uint32_t row0, uint32_t live, uint8_t *memory,
                                          float *sums, float *factors)
{
    constexpr uint32_t per = TYPE == MATRIX_FP8 ? 1 : 2; // tiles in a block of 128 inputs
    constexpr uint32_t columns = TYPE == MATRIX_FP8 ? 4 : 8 * GROUPS;
    const unsigned warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t cluster = 1u << a.log_cluster, subs = 1u << s.log_subs,
                   strips = blockDim.x >> (5 + s.log_subs);
    const uint32_t local = warp >> s.log_subs, sub = warp & (subs - 1);
    const uint32_t strip0 = (unit - s.first_unit) * strips, strip = strip0 + local;
    const uint32_t first = a.x.blocks * rank >> a.log_cluster,
                   count = (a.x.blocks * (rank + 1) >> a.log_cluster) - first;
    const uint32_t begin = first * per + sub, end = min((first + count) * per, s.ktiles);
    const bool run = strip < s.strips && begin < end;
    const uint8_t *w = s.data + ((size_t)strip * s.ktiles + begin) * 2048 + lane * 16;
    const float *scales = reinterpret_cast<const float *>(memory + a.scales_at) + local * count;
    const size_t step = (size_t)subs * 2048;
    constexpr bool two = TYPE == MATRIX_FP8; // fp8 has registers for two tiles on their way
    uint4 cur[4] = {}, next[4] = {};
    if (run) load_tile(w, cur);
    if (two && run && begin + subs < end) load_tile(w + step, next);
    if (TYPE == MATRIX_FP8)
        for (uint32_t i = threadIdx.x; i < strips * count; i += blockDim.x)
            if (strip0 + i / count < s.strips)
                copy_float(shared_address(memory) + a.scales_at + i * 4,
                           s.scales + (size_t)(strip0 + i / count) * s.ktiles + first + i % count);
    pdl_wait();
    pdl_trigger();
    float total[GROUPS][4] = {}, squares[SQUARES];
    if (warp < live) load_squares(a.x, row0 + warp, lane, squares);
    const vec x = stage<TYPE>(a.x, row0, live, first, count, memory);
    if (warp < live) {
        const float f = factor_of(a.x, squares);
        if (lane == 0) factors[warp] = f;
    }
    if (run) {
        for (uint32_t k = begin; k < end; k += subs) {
            w += step;
            if (!two && k + subs < end) load_tile(w, next);
            tile<TYPE, GROUPS>(x, cur, 0, live, k - first * per, two ? scales[k - first] : 1.0f, total);
#pragma unroll
            for (int i = 0; i < 4; i++) cur[i] = next[i];
            if (two && k + 2 * subs < end) load_tile(w + step, next);
        }
    }
    cluster_await_begun();
    const uint32_t slots = cluster << s.log_subs; // of a strip
    if (local < strips)
        push_sums<TYPE, GROUPS>(sums, local & (cluster - 1),
                                (local >> a.log_cluster) * slots + (rank << s.log_subs) + sub, total);
    cluster_barrier();
    const uint32_t owned = rank < strips ? (strips - rank + cluster - 1) >> a.log_cluster : 0;
    for (uint32_t i = threadIdx.x; i < owned * 16 * live; i += blockDim.x) {
        const uint32_t m = i & 15, r = (i >> 4) % live, o = (i >> 4) / live;
        const uint32_t row = (strip0 + (o << a.log_cluster) + rank) * 16 + m;
        if (row >= s.rows) continue;
        const float *from = sums + (o * slots * 16 + m) * columns;
        float sum = 0.0f;
        for (uint32_t j = 0; j < slots; j++) sum += sum_of<TYPE>(from + j * 16 * columns, r);
        sum *= factors[r];
        float *y = s.y + (size_t)(row0 + r) * s.stride + row;
        *y = s.add ? *y + sum : sum;
    }
}

/* KINDS: bit 0 fp8, bit 1 bf16 matrices in the launch; GROUPS: of 8 columns that bf16 needs (2 beyond two
 * rows); WARPS at most, 16 where x takes so much shared memory that only two blocks share a multiprocessor.
 */
template <int KINDS, int GROUPS, unsigned WARPS>
__global__ void __launch_bounds__(WARPS * 32, WARPS == 16   ? 2
                                              : GROUPS == 1 ? 4
                                                            : 3)
    product_kernel(const __grid_constant__ product_args a)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ float sums[SLOTS * 16 * (KINDS == 1 ? 4 : 8 * GROUPS)], factors[4];
    cluster_begun();
    const uint32_t rank = blockIdx.x & ((1u << a.log_cluster) - 1), at = blockIdx.x >> a.log_cluster;
    const uint32_t unit = at / a.row_groups, row0 = at % a.row_groups * 4;
    const uint32_t live = min(4u, a.rows - row0);
    unsigned i = 0;
    while (i + 1 < a.count && unit >= a.seg[i + 1].first_unit) i++;
    const segment &s = a.seg[i];
    if constexpr (KINDS == 1)
        run_segment<MATRIX_FP8, 1>(a, s, unit, rank, row0, live, memory, sums, factors);
    else if constexpr (KINDS == 2)
        run_segment<MATRIX_BF16, GROUPS>(a, s, unit, rank, row0, live, memory, sums, factors);
    else if (s.bf16)
        run_segment<MATRIX_BF16, GROUPS>(a, s, unit, rank, row0, live, memory, sums, factors);
    else
        run_segment<MATRIX_FP8, GROUPS>(a, s, unit, rank, row0, live, memory, sums, factors);
}

/* fp32 weights: a warp per output and row. */
__global__ void __launch_bounds__(256)
    product_f32_kernel(const float *w, uint32_t outputs, uint32_t ktiles, vec x, product_out out)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, o = blockIdx.x * 8 + warp,
                   r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (o >= outputs) return;
    const float4 *wp = reinterpret_cast<const float4 *>(w + (size_t)o * ktiles * 128) + lane;
    const float4 *xp = reinterpret_cast<const float4 *>(x.f32 + (size_t)r * x.blocks * 128) + lane;
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
        float *y = out.y + (size_t)r * out.stride + o;
        *y = out.add ? *y + sum : sum;
    }
}

/* Blocks that share the inputs: as many as leave each two blocks of 128. Warps of a block that share a strip:
 * enough to keep the memory busy. Both depend on shapes only, so a sum's order does too. */
static uint32_t log_cluster(uint32_t blocks)
{
    uint32_t l = 0;
    while ((2u << l) <= CLUSTER_MAX && blocks >> (l + 1) >= 2) l++;
    return l;
}

static uint32_t log_subs(uint32_t strips, uint32_t blocks, uint32_t cluster)
{
    uint32_t l = 0;
    while ((2u << (cluster + l)) <= SLOTS && l < 2 && strips << (cluster + l) < 2048 &&
           blocks >> (cluster + l + 1) >= 2)
        l++;
    return l;
}

typedef void product_fn(product_args);

static product_fn *variant(int kinds, bool wide)
{
    if (kinds == 1) return wide ? product_kernel<1, 1, 16> : product_kernel<1, 1, 8>;
    if (kinds == 2) return wide ? product_kernel<2, 2, 8> : product_kernel<2, 1, 8>;
    return wide ? product_kernel<3, 2, 8> : product_kernel<3, 1, 8>;
}

cudaError_t product_open()
{
    for (int i = 0; i < 6; i++) {
        const void *const kernel = (const void *)variant(i % 3 + 1, i / 3);
        cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 80 * 1024);
        if (!e) e = gpu_share(kernel);
        if (e) return e;
    }
    return cudaSuccess;
}

static cudaError_t product_f32(const matrix *m, const product_out &out, const vec &x, uint32_t rows,
                               cudaStream_t stream)
{
    return gpu_launch(product_f32_kernel, dim3(div_up(m->rows, 8), rows), 256, 0, stream,
                      (const float *)m->data, m->rows, m->ktiles, x, out);
}

cudaError_t product(const matrix *const m[], const product_out out[], uint32_t count, const vec &x,
                    uint32_t rows, cudaStream_t stream)
{
    product_args a = {};
    uint32_t strips[2] = {}, units = 0;
    int kinds = 0;
    a.log_cluster = log_cluster(x.blocks);
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
        a.seg[a.count++] = {m[i]->data,
                            m[i]->scales,
                            out[i].y,
                            m[i]->rows,
                            m[i]->strips,
                            m[i]->ktiles,
                            log_subs(strips[bf16], x.blocks, a.log_cluster),
                            out[i].stride,
                            0,
                            bf16,
                            out[i].add};
    }
    if (a.count == 0) return cudaSuccess;
    a.rows = rows;
    a.row_groups = div_up(rows, 4);
    a.x = x;
    const bool wide = rows > 2;
    const uint32_t warps = wide && kinds == 1 ? 16 : 8;
    for (uint32_t i = 0; i < a.count; i++) {
        a.seg[i].first_unit = units;
        units += div_up(a.seg[i].strips, warps >> a.seg[i].log_subs);
    }
    const uint32_t part = div_up(x.blocks, 1u << a.log_cluster);
    a.scales_at = (rows < 4 ? rows : 4) * part * ((kinds & 2 ? 768 : 512) + 4);
    return gpu_launch_with(variant(kinds, wide), dim3((units * a.row_groups) << a.log_cluster), warps * 32,
                           a.scales_at + warps * part * sizeof(float), 1u << a.log_cluster, stream, a);
}
