/* kv.cuh: reading and writing cached rows in the three storage types. */
#ifndef DUCKD_CUDA_KV_CUH
#define DUCKD_CUDA_KV_CUH

#include <cuda_fp8.h>

#include "cuda/shape.cuh"

__device__ static inline float4 bf16x4(uint2 v)
{
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

__device__ static inline uint2 to_bf16x4(float4 v)
{
    __align__(8) __nv_bfloat16 b[4] = {__float2bfloat16_rn(v.x), __float2bfloat16_rn(v.y),
                                       __float2bfloat16_rn(v.z), __float2bfloat16_rn(v.w)};
    return *reinterpret_cast<uint2 *>(b);
}

__device__ static inline float4 e4m3x4(unsigned codes, float scale)
{
    float2 a = __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes & 0xffff), __NV_E4M3)));
    float2 b =
        __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 16), __NV_E4M3)));
    return make_float4(a.x * scale, a.y * scale, b.x * scale, b.y * scale);
}

/* Values i .. i + 3 (i a multiple of 4) of the part of a row that has scales (fp8) at scale_at. */
template <int DTYPE>
__device__ static inline float4 kv_load(const uint8_t *row, uint32_t i, uint32_t scale_at)
{
    if constexpr (DTYPE == KV_F32) return *reinterpret_cast<const float4 *>(row + (size_t)i * 4);
    if constexpr (DTYPE == KV_BF16) return bf16x4(*reinterpret_cast<const uint2 *>(row + (size_t)i * 2));
    if constexpr (DTYPE == KV_FP8)
        return e4m3x4(*reinterpret_cast<const unsigned *>(row + i),
                      *reinterpret_cast<const float *>(row + scale_at + i / 128 * 4));
}

/* Value i of latent + roped key, i a multiple of 4. */
template <int DTYPE>
__device__ static inline float4 kv_load_key(const shape &s, const uint8_t *row, uint32_t i)
{
    if (DTYPE == KV_FP8 && i >= s.latent)
        return bf16x4(*reinterpret_cast<const uint2 *>(row + s.kv.rope_at + (size_t)(i - s.latent) * 2));
    return kv_load<DTYPE>(row, i, s.kv.scale_at);
}

/* A warp stores values of block `block` (128 wide, n in all), lane l having 4l ..; every lane calls. */
__device__ static inline void kv_store(enum kv_dtype dtype, uint8_t *row, uint32_t n, uint32_t block,
                                       uint32_t lane, float4 v, uint32_t scale_at)
{
    const uint32_t i = block * 128 + lane * 4;
    if (dtype == KV_FP8) {
        float top = warp_max(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        int e = 0;
        float m = frexpf(top / 448.0f, &e); // top / 448 = m x 2^e, 0.5 <= m < 1
        float scale = top == 0.0f ? 1.0f : ldexpf(1.0f, m == 0.5f ? e - 1 : e), inv = 1.0f / scale;
        if (lane == 0) *reinterpret_cast<float *>(row + scale_at + block * 4) = scale;
        if (i >= n) return;
        unsigned a = __nv_cvt_float2_to_fp8x2(make_float2(v.x * inv, v.y * inv), __NV_SATFINITE, __NV_E4M3);
        unsigned b = __nv_cvt_float2_to_fp8x2(make_float2(v.z * inv, v.w * inv), __NV_SATFINITE, __NV_E4M3);
        *reinterpret_cast<unsigned *>(row + i) = a | b << 16;
    } else if (i < n) {
        if (dtype == KV_F32)
            *reinterpret_cast<float4 *>(row + (size_t)i * 4) = v;
        else
            *reinterpret_cast<uint2 *>(row + (size_t)i * 2) = to_bf16x4(v);
    }
}

#endif
