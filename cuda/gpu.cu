/* gpu.cu: error text of CUDA calls, switches. */
#include "cuda/gpu.cuh"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

bool gpu_off(const char *variable)
{
    const char *v = getenv(variable);
    return v && !strcmp(v, "0");
}
