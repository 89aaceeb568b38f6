/* linear.c: kernels over bf16 and fp32 panels, and how products are cut into tasks. */
#include "host/backend/cpu/linear.h"

#include <assert.h>

#include "host/backend/cpu/simd.h"

/* Below this many multiply-adds a job is done by its caller: handing work to a spinning worker and waiting
 * for it costs about a microsecond on each side, and the activations travel to another core's cache; 2^17
 * multiply-adds take one core 4 to 6 us at the 20 to 30 per ns that the kernels reach. */
#define PARALLEL_MIN 131072.0
/* Rows of activations that a task keeps in its cache while it walks over weights. */
#define TOKEN_BLOCK 32u

/* ---- kernels ---- */

/* P panels x T rows: P * T independent chains hide the latency of the multiply-adds (latency 4, two per
 * cycle: at least 8). Sums of blocks live in y, so that up to 12 chains and the weights fit into 16
 * registers. `bf16`, P and T are constants in each instance. */
static inline __attribute__((always_inline)) void block(const uint8_t *data, size_t panel_bytes,
                                                        const bool bf16, const size_t P, const size_t T,
                                                        size_t inputs, const float *x, size_t x_stride,
                                                        float *y, size_t y_stride)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
#pragma GCC unroll 12
    for (size_t k = 0; k < P * T; k++)
        _mm256_store_ps(y + (k % T) * y_stride + 8 * (k / T), _mm256_setzero_ps());
    for (size_t b = 0; b < inputs; b += FP9_BLOCK) {
        size_t end = inputs - b < FP9_BLOCK ? inputs : b + FP9_BLOCK;
        __m256 blk[12];
#pragma GCC unroll 12
        for (size_t k = 0; k < P * T; k++) blk[k] = _mm256_setzero_ps();
        for (size_t i = b; i < end; i += 2) {
#pragma GCC unroll 12
            for (size_t p = 0; p < P; p++) {
                const uint8_t *w = data + p * panel_bytes;
                __m256 w0, w1;
                if (bf16) {
                    __m256i pair = _mm256_load_si256((const __m256i *)(const void *)(w + 16 * i));
                    w0 = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
                    w1 = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
                } else {
                    w0 = _mm256_load_ps((const float *)(const void *)(w + 32 * i));
                    w1 = _mm256_load_ps((const float *)(const void *)(w + 32 * i + 32));
                }
#pragma GCC unroll 12
                for (size_t t = 0; t < T; t++) {
                    const float *xt = x + t * x_stride + i;
                    blk[p * T + t] = _mm256_fmadd_ps(w0, _mm256_broadcast_ss(xt), blk[p * T + t]);
                    blk[p * T + t] = _mm256_fmadd_ps(w1, _mm256_broadcast_ss(xt + 1), blk[p * T + t]);
                }
            }
        }
#pragma GCC unroll 12
        for (size_t k = 0; k < P * T; k++) {
            float *sum = y + (k % T) * y_stride + 8 * (k / T);
            _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), blk[k]));
        }
    }
}

#define KERNEL(name, bf16, P, T)                                                                             \
    static void name(const struct linear *l, size_t first, size_t *done, size_t count, const float *x,       \
                     size_t x_stride, float *y, size_t y_stride)                                             \
    {                                                                                                        \
        for (; count - *done >= (P); *done += (P))                                                           \
            block(l->data + (first + *done) * l->panel_bytes, l->panel_bytes, bf16, P, T, l->inputs, x,      \
                  x_stride, y + 8 * *done, y_stride);                                                        \
    }
KERNEL(bf16_8x1, true, 8, 1)
KERNEL(bf16_4x1, true, 4, 1)
KERNEL(bf16_1x1, true, 1, 1)
KERNEL(bf16_4x2, true, 4, 2)
KERNEL(bf16_1x2, true, 1, 2)
KERNEL(bf16_3x4, true, 3, 4)
KERNEL(bf16_1x4, true, 1, 4)
KERNEL(f32_8x1, false, 8, 1)
KERNEL(f32_4x1, false, 4, 1)
KERNEL(f32_1x1, false, 1, 1)
KERNEL(f32_4x2, false, 4, 2)
KERNEL(f32_1x2, false, 1, 2)
KERNEL(f32_3x4, false, 3, 4)
KERNEL(f32_1x4, false, 1, 4)

