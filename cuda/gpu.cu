/* gpu.cu: error text of CUDA calls. */
#include "cuda/gpu.cuh"

#include <errno.h>

const struct cuda_host *gpu_host;
bool gpu_pdl = true;

int gpu_check(cudaError_t e, struct error *err, const char *what)
{
    if (e == cudaSuccess) return 0;
    int n = 0;
    while (n < 160 && what[n] && what[n] != '(') n++; // the call's name is enough
    return gpu_host->error_set(err, -EIO, "CUDA: %.*s failed: %s (%s)", n, what, cudaGetErrorString(e),
                               cudaGetErrorName(e));
}
