/* bench_limits.h: what this machine can do at most, and the plain formulation to compare with.
 * One thread's share each; the caller runs them on all threads and takes the time. */
#ifndef DUCKD_TOOLS_BENCH_LIMITS_H
#define DUCKD_TOOLS_BENCH_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Reads every line of p (64-byte aligned, bytes a multiple of 128). */
uint64_t limits_read(const uint8_t *p, size_t bytes);

/* rounds x LIMITS_FMA_FLOPS fp32 operations on independent registers. */
enum { LIMITS_FMA_FLOPS = 12 * 8 * 2 * 16 };
float limits_fma(size_t rounds);
/* Twice the operations in vectors twice as wide; only where there are such vectors. */
float limits_fma512(size_t rounds);
int limits_has_avx512(void);

/* Nops a cycle, the cycle taken from a chain of dependent additions between them: about 0.1 ms. What the
 * core's front end has for this thread, a figure to compare with others of the same CPU only. */
double limits_nops(void);

/* The formulation without any of fp9's layout: bodies (rows, cols) and sign bits (rows, cols / 8) apart,
 * widened to half floats, vcvtph2ps, FMA, no prefetch. cols: a multiple of 32. Returns the sum of all rows.
 */
float limits_plain_f16c(const uint8_t *bodies, const uint8_t *signs, size_t rows, size_t cols,
                        const float *x);

#endif
