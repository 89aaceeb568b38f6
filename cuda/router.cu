/* router.cu: the router's product, choice of experts and publication of a step.
 *
 * The product is cut along its inputs: a block takes 128 of them for all experts, so it needs only its own
 * part of h and no norm before it; the norm's factor is a scalar that the choice applies.
 *
 * Scores are sigmoids; with the bias they choose (groups by the sum of their two best, then experts; equal
 * values go to the lower number), without it they weigh. A block per row, a thread per expert; ranks are
 * counted instead of sorted, so every thread knows its own place. */
#include "cuda/layer.cuh"
#include "cuda/tile.cuh"

#define EXPERTS_MAX 1024u
#define GROUPS_MAX 64u
#define LOADS 16 // partial sums that a thread has under way

/* ---- product ---- */

#define WARPS 8u
#define STRIPS 2 // of a warp at a time

struct slices {
    const float *h, *weight;
    const uint8_t *data;
    float *logits, *squares;
    uint32_t rows, experts, strips, ktiles;
};

__device__ static inline void load_strips(const slices &a, uint32_t strip, uint32_t block,
                                          uint4 w[STRIPS][2][4])
{
#pragma unroll
    for (uint32_t i = 0; i < STRIPS; i++)
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            const uint32_t at = strip + i * WARPS, k = block * 2 + t;
            if (at < a.strips && k < a.ktiles)
                load_tile(a.data + ((size_t)at * a.ktiles + k) * 2048 + (threadIdx.x & 31) * 16, w[i][t]);
        }
}

/* GROUPS: of 8 columns, 2 beyond two rows. */
template <int GROUPS>
__global__ void __launch_bounds__(WARPS * 32)
    slice_kernel(const __grid_constant__ shape s, const __grid_constant__ slices a)
{
    __shared__ __align__(16) __nv_bfloat16 parts[4 * 384];
    __shared__ float sums[WARPS][16][8 * GROUPS];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, b = blockIdx.x, row0 = blockIdx.y * 4;
    const uint32_t live = min(4u, a.rows - row0);
    uint4 w[STRIPS][2][4];
    load_strips(a, warp, b, w);
    const float4 weight = load_block(a.weight, s.hidden, b, lane);
    pdl_wait();
    pdl_trigger();
    if (warp < live) {
        const uint32_t r = row0 + warp;
        const float4 v = load_block(a.h + (size_t)r * s.hidden, s.hidden, b, lane);
        const float sum = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
        if (lane == 0) a.squares[(size_t)r * gridDim.x + b] = sum;
        vec out = {};
        out.blocks = 1;
        out.b = parts;
        vec_store(out, warp, 0, lane,
                  make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w));
    }
    __syncthreads();
    vec x = {};
    x.blocks = 1;
    x.b = parts;
    for (uint32_t strip = warp; strip < a.strips; strip += STRIPS * WARPS) {
        if (strip > warp) load_strips(a, strip, b, w);
#pragma unroll
        for (uint32_t i = 0; i < STRIPS; i++) {
            const uint32_t at = strip + i * WARPS;
            if (at >= a.strips) break;
            float total[GROUPS][4] = {};
#pragma unroll
            for (uint32_t t = 0; t < 2; t++)
                if (b * 2 + t < a.ktiles) tile<MATRIX_BF16, GROUPS>(x, w[i][t], 0, live, t, 1.0f, total);
            keep_sums<MATRIX_BF16, GROUPS>(sums[warp], total);
            __syncwarp();
            for (uint32_t o = lane; o < 16 * live; o += 32) {
                const uint32_t m = o & 15, r = o >> 4, e = at * 16 + m;
                if (e < a.experts)
                    a.logits[((size_t)b * a.rows + row0 + r) * a.experts + e] =
                        sum_of<MATRIX_BF16>(sums[warp][m], r);
            }
            __syncwarp();
        }
    }
}

