/* blas.cuh: cuBLAS for large jobs, loaded when the backend opens: a machine without it still decodes.
 *
 * All matrices are row-major. Nothing is allocated after blas_open(): the workspace is the caller's. */
#ifndef DUCKD_CUDA_BLAS_CUH
#define DUCKD_CUDA_BLAS_CUH

#include <cublas_v2.h>

#include <cuda_fp16.h>

#include "cuda/gpu.cuh"

#define BLAS_WORKSPACE ((size_t)32 << 20)

struct blas {
    cublasHandle_t handle;
};

/* 0, or -ENOENT with the loader's words: there is no cuBLAS of this build's version. */
int blas_load(struct error *err);
int blas_open(struct blas *b, cudaStream_t stream, void *workspace, struct error *err);
void blas_close(struct blas *b);

/* y (rows, n) fp32, rows y_stride apart, = alpha x w^T, or += with add: x (rows, k) and w (n, k) of `type`
 * (fp16 or bf16), rows x_stride and w_stride apart; sums in fp32. */
struct blas_product {
    cudaDataType_t type;
    const void *x, *w;
    float *y;
    size_t x_stride, w_stride, y_stride;
    uint32_t rows, n, k;
    float alpha;
    bool add;
};
int blas_multiply(const struct blas *b, const struct blas_product *p, struct error *err);

/* For each of `count` heads: y (rows, n) fp16 = alpha x w, all fp16, sums in fp32. Heads are *_head elements
 * apart (x_head 0: one x for all). w is (k, n), or (n, k) if transposed. */
struct blas_heads {
    const __half *x, *w;
    __half *y;
    size_t x_stride, w_stride, y_stride, x_head, w_head, y_head;
    uint32_t rows, n, k, count;
    float alpha;
    bool transposed;
};
int blas_multiply_heads(const struct blas *b, const struct blas_heads *p, struct error *err);

#endif