typedef void kernel_fn(const struct linear *l, size_t first, size_t *done, size_t count, const float *x,
                       size_t x_stride, float *y, size_t y_stride);

/* By rows at once (4, 2, 1): instances from many panels to one. */
static kernel_fn *const bf16_kernels[3][3] = {
    {bf16_3x4, bf16_1x4, NULL}, {bf16_4x2, bf16_1x2, NULL}, {bf16_8x1, bf16_4x1, bf16_1x1}};
static kernel_fn *const f32_kernels[3][3] = {
    {f32_3x4, f32_1x4, NULL}, {f32_4x2, f32_1x2, NULL}, {f32_8x1, f32_4x1, f32_1x1}};

void linear_dot(const struct linear *l, size_t first, size_t count, const float *x, size_t x_stride,
                size_t tokens, float *y, size_t y_stride)
{
    if (l->kind == LINEAR_FP9) {
        struct fp9_rows rows = {.xs = x, .stride = x_stride, .count = tokens};
        l->fp9_dot(&l->fp9, first, count, &rows, y, y_stride);
        return;
    }
    kernel_fn *const(*kernels)[3] = l->kind == LINEAR_BF16 ? bf16_kernels : f32_kernels;
    for (size_t t = 0; t < tokens;) {
        size_t which = tokens - t >= 4 ? 0 : tokens - t >= 2 ? 1 : 2, done = 0;
        for (size_t k = 0; k < 3 && kernels[which][k]; k++)
            kernels[which][k](l, first, &done, count, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
        t += (size_t)4 >> which;
    }
}

/* ---- tasks ---- */

void parallel(struct pool *pool, pool_fn *fn, void *arg, size_t tasks, double work)
{
    if (tasks > 1 && work >= PARALLEL_MIN && pool_threads(pool) > 1) {
        pool_run(pool, fn, arg, tasks);
        return;
    }
    for (size_t i = 0; i < tasks; i++) fn(arg, i, 0);
}

struct products_job {
    const struct product *products;
    size_t count, tokens, token_blocks;
    size_t chunk[PRODUCTS_MAX]; // panels per task
    size_t tasks[PRODUCTS_MAX];
};

static void products_task(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct products_job *j = arg;
    size_t i = 0;
    while (task >= j->tasks[i]) task -= j->tasks[i++];
    const struct product *p = &j->products[i];
    size_t token = task % j->token_blocks * TOKEN_BLOCK, first = task / j->token_blocks * j->chunk[i];
    size_t tokens = j->tokens - token < TOKEN_BLOCK ? j->tokens - token : TOKEN_BLOCK;
    size_t panels = p->l->panels - first < j->chunk[i] ? p->l->panels - first : j->chunk[i];
    linear_dot(p->l, first, panels, p->x + token * p->x_stride, p->x_stride, tokens,
               p->y + token * p->y_stride + 8 * first, p->y_stride);
}

void products_run(struct pool *pool, const struct product *products, size_t count, size_t tokens)
{
    assert(count <= PRODUCTS_MAX);
    struct products_job j = {.products = products,
                             .count = count,
                             .tokens = tokens,
                             .token_blocks = (tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK};
    double work = 0;
    for (size_t i = 0; i < count; i++)
        work += 8.0 * (double)products[i].l->panels * (double)products[i].l->inputs * (double)tokens;
    /* Four tasks a thread even out what else the cores do; smaller ones would only cost. */
    size_t threads = pool_threads(pool);
    double per_task = work / (4.0 * (double)threads);
    if (per_task < PARALLEL_MIN / 4) per_task = PARALLEL_MIN / 4;
    bool alone = threads == 1 || work < PARALLEL_MIN;
    size_t tasks = 0;
    for (size_t i = 0; i < count; i++) {
        const struct linear *l = products[i].l;
        size_t rows = tokens < TOKEN_BLOCK ? tokens : TOKEN_BLOCK;
        double panels = per_task / (8.0 * (double)l->inputs * (double)rows);
        size_t chunk = alone || panels > (double)l->panels ? l->panels : (size_t)panels & ~(size_t)7;
        j.chunk[i] = chunk < 8 ? 8 : chunk;
        j.tasks[i] = j.token_blocks * ((l->panels + j.chunk[i] - 1) / j.chunk[i]);
        tasks += j.tasks[i];
    }
    parallel(pool, products_task, &j, tasks, work);
}