cudaError_t launch_slices(const shape &s, const slice_args &a, uint32_t rows, cudaStream_t stream)
{
    const slices k = {a.h,  a.weight,       a.router->data,   a.logits,        a.squares,
                      rows, a.router->rows, a.router->strips, a.router->ktiles};
    const dim3 grid(div_up(s.hidden, 128), div_up(rows, 4));
    if (rows <= 2) return gpu_launch(slice_kernel<1>, grid, WARPS * 32, 0, stream, s, k);
    return gpu_launch(slice_kernel<2>, grid, WARPS * 32, 0, stream, s, k);
}

/* ---- choice ---- */

/* A thread's share of an expert's slices: the first loads are under way while something else is done. */
struct slice_sum {
    const float *from;
    uint32_t width, parts, part, slices;
    size_t step;
    bool run;
    float v[LOADS];

    __device__ slice_sum(const shape &s, const router_args &a, uint32_t r)
    {
        const uint32_t e = threadIdx.x % ((s.experts + 31) / 32 * 32);
        width = (s.experts + 31) / 32 * 32;
        parts = blockDim.x / width;
        part = threadIdx.x / width;
        slices = a.slices;
        step = (size_t)gridDim.x * s.experts;
        from = a.logits + (size_t)r * s.experts + e;
        run = part < parts && e < s.experts;
    }

    __device__ void load(uint32_t base)
    {
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++) {
            const uint32_t k = base + i * parts;
            v[i] = run && k < slices ? from[k * step] : 0.0f;
        }
    }

    /* Logit of expert threadIdx.x (0 beyond the last), without the norm's factor; after load(part). */
    __device__ float join(const shape &s)
    {
        __shared__ float sums[EXPERTS_MAX];
        float sum = 0.0f;
        for (uint32_t base = part; base < slices; base += parts * LOADS) {
            if (base > part) load(base);
#pragma unroll
            for (uint32_t i = 0; i < LOADS; i++) sum += v[i];
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= s.experts) return 0.0f;
        sum = 0.0f;
        for (uint32_t i = 0; i < parts; i++) sum += sums[i * width + threadIdx.x];
        return sum;
    }
};

__device__ static void choose(const shape &s, const router_args &a, uint32_t r, float logit, float bias)
{
    __shared__ float biased[EXPERTS_MAX], sorted[EXPERTS_MAX], chosen[MODEL_MAX_TOP_K];
    __shared__ unsigned words[EXPERTS_MAX / 32];
    __shared__ bool allowed[GROUPS_MAX];
    const uint32_t e = threadIdx.x, per = s.experts / s.groups, g = e / per;
    const uint32_t keep = min(per, max(s.top_k, 2u)); // best of a group that count
    const float score = 1.0f / (1.0f + expf(-logit)), mine = e < s.experts ? score + bias : 0.0f;
    biased[e] = mine;
    __syncthreads();
    uint32_t rank = 0; // within the group
    if (e < s.experts) {
#pragma unroll 8
        for (uint32_t i = g * per; i < (g + 1) * per; i++)
            rank += biased[i] > mine || (biased[i] == mine && i < e);
        if (rank < keep) sorted[g * keep + rank] = mine;
    }
    __syncthreads();
    if (e < s.groups) {
        const auto best = [&](uint32_t i) {
            return sorted[i * keep] + (per > 1 ? sorted[i * keep + 1] : 0.0f);
        };
        const float own = best(e);
        uint32_t better = 0;
        for (uint32_t i = 0; i < s.groups; i++) better += best(i) > own || (best(i) == own && i < e);
        allowed[e] = better < s.top_groups;
    }
    __syncthreads();
    bool in = e < s.experts && allowed[g] && rank < s.top_k;
    if (in) {
        for (uint32_t i = 0; i < s.groups; i++) {
            if (i == g || !allowed[i]) continue;
#pragma unroll 8
            for (uint32_t k = i * keep; k < (i + 1) * keep; k++)
                rank += sorted[k] > mine || (sorted[k] == mine && i < g);
        }
        in = rank < s.top_k;
    }
    const unsigned word = __ballot_sync(~0u, in);
    if (e % 32 == 0) words[e / 32] = word;
    __syncthreads();
    uint32_t at = __popc(word & ((1u << e % 32) - 1));
    for (uint32_t w = 0; w < e / 32; w++) at += __popc(words[w]);
    in = in && at < s.top_k; // more only if there are NaNs
    if (in) chosen[at] = score;
    __syncthreads();
    if (!in) return;
    float total = 0.0f;
    for (uint32_t i = 0; i < s.top_k; i++) total += chosen[i];
    total = s.norm_topk ? total + 1e-20f : 1.0f;
    a.ids[(size_t)r * s.top_k + at] = (int32_t)e;
    a.weights[(size_t)r * s.top_k + at] = score / total * s.routed_scale;
}

