/* widen.cu: tiles -> rows. A thread takes the 16 bytes that a lane of the product kernels takes. */
#include "cuda/widen.cuh"

#include <cuda_fp8.h>

struct widen_args {
    matrix m;
    uint32_t row0, n;
    size_t stride;
    void *out;
};

/* Row and first column of unit i of a run of strips; units have `per` elements. */
__device__ static inline void place(const widen_args &a, size_t i, uint32_t per, uint32_t &row, uint32_t &col,
                                    size_t &tile)
{
    const uint32_t lane = i & 31, quarter = i >> 5 & 3, k = (uint32_t)((i >> 7) % a.m.ktiles),
                   strip = (uint32_t)((i >> 7) / a.m.ktiles);
    row = strip * 16 + (lane >> 2) + 8 * (quarter & 1);
    col = (k * 8 + (quarter >> 1) * 4 + (lane & 3)) * per;
    tile = (size_t)(a.row0 / 16 + strip) * a.m.ktiles + k;
}

__device__ static inline unsigned scaled(unsigned codes, float scale)
{
    const float2 f = __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes & 0xffff), __NV_E4M3)));
    __half2 h = __floats2half2_rn(f.x * scale, f.y * scale);
    return *reinterpret_cast<unsigned *>(&h);
}

__global__ void __launch_bounds__(256) widen_fp8_kernel(const __grid_constant__ widen_args a)
{
    const size_t units = (size_t)div_up(a.n, 16) * a.m.ktiles * 128;
    pdl_wait();
    pdl_trigger();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < units;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t row, col;
        size_t tile;
        place(a, i, 16, row, col, tile);
        if (row >= a.n) continue;
        const uint4 v = __ldcs(reinterpret_cast<const uint4 *>(a.m.data) + tile * 128 + (i & 127));
        const float scale = __ldg(a.m.scales + tile) * WIDEN_UP;
        uint4 *out = reinterpret_cast<uint4 *>((__half *)a.out + row * a.stride + col);
        out[0] = make_uint4(scaled(v.x, scale), scaled(v.x >> 16, scale), scaled(v.y, scale),
                            scaled(v.y >> 16, scale));
        out[1] = make_uint4(scaled(v.z, scale), scaled(v.z >> 16, scale), scaled(v.w, scale),
                            scaled(v.w >> 16, scale));
    }
}

template <bool PARTS>
__global__ void __launch_bounds__(256) widen_bf16_kernel(const __grid_constant__ widen_args a)
{
    const size_t units = (size_t)div_up(a.n, 16) * a.m.ktiles * 128;
    pdl_wait();
    pdl_trigger();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < units;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t row, col;
        size_t tile;
        place(a, i, 8, row, col, tile);
        if (row >= a.n) continue;
        const uint4 v = reinterpret_cast<const uint4 *>(a.m.data)[tile * 128 + (i & 127)];
        if (PARTS) {
            __nv_bfloat16 *out =
                (__nv_bfloat16 *)a.out + row * a.stride + (size_t)(col / 128) * 384 + col % 128;
            for (int p = 0; p < 3; p++) *reinterpret_cast<uint4 *>(out + p * 128) = v;
            continue;
        }
        const unsigned w[4] = {v.x, v.y, v.z, v.w};
        __align__(16) __half2 h[4];
        for (int k = 0; k < 4; k++)
            h[k] = __floats2half2_rn(__uint_as_float(w[k] << 16) * WIDEN_UP,
                                     __uint_as_float(w[k] & 0xffff0000u) * WIDEN_UP);
        *reinterpret_cast<uint4 *>((__half *)a.out + row * a.stride + col) = *reinterpret_cast<uint4 *>(h);
    }
}

__global__ void __launch_bounds__(256) widen_f32_kernel(const __grid_constant__ widen_args a)
{
    const size_t width = (size_t)a.m.ktiles * 128;
    pdl_wait();
    pdl_trigger();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < width * a.n;
         i += (size_t)gridDim.x * blockDim.x)
        ((__half *)a.out)[i] =
            __float2half_rn(((const float *)a.m.data)[(size_t)a.row0 * width + i] * WIDEN_UP);
}

cudaError_t widen(const matrix *m, uint32_t row0, uint32_t n, bool parts, void *out, cudaStream_t stream)
{
    const widen_args a = {*m, row0, n, widened_stride(m, parts), out};
    auto kernel = m->type == MATRIX_F32   ? widen_f32_kernel
                  : m->type == MATRIX_FP8 ? widen_fp8_kernel
                  : parts                 ? widen_bf16_kernel<true>
                                          : widen_bf16_kernel<false>;
    const size_t units = (size_t)div_up(n, 16) * m->ktiles * 128;
    const unsigned blocks = (unsigned)((units + 255) / 256 < 4096 ? (units + 255) / 256 : 4096);
    return gpu_launch(kernel, dim3(blocks), 256, 0, stream, a);
}
