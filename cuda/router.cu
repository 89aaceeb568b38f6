/* router.cu: choice of experts and publication of a step.
 *
 * Scores are sigmoids; with the bias they choose (groups by the sum of their two best, then experts; equal
 * values go to the lower number), without it they weigh. A block per row, a thread per expert; ranks are
 * counted instead of sorted, so every thread knows its own place. */
#include "cuda/layer.cuh"

#define EXPERTS_MAX 1024u
#define GROUPS_MAX 64u

__device__ static void choose(const shape &s, const router_args &a, uint32_t r)
{
    __shared__ float score[EXPERTS_MAX], biased[EXPERTS_MAX], group[GROUPS_MAX], chosen[MODEL_MAX_TOP_K];
    __shared__ unsigned words[EXPERTS_MAX / 32];
    const uint32_t e = threadIdx.x, per = s.experts / s.groups;
    if (e < s.experts) {
        score[e] = 1.0f / (1.0f + expf(-a.logits[(size_t)r * s.experts + e]));
        biased[e] = score[e] + a.bias[e];
    }
    __syncthreads();
    if (e < s.groups) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = e * per; i < (e + 1) * per; i++) {
            float v = biased[i];
            if (v > first)
                second = first, first = v;
            else if (v > second)
                second = v;
        }
        group[e] = per > 1 ? first + second : first;
    }
    __syncthreads();
    bool in = e < s.experts;
    if (in) {
        const uint32_t g = e / per;
        uint32_t rank = 0;
        for (uint32_t i = 0; i < s.groups; i++)
            rank += group[i] > group[g] || (group[i] == group[g] && i < g);
        in = rank < s.top_groups;
    }
    const float mine = in ? biased[e] : -INFINITY;
    __syncthreads();
    if (e < s.experts) biased[e] = mine;
    __syncthreads();
    if (in) {
        uint32_t rank = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < s.experts; i++) rank += biased[i] > mine || (biased[i] == mine && i < e);
        in = rank < s.top_k;
    }
    const unsigned word = __ballot_sync(~0u, in);
    if (e % 32 == 0) words[e / 32] = word;
    __syncthreads();
    uint32_t at = __popc(word & ((1u << e % 32) - 1));
    for (uint32_t w = 0; w < e / 32; w++) at += __popc(words[w]);
    if (in) chosen[at] = score[e];
    __syncthreads();
    if (!in) return;
    float total = 0.0f;
    for (uint32_t i = 0; i < s.top_k; i++) total += chosen[i];
    total = s.norm_topk ? total + 1e-20f : 1.0f;
    a.ids[(size_t)r * s.top_k + at] = (int32_t)e;
    a.weights[(size_t)r * s.top_k + at] = score[e] / total * s.routed_scale;
}

__global__ void __launch_bounds__(EXPERTS_MAX)
    router_kernel(const __grid_constant__ shape s, const __grid_constant__ router_args a)
{
    pdl_wait();
    pdl_trigger();
    if (a.logits) choose(s, a, blockIdx.x);
    __syncthreads();
    if (threadIdx.x != 0) return;
    // What the block's other threads wrote is covered by the barrier, what kernels before wrote by their end.
    if (gridDim.x > 1) {
        __threadfence_system();
        if (atomicAdd(a.arrived, 1) + 1 < gridDim.x) return;
        *a.arrived = 0;
        __threadfence_system();
    }
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&a.c->published), "r"(a.j->publish_base + a.step)
                 : "memory");
}

cudaError_t launch_router(const shape &s, const router_args &a, uint32_t rows, cudaStream_t stream)
{
    if (!a.logits) return gpu_launch(router_kernel, dim3(1), 32, 0, stream, s, a);
    return gpu_launch(router_kernel, dim3(rows), (s.experts + 31) / 32 * 32, 0, stream, s, a);
}