/* By one thread of every block, behind a barrier of the block: what its other threads wrote is covered by
 * that, what kernels before wrote by their end. */
__device__ static inline void publish(const router_args &a, uint32_t published)
{
    if (gridDim.x > 1) {
        __threadfence_system();
        if (atomicAdd(a.arrived, 1) + 1 < gridDim.x) return;
        *a.arrived = 0;
        __threadfence_system();
    }
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&a.c->published), "r"(published) : "memory");
}

#define SHARE (HIDDEN_MAX / 4 / EXPERTS_MAX) // of a row, four values each, that a thread publishes

__global__ void __launch_bounds__(EXPERTS_MAX)
    router_kernel(const __grid_constant__ shape s, const __grid_constant__ router_args a)
{
    const uint32_t r = blockIdx.x;
    float4 h[SHARE], w[SHARE];
#pragma unroll
    for (uint32_t i = 0; i < SHARE; i++) {
        const uint32_t at = (i * EXPERTS_MAX + threadIdx.x) * 4;
        if (!a.h || at >= s.hidden) continue;
        // h is older than the kernel before, so it need not be waited for.
        h[i] = __ldcg(reinterpret_cast<const float4 *>(a.h + (size_t)r * s.hidden + at));
        w[i] = *reinterpret_cast<const float4 *>(a.weight + at);
    }
    const float bias = a.logits && threadIdx.x < s.experts ? a.bias[threadIdx.x] : 0.0f;
    const uint32_t published = __ldcg(&a.j->publish_base) + a.step; // as old as the job's first kernel
    pdl_wait();
    pdl_trigger();
    if (a.logits) {
        float squares[SQUARES];
        slice_sum sum(s, a, r);
        load_squares(a.x, r, threadIdx.x & 31, squares);
        sum.load(sum.part);
        const float f = factor_of(a.x, squares);
#pragma unroll
        for (uint32_t i = 0; i < SHARE; i++) {
            const uint32_t at = (i * EXPERTS_MAX + threadIdx.x) * 4;
            if (!a.h || at >= s.hidden) continue;
            h[i] = make_float4(h[i].x * f * w[i].x, h[i].y * f * w[i].y, h[i].z * f * w[i].z,
                               h[i].w * f * w[i].w);
            *reinterpret_cast<float4 *>(a.x_host + (size_t)r * s.hidden + at) = h[i];
        }
        choose(s, a, r, sum.join(s) * f, bias);
    }
    __syncthreads();
    if (threadIdx.x == 0) publish(a, published);
    if (!a.h) return;
#pragma unroll
    for (uint32_t i = 0; i < SHARE; i++) { // a warp has 128 neighbouring values
        const uint32_t block = i * (EXPERTS_MAX / 32) + threadIdx.x / 32,
                       at = (i * EXPERTS_MAX + threadIdx.x) * 4;
        if (block < a.kept.blocks)
            vec_store(a.kept, r, block, threadIdx.x & 31, at < s.hidden ? h[i] : make_float4(0, 0, 0, 0));
    }
}

cudaError_t launch_router(const shape &s, const router_args &a, uint32_t rows, cudaStream_t stream)
{
    if (!a.logits) return gpu_launch(router_kernel, dim3(1), 32, 0, stream, s, a);
    return gpu_launch(router_kernel, dim3(rows), EXPERTS_MAX, 0, stream, s, a);
}

cudaError_t router_open()
{
    const void *const kernels[] = {(const void *)slice_kernel<1>, (const void *)slice_kernel<2>,
                                   (const void *)router_kernel};
    for (const void *kernel : kernels) {
        cudaError_t e = gpu_share(kernel);
        if (e) return e;
    }
    return cudaSuccess;
}
