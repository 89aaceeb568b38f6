/* carve.cuh: one block of device memory cut into arrays; with memory == NULL the bytes are only counted. */
#ifndef DUCKD_CUDA_CARVE_CUH
#define DUCKD_CUDA_CARVE_CUH

#include <stddef.h>
#include <stdint.h>

struct carve {
    uint8_t *memory;
    size_t used;
};

template <class T> static inline T *take(carve *c, size_t n)
{
    T *p = c->memory ? reinterpret_cast<T *>(c->memory + c->used) : nullptr;
    c->used += (n * sizeof(T) + 255) / 256 * 256;
    return p;
}

#endif
