/* matrix.cu: from the checkpoint's rows to the order the product kernels stream. Runs at load only. */
#include "cuda/matrix.cuh"

void matrix_shape(matrix *m, enum matrix_type type, uint32_t rows, uint32_t cols, uint32_t group_rows)
{
    *m = {};
    m->type = type;
    m->rows = rows;
    m->cols = cols;
    m->strips = div_up(rows, 16);
    m->ktiles = div_up(cols, type == MATRIX_BF16 ? 64 : 128);
    m->group_rows = group_rows;
}

size_t matrix_bytes(const matrix *m)
{
    if (m->type == MATRIX_F32) return (size_t)m->rows * m->ktiles * 512;
    return (size_t)m->strips * m->ktiles * 2048;
}

size_t matrix_scale_bytes(const matrix *m)
{
    return m->type == MATRIX_FP8 ? (size_t)m->strips * m->ktiles * sizeof(float) : 0;
}

struct repack_args {
    matrix m;
    matrix_source s;
    const void *rows;
    const float *scales;
    uint32_t row0, n, scols, scale_cols;
    enum dtype dtype;
};

/* Source row (of the checkpoint) and column behind row r, column c of the matrix. */
__device__ static inline void origin(const repack_args &a, uint32_t r, uint32_t c, uint32_t &sr, uint32_t &sc)
{
    const uint32_t head = a.s.nope + a.s.v;
    if (a.s.view == VIEW_KEYS) {
        sr = r / a.s.latent * head + c;
        sc = r % a.s.latent;
    } else if (a.s.view == VIEW_VALUES) {
        sr = r / a.s.v * head + a.s.nope + r % a.s.v;
        sc = c;
    } else {
        sr = r;
        sc = c;
    }
}

__device__ static inline float e4m3(uint8_t code)
{
    float m = (float)(code & 7), e = (float)(code >> 3 & 15);
    float v = e == 0.0f ? ldexpf(m, -9) : ldexpf(8.0f + m, (int)e - 10);
    v = (code & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : v;
    return code & 0x80 ? -v : v;
}

/* Element as fp32 with its scale. */
__device__ static float value(const repack_args &a, uint32_t sr, uint32_t sc)
{
    size_t at = (size_t)(sr - a.row0) * a.scols + sc;
    if (a.dtype == DTYPE_F32) return ((const float *)a.rows)[at];
    if (a.dtype == DTYPE_BF16) return __uint_as_float((unsigned)((const uint16_t *)a.rows)[at] << 16);
    return e4m3(((const uint8_t *)a.rows)[at]) * a.scales[(size_t)(sr / 128) * a.scale_cols + sc / 128];
}

/* Rows of the matrix that come from source rows [row0, row0 + n). */
__device__ static inline void target_rows(const repack_args &a, uint32_t &first, uint32_t &count)
{
    const uint32_t head = a.s.nope + a.s.v;
    first = a.row0;
    count = a.n;
    if (a.s.view == VIEW_KEYS) {
        first = a.row0 / head * a.s.latent;
        count = a.n / head * a.s.latent;
    } else if (a.s.view == VIEW_VALUES) {
        first = a.row0 / head * a.s.v;
        count = a.n / head * a.s.v;
    }
}

/* A thread writes one element of fp32 rows. */
__global__ void repack_f32_kernel(const __grid_constant__ repack_args a)
{
    uint32_t first, count;
    target_rows(a, first, count);
    const size_t width = (size_t)a.m.ktiles * 128, total = width * count;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t r = first + (uint32_t)(i / width), c = (uint32_t)(i % width), sr, sc;
        origin(a, r, c, sr, sc);
        ((float *)a.m.data)[(size_t)r * width + c] = c < a.m.cols ? value(a, sr, sc) : 0.0f;
    }
}

/* A thread writes the 16 bytes one lane reads. */
template <int TYPE> __global__ void repack_tiles_kernel(const __grid_constant__ repack_args a)
{
    constexpr unsigned per = TYPE == MATRIX_FP8 ? 16 : 8; // elements in 16 bytes
    uint32_t first, count;
    target_rows(a, first, count);
    const size_t units = (size_t)((count + 15) / 16) * a.m.ktiles * 128;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < units;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t lane = i & 31, quarter = i >> 5 & 3;
        const uint32_t k = (uint32_t)((i >> 7) % a.m.ktiles),
                       strip = first / 16 + (uint32_t)((i >> 7) / a.m.ktiles);
        const uint32_t r = strip * 16 + (lane >> 2) + 8 * (quarter & 1);
        const uint32_t c0 = (k * 8 + (quarter >> 1) * 4 + (lane & 3)) * per;
        __align__(16) uint8_t out[16];
        for (unsigned e = 0; e < per; e++) {
            uint32_t sr, sc;
            origin(a, r, c0 + e, sr, sc);
            bool in = r < first + count && c0 + e < a.m.cols;
            size_t at = (size_t)(sr - a.row0) * a.scols + sc;
            if (TYPE == MATRIX_FP8)
                out[e] = in ? ((const uint8_t *)a.rows)[at] : 0;
            else
                ((uint16_t *)out)[e] = in ? ((const uint16_t *)a.rows)[at] : 0;
        }
        ((uint4 *)a.m.data)[((size_t)strip * a.m.ktiles + k) * 128 + quarter * 32 + lane] = *(uint4 *)out;
        if (TYPE == MATRIX_FP8 && lane == 0 && quarter == 0) {
            uint32_t sr, sc;
            origin(a, strip * 16, k * 128, sr, sc);
            ((float *)a.m.scales)[(size_t)strip * a.m.ktiles + k] =
                a.scales[(size_t)(sr / 128) * a.scale_cols + sc / 128];
        }
    }
}

cudaError_t matrix_repack(const matrix *m, const matrix_source *s, enum dtype dtype, const void *rows,
                          uint32_t row0, uint32_t n, uint32_t scols, const float *scales, cudaStream_t stream)
{
    repack_args a = {*m, *s, rows, scales, row0, n, scols, div_up(scols, 128), dtype};
    if (m->type == MATRIX_F32)
        repack_f32_kernel<<<1024, 256, 0, stream>>>(a);
    else if (m->type == MATRIX_FP8)
        repack_tiles_kernel<MATRIX_FP8><<<1024, 256, 0, stream>>>(a);
    else
        repack_tiles_kernel<MATRIX_BF16><<<1024, 256, 0, stream>>>(a);
    return cudaGetLastError();
}
