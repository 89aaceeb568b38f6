/* vector.cuh: activations as the matrix products read them.
 *
 * A vector of n values is rows of blocks of 128 (the last one filled up with zeros), kept in up to four
 * forms at once; producers write every form whose pointer is set.
 *   f32   the values
 *   h     for fp8 weights: two half floats hi + lo of x scaled per block by a power of two (22 bits of every
 *         value that counts), order [row][block][hi, lo][128]; hs holds the scale back, [row][block]
 *   b     for bf16 weights: three bf16 hi + mid + lo (24 bits), order [row][block][3][128]
 *   w     for jobs of many rows (prefill.cuh): one half float per value, order [row][block][128]
 * With `squares` the row is still to be divided by its root mean square (RMSNorm): products do that with
 * their sums, so that nobody has to see a whole row before the values can be written. A tensor core
 * multiplies exact e4m3 or bf16 weights with these parts and adds in fp32, so a product is as good as one in
 * fp32 and every row has its own columns: nothing depends on which rows share a launch. */
#ifndef DUCKD_CUDA_VECTOR_CUH
#define DUCKD_CUDA_VECTOR_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gpu.cuh"

struct vec {
    float *f32;
    __half *h;
    float *hs;
    __nv_bfloat16 *b;
    __half *w;
    uint32_t blocks; // of 128 per row
    float *squares;  // (rows, blocks) sums of the squares of each block before the norm's weight; or NULL
    float n, eps;    // of that norm
};

#define SQUARES 4 // a lane's share of a row's blocks: up to 128 of them

/* The vector of rows row, row + 1, ... */
static inline vec vec_from(vec v, uint32_t row)
{
    const size_t at = (size_t)row * v.blocks;
    if (v.f32) v.f32 += at * 128;
    if (v.h) v.h += at * 256;
    if (v.hs) v.hs += at;
    if (v.b) v.b += at * 384;
    if (v.w) v.w += at * 128;
    if (v.squares) v.squares += at;
    return v;
}

/* The same memory for rows of n values, fewer than before. */
static inline vec vec_of(vec v, uint32_t n)
{
    v.blocks = div_up(n, 128);
    return v;
}

/* One warp stores block `block` of row `row`; lane l holds values 4l .. 4l + 3 (zeros beyond the end). */
__device__ static inline void vec_store(const vec &v, uint32_t row, uint32_t block, uint32_t lane, float4 x)
{
    size_t at = (size_t)row * v.blocks + block;
    if (v.f32) reinterpret_cast<float4 *>(v.f32 + at * 128)[lane] = x;
    const float e[4] = {x.x, x.y, x.z, x.w};
    if (v.h) {
        float top = warp_max(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
        unsigned exponent = (__float_as_uint(top) >> 23) & 255;
        exponent = exponent < 15 ? 15 : exponent;
        float up = __uint_as_float((268 - exponent) << 23); // brings the largest into [2^14, 2^15)
        __align__(8) __half hi[4], lo[4];
        for (int i = 0; i < 4; i++) {
            float s = e[i] * up;
            hi[i] = __float2half_rn(s);
            lo[i] = __float2half_rn(s - __half2float(hi[i]));
        }
        reinterpret_cast<uint2 *>(v.h + at * 256)[lane] = *reinterpret_cast<uint2 *>(hi);
        reinterpret_cast<uint2 *>(v.h + at * 256 + 128)[lane] = *reinterpret_cast<uint2 *>(lo);
        if (lane == 0) v.hs[at] = __uint_as_float((exponent - 14) << 23);
    }
    if (v.w) {
        __align__(8) __half2 pair[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
        reinterpret_cast<uint2 *>(v.w + at * 128)[lane] = *reinterpret_cast<uint2 *>(pair);
    }
    if (v.b) {
        __align__(8) __nv_bfloat16 part[3][4];
        for (int i = 0; i < 4; i++) {
            float rest = e[i];
            for (int p = 0; p < 3; p++) {
                part[p][i] = __float2bfloat16_rn(rest);
                rest -= __bfloat162float(part[p][i]);
            }
        }
        for (int p = 0; p < 3; p++)
            reinterpret_cast<uint2 *>(v.b + at * 384 + p * 128)[lane] = *reinterpret_cast<uint2 *>(part[p]);
    }
}

/* Values 4 lane .. of block `block` of a plain array of n values (n a multiple of 4), zeros beyond. */
__device__ static inline float4 load_block(const float *x, uint32_t n, uint32_t block, uint32_t lane)
{
    uint32_t i = block * 128 + lane * 4;
    return i < n ? *reinterpret_cast<const float4 *>(x + i) : make_float4(0, 0, 0, 0);
}

__device__ static inline float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* A pair of values turned by a rotary angle, cs = its cosine and sine. */
__device__ static inline float2 rotate(float a, float b, float2 cs)
{
    return make_float2(a * cs.x - b * cs.y, b * cs.x + a * cs.y);
}

/* What the sums of row `row` are to be multiplied with, by a whole warp, the same bits in every lane: loads
 * first, so that something else can be done meanwhile. */
__device__ static inline void load_squares(const vec &v, uint32_t row, uint32_t lane, float out[SQUARES])
{
    for (uint32_t i = 0; i < SQUARES; i++) {
        const uint32_t b = lane + i * 32;
        out[i] = v.squares && b < v.blocks ? v.squares[(size_t)row * v.blocks + b] : 0.0f;
    }
}

__device__ static inline float factor_of(const vec &v, const float squares[SQUARES])
{
    if (!v.squares) return 1.0f;
    return rsqrtf(warp_sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / v.n + v.eps);
}

#endif
