/* linear.h: weight matrices of the CPU backend and their products with rows of activations.
 *
 * Three storages, chosen by the checkpoint's dtype: fp8 becomes fp9 panels (lossless, fp9/fp9.h), bf16 and
 * fp32 stay what they are. All are cut into panels of 8 outputs and keep one order of arithmetic: per block
 * of 128 inputs a chain of fused multiply-adds in ascending order, blocks added in ascending order. A
 * product's bits therefore depend on its own row and weights alone. Outputs are padded to a multiple of 8
 * (the padding is computed and is zero). fp9 products want their rows prepared (x 2^96): see
 * linear_prepared().
 *
 * Panels of bf16: for each pair of inputs one vector of 32-bit lanes, low half the even input's weight, so
 * that one load gives 16 weights. Panels of fp32: for each input 8 floats. */
#ifndef DUCKD_HOST_BACKEND_CPU_LINEAR_H
#define DUCKD_HOST_BACKEND_CPU_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp9/fp9.h"
#include "host/model/checkpoint.h"
#include "host/util/error.h"
#include "host/util/pool.h"

enum linear_kind { LINEAR_FP9, LINEAR_BF16, LINEAR_F32 };

struct linear {
    enum linear_kind kind;
    size_t outputs, inputs, panels; // inputs: a multiple of 8
    uint8_t *data;                  // (panels) x panel_bytes, 64-byte aligned
    size_t panel_bytes;
    float *scales; // fp9 only
    struct fp9_matrix fp9;
    fp9_dot_fn *fp9_dot;
};

/* From the checkpoint; the pool's threads pack. Refuses weights and scales that are not finite. */
int linear_load(struct linear *l, const struct weight *w, const struct fp9_kernels *k, struct pool *pool,
                struct error *err);
/* From values[o * output_stride + i * input_stride]: as bf16 where that loses nothing, else as fp32. */
int linear_pack(struct linear *l, size_t outputs, size_t inputs, const float *values, size_t output_stride,
                size_t input_stride, struct error *err);
void linear_free(struct linear *l);
uint64_t linear_bytes(const struct linear *l);

static inline bool linear_prepared(const struct linear *l)
{
    return l->kind == LINEAR_FP9;
}

/* y[t * y_stride + 8 * (p - first) + lane] for panels p in [first, first + count); rows of x and y are
 * 32-byte aligned, strides in floats. */
void linear_dot(const struct linear *l, size_t first, size_t count, const float *x, size_t x_stride,
                size_t tokens, float *y, size_t y_stride);

/* Products that do not depend on each other run as one job: one wait for all of them. */
struct product {
    const struct linear *l;
    const float *x; // prepared if linear_prepared(l)
    size_t x_stride;
    float *y;
    size_t y_stride;
};
#define PRODUCTS_MAX 4
void products_run(struct pool *pool, const struct product *products, size_t count, size_t tokens);

/* A job's tasks on the pool, or right here when its `work` (multiply-adds, about) is not worth waking
 * anybody. */
void parallel(struct pool *pool, pool_fn *fn, void *arg, size_t tasks, double work);

#endif
