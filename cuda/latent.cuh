/* latent.cuh: a row's latent, roped key and index key from the first products into the cache; by a whole
 * block. */
#ifndef DUCKD_CUDA_LATENT_CUH
#define DUCKD_CUDA_LATENT_CUH

#include "cuda/kv.cuh"
#include "cuda/layer.cuh"

#define MLA_EPS 1e-6f // of MLA's own norms and the indexer's LayerNorm, whatever the config says

/* RMSNorm of n values: store(block, values) for every 128 of them, by a warp, lane l having 4l and on. */
template <class F>
__device__ static inline void latent_norm(const float *in, const float *weight, uint32_t n, float *scratch,
                                          F store)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    float sum = 0.0f;
    for (uint32_t b = warp; b * 128 < n; b += warps) {
        const float4 v = load_block(in, n, b, lane);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float f = rsqrtf(block_sum(sum, scratch) / (float)n + MLA_EPS);
    for (uint32_t b = warp; b * 128 < n; b += warps) {
        const float4 v = load_block(in, n, b, lane), w = load_block(weight, n, b, lane);
        store(b, make_float4(v.x * f * w.x, v.y * f * w.y, v.z * f * w.z, v.w * f * w.w));
    }
}

/* Normed latent and roped key into the cache. */
__device__ static void kv_latent(const shape &s, const latent_args &a, uint32_t r, uint8_t *row,
                                 float *scratch)
{
    const float *in = a.a + (size_t)r * a.a_stride + a.kv_at;
    latent_norm(in, a.kv_norm, s.latent, scratch, [&](uint32_t b, float4 v) {
        kv_store(a.dtype, row, s.latent, b, threadIdx.x & 31, v, s.kv.scale_at);
    });
    const float2 *cs = a.rope + (size_t)r * (s.rope / 2);
    for (uint32_t i = threadIdx.x; i < s.rope / 2; i += blockDim.x) {
        float2 p = rotate(in[s.latent + 2 * i], in[s.latent + 2 * i + 1], cs[i]);
        if (a.dtype == KV_F32)
            reinterpret_cast<float2 *>(row + s.kv.rope_at)[i] = p;
        else
            reinterpret_cast<__nv_bfloat162 *>(row + s.kv.rope_at)[i] = __float22bfloat162_rn(p);
    }
}

/* Index key: LayerNorm with bias, the first `rope` values rotated as halves. */
__device__ static void index_key(const shape &s, const latent_args &a, uint32_t r, uint8_t *row,
                                 float *scratch, float *key)
{
    const float *in = a.a + (size_t)r * a.a_stride + a.index_at;
    const uint32_t half = s.rope / 2, lane = threadIdx.x & 31;
    float v = threadIdx.x < s.index_dim ? in[threadIdx.x] : 0.0f;
    const float mean = block_sum(v, scratch) / (float)s.index_dim;
    const float d = threadIdx.x < s.index_dim ? v - mean : 0.0f;
    const float f = rsqrtf(block_sum(d * d, scratch) / (float)s.index_dim + MLA_EPS);
    if (threadIdx.x < s.index_dim) key[threadIdx.x] = d * f * a.k_norm[threadIdx.x] + a.k_bias[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < half) {
        float2 p = rotate(key[threadIdx.x], key[half + threadIdx.x], a.rope[(size_t)r * half + threadIdx.x]);
        key[threadIdx.x] = p.x;
        key[half + threadIdx.x] = p.y;
    }
    __syncthreads();
    if (threadIdx.x / 32 < (s.index_dim + 127) / 128)
        kv_store(a.dtype, row, s.index_dim, threadIdx.x / 32, lane,
                 load_block(key, s.index_dim, threadIdx.x / 32, lane), s.kv.index_scale_at);
}

#endif
