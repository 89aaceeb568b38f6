/* tile.cuh: one tile of weights times up to four rows on the tensor cores.
 *
 * A tile is what the lanes of a warp read in order, 64 bytes each. e4m3 is widened to half floats (exact),
 * bf16 is taken as it is; the 8 columns of mma.m16n8k16 are the parts of up to four rows. */
#ifndef DUCKD_CUDA_TILE_CUH
#define DUCKD_CUDA_TILE_CUH

#include "cuda/matrix.cuh"

__device__ static inline uint4 load_weights(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* A lane's 64 bytes of the tile at p, p already at the lane's first 16. */
__device__ static inline void load_tile(const uint8_t *p, uint4 w[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = load_weights(p + i * 512);
}

__device__ static inline unsigned word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Four e4m3 codes as two pairs of half floats. */
__device__ static inline void widen(unsigned codes, unsigned &low, unsigned &high)
{
    asm("{\n\t.reg .b16 a, b;\n\t"
        "mov.b32 {a, b}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n\t}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
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

/* The sums of row t of an fp8 tile: cur = this lane's 64 bytes of it, x = the first of the lane's inputs, f =
 * the scales of tile and row. */
__device__ static inline void tile_fp8(const uint4 *x, const uint4 cur[4], float f, float total[4])
{
    float c[4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 b[2] = {x[8 * h], x[8 * h + 1]};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            unsigned a0, a1, a2, a3;
            widen(word(cur[2 * h], s), a0, a2);
            widen(word(cur[2 * h + 1], s), a1, a3);
            mma<MATRIX_FP8>(c, a0, a1, a2, a3, word(b[s / 2], 2 * (s & 1)), word(b[s / 2], 2 * (s & 1) + 1));
        }
    }
    // Columns 2t and 2t + 1 are hi and lo of row t.
    total[0] = fmaf(c[0] + c[1], f, total[0]);
    total[1] = fmaf(c[2] + c[3], f, total[1]);
}

/* One tile: xt = index of the tile's first 64 or 128 inputs in x. Columns and sums of rows beyond `live` are
 * those of others: nobody looks at them, and no lane has to ask. */
template <int TYPE, int GROUPS>
__device__ static inline void tile(const vec &v, const uint4 cur[4], uint32_t row0, uint32_t live,
                                   uint32_t xt, float scale, float total[GROUPS][4])
{
    const unsigned lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if constexpr (TYPE == MATRIX_FP8) { // four rows in one group
        const uint4 *x = reinterpret_cast<const uint4 *>(v.h) +
                         ((row0 + min(g / 2, live - 1)) * v.blocks + xt) * 32 + (g & 1) * 16 + 2 * t;
        tile_fp8(x, cur, scale * v.hs[(row0 + min(t, live - 1)) * v.blocks + xt], total[0]);
    } else {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            const unsigned column = n * 8 + g, r = min(column / 3, live - 1), p = column % 3;
            const uint4 *x = reinterpret_cast<const uint4 *>(v.b) + ((row0 + r) * v.blocks + xt / 2) * 48 +
                             p * 16 + (xt & 1) * 8 + t;
            float c[4] = {};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 b = x[4 * h];
#pragma unroll
                for (int s = 0; s < 2; s++)
                    mma<TYPE>(c, word(cur[2 * h], 2 * s), word(cur[2 * h + 1], 2 * s),
                              word(cur[2 * h], 2 * s + 1), word(cur[2 * h + 1], 2 * s + 1), word(b, 2 * s),
                              word(b, 2 * s + 1));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] += c[i];
        }
    }
}

/* What a warp's lanes hold of a strip's 16 sums, where other lanes can read them; sum_of() is row r's. */
template <int TYPE, int GROUPS>
__device__ static inline void keep_sums(float (*sums)[8 * GROUPS], const float total[GROUPS][4])
{
    const unsigned lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if constexpr (TYPE == MATRIX_FP8) {
        sums[g][t] = total[0][0];
        sums[g + 8][t] = total[0][1];
    } else {
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[g + 8 * (i / 2)][n * 8 + 2 * t + (i & 1)] = total[n][i];
    }
}

template <int TYPE> __device__ static inline float sum_of(const float *sums, uint32_t r)
{
    if constexpr (TYPE == MATRIX_FP8) return sums[r];
    return (sums[3 * r] + sums[3 * r + 1]) + sums[3 * r + 2];
}

#endif
