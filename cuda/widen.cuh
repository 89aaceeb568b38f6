/* widen.cuh: stored weights as plain rows of 16-bit floats, for products of many rows. */
#ifndef DUCKD_CUDA_WIDEN_CUH
#define DUCKD_CUDA_WIDEN_CUH

#include "cuda/matrix.cuh"

/* fp8 and fp32 weights become half floats times this: small scales stay clear of the subnormal numbers. */
#define WIDEN_UP 64.0f

/* Elements between the rows that widen() writes: columns in whole blocks of 128; for bf16 weights whose
 * vector comes in three parts, each block three times. */
static inline size_t widened_stride(const matrix *m, bool parts)
{
    return (size_t)div_up(m->cols, 128) * (parts ? 384 : 128);
}

/* Rows [row0, row0 + n) of m, row0 and n multiples of 16 (but for the end), go to `out`: half floats x
 * WIDEN_UP, or with `parts` (bf16 matrices only) bf16, every block of 128 three times beside each other. */
cudaError_t widen(const matrix *m, uint32_t row0, uint32_t n, bool parts, void *out, cudaStream_t stream);

#endif
