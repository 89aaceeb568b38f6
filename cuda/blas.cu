/* blas.cu: the few functions of cuBLAS that large jobs use, looked up in the library at run time, because
 * libduckd-cuda.so must load on machines that have a driver but no toolkit. */
#include "cuda/blas.cuh"

#include <dlfcn.h>
#include <errno.h>

#define STRING2(x) #x
#define STRING(x) STRING2(x)
#define LIBRARY "libcublas.so." STRING(CUBLAS_VER_MAJOR)

static struct {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasSetWorkspace_v2) set_workspace;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                           const void *, cudaDataType, int, const void *, cudaDataType, int, const void *,
                           void *, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
    cublasStatus_t (*batched)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const void *, const void *, cudaDataType, int, long long int, const void *,
                              cudaDataType, int, long long int, const void *, void *, cudaDataType, int,
                              long long int, int, cublasComputeType_t, cublasGemmAlgo_t);
} fn;

template <class T> static bool find(void *library, const char *name, T *out)
{
    *out = reinterpret_cast<T>(dlsym(library, name));
    return *out != nullptr;
}

int blas_load(struct error *err)
{
    if (fn.batched) return 0;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("/usr/local/cuda/lib64/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return gpu_host->error_set(err, -ENOENT, "%s", dlerror());
    if (!find(library, "cublasCreate_v2", &fn.create) || !find(library, "cublasDestroy_v2", &fn.destroy) ||
        !find(library, "cublasSetStream_v2", &fn.set_stream) ||
        !find(library, "cublasSetWorkspace_v2", &fn.set_workspace) ||
        !find(library, "cublasGemmEx", &fn.gemm) || !find(library, "cublasGemmStridedBatchedEx", &fn.batched))
        return gpu_host->error_set(err, -ENOENT, "%s: %s", LIBRARY, dlerror());
    return 0;
}

static int check(cublasStatus_t s, struct error *err, const char *what)
{
    if (s == CUBLAS_STATUS_SUCCESS) return 0;
    return gpu_host->error_set(err, -EIO, "%s: cuBLAS status %d", what, (int)s);
}

int blas_open(struct blas *b, cudaStream_t stream, void *workspace, struct error *err)
{
    int rc = check(fn.create(&b->handle), err, "cublasCreate");
    if (!rc) rc = check(fn.set_stream(b->handle, stream), err, "cublasSetStream");
    if (!rc) rc = check(fn.set_workspace(b->handle, workspace, BLAS_WORKSPACE), err, "cublasSetWorkspace");
    return rc;
}

void blas_close(struct blas *b)
{
    if (b->handle) fn.destroy(b->handle);
    b->handle = nullptr;
}

/* cuBLAS counts columns first: what is row-major here is transposed there, and y^T = w x^T. */
int blas_multiply(const struct blas *b, const struct blas_product *p, struct error *err)
{
    const float beta = p->add ? 1.0f : 0.0f;
    return check(fn.gemm(b->handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)p->n, (int)p->rows, (int)p->k, &p->alpha,
                         p->w, p->type, (int)p->w_stride, p->x, p->type, (int)p->x_stride, &beta, p->y,
                         CUDA_R_32F, (int)p->y_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 err, "cublasGemmEx");
}

int blas_multiply_heads(const struct blas *b, const struct blas_heads *p, struct error *err)
{
    const float beta = 0.0f;
    return check(fn.batched(b->handle, p->transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, (int)p->n,
                            (int)p->rows, (int)p->k, &p->alpha, p->w, CUDA_R_16F, (int)p->w_stride,
                            (long long)p->w_head, p->x, CUDA_R_16F, (int)p->x_stride, (long long)p->x_head,
                            &beta, p->y, CUDA_R_16F, (int)p->y_stride, (long long)p->y_head, (int)p->count,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 err, "cublasGemmStridedBatchedEx");
}
