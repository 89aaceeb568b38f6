/* linear_test.c: products of every storage against double precision; bits independent of batch and threads.
 */
#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "host/backend/cpu/linear.h"
#include "tests/backend/random.h"

#define MAX_TOKENS 37

struct shape {
    const char *name;
    enum dtype dtype;
    size_t outputs, inputs;
};

struct setup {
    struct pool *pool;
    const struct fp9_kernels *k;
    uint8_t *data, *scales;
    struct weight w;
    struct linear l;
    float *x, *in;  // (MAX_TOKENS, inputs) plain; as the product wants it
    double *values; // (outputs, inputs)
};

static void fill(struct setup *s, const struct shape *shape, uint64_t *seed)
{
    size_t n = shape->outputs * shape->inputs, cols = (shape->inputs + 127) / 128;
    size_t blocks = cols * ((shape->outputs + 127) / 128);
    s->data = malloc(4 * n);
    s->scales = malloc(4 * blocks);
    s->values = malloc(n * sizeof *s->values);
    for (size_t i = 0; i < blocks; i++) {
        float v = 0.01f * (1.5f + random_float(seed));
        memcpy(s->scales + 4 * i, &v, 4);
    }
    for (size_t i = 0; i < n; i++) {
        float v = random_float(seed);
        if (shape->dtype == DTYPE_F8_E4M3) {
            s->data[i] = (uint8_t)random_word(seed);
            if ((s->data[i] & 0x7f) == 0x7f) s->data[i] ^= 1;
            float scale;
            memcpy(&scale, s->scales + 4 * (i / shape->inputs / 128 * cols + i % shape->inputs / 128), 4);
            s->values[i] = (double)fp9_e4m3_to_float(s->data[i]) * (double)scale;
        } else if (shape->dtype == DTYPE_BF16) {
            uint32_t u;
            memcpy(&u, &v, 4);
            u &= 0xffff0000u;
            memcpy(&v, &u, 4);
            memcpy(s->data + 2 * i, (char *)&u + 2, 2);
            s->values[i] = (double)v;
        } else {
            memcpy(s->data + 4 * i, &v, 4);
            s->values[i] = (double)v;
        }
    }
}

static void set_up(struct setup *s, const struct shape *shape, unsigned threads)
{
    uint64_t seed = 7;
    struct error err = {""};
    s->k = fp9_select(NULL);
    if (pool_open(&s->pool, threads, &err)) fail_msg("%s", err.text);
    fill(s, shape, &seed);
    s->w = (struct weight){shape->dtype, shape->outputs, shape->inputs, s->data, s->scales, "w", "f"};
    if (linear_load(&s->l, &s->w, s->k, s->pool, &err)) fail_msg("%s", err.text);
    s->x = random_floats(&seed, MAX_TOKENS * shape->inputs);
    s->in = random_floats(&seed, MAX_TOKENS * shape->inputs);
    for (size_t t = 0; t < MAX_TOKENS; t++) {
        if (linear_prepared(&s->l))
            s->k->prepare(s->x + t * shape->inputs, shape->inputs, s->in + t * shape->inputs);
        else
            memcpy(s->in + t * shape->inputs, s->x + t * shape->inputs, shape->inputs * sizeof(float));
    }
}

static void tear_down(struct setup *s)
{
    linear_free(&s->l);
    pool_close(s->pool);
    free(s->data);
    free(s->scales);
    free(s->values);
    free(s->x);
    free(s->in);
}

static void products_are_those_of_double_precision(void **state)
{
    const struct shape *shape = *state;
    struct setup s;
    set_up(&s, shape, 2);
    size_t stride = 8 * s.l.panels;
    uint64_t seed = 1;
    float *all = random_floats(&seed, MAX_TOKENS * stride), *y = random_floats(&seed, MAX_TOKENS * stride);
    struct product p = {&s.l, s.in, shape->inputs, all, stride};
    products_run(s.pool, &p, 1, MAX_TOKENS);
    for (size_t t = 0; t < MAX_TOKENS; t++)
        for (size_t o = 0; o < stride; o++) {
            double sum = 0, size = 0;
            for (size_t i = 0; i < shape->inputs && o < shape->outputs; i++) {
                double v = s.values[o * shape->inputs + i] * (double)s.x[t * shape->inputs + i];
                sum += v;
                size += fabs(v);
            }
            assert_true(fabs((double)all[t * stride + o] - sum) <= 1e-5 * size);
        }
    // any number of rows, any run of panels: the same bits
    for (size_t tokens = 1; tokens <= 9; tokens++)
        for (size_t first = 0; first < s.l.panels; first += 3) {
            size_t from = MAX_TOKENS - tokens, count = s.l.panels - first;
            linear_dot(&s.l, first, count, s.in + from * shape->inputs, shape->inputs, tokens, y, stride);
            for (size_t t = 0; t < tokens; t++)
                assert_memory_equal(y + t * stride, all + (from + t) * stride + 8 * first, 32 * count);
        }
    free(all);
    free(y);
    tear_down(&s);
}

static struct shape shapes[] = {
    {"fp8, partial blocks", DTYPE_F8_E4M3, 176, 288},
    {"fp8, one panel", DTYPE_F8_E4M3, 8, 8},
    {"bf16", DTYPE_BF16, 200, 288},
    {"bf16, outputs not a multiple of 8", DTYPE_BF16, 12, 256},
    {"bf16, large enough for threads", DTYPE_BF16, 1000, 256},
    {"fp32", DTYPE_F32, 132, 136},
};

static void what_fits_bf16_is_packed_as_bf16(void **state)
{
    (void)state;
    struct linear l;
    struct error err = {""};
    float values[64];
    for (int i = 0; i < 64; i++) values[i] = (float)(i - 32) * 0.125f;
    assert_int_equal(linear_pack(&l, 8, 8, values, 8, 1, &err), 0);
    assert_int_equal(l.kind, LINEAR_BF16);
    _Alignas(32) float x[8] = {0, 0, 1, 0, 0, 0, 0, 0}, y[8];
    linear_dot(&l, 0, 1, x, 8, 1, y, 8);
    for (int o = 0; o < 8; o++) assert_float_equal(y[o], values[8 * o + 2], 0);
    linear_free(&l);
    // transposed, and with one value that bf16 cannot hold
    values[5] = 1.0f + 0x1p-20f;
    assert_int_equal(linear_pack(&l, 8, 8, values, 1, 8, &err), 0);
    assert_int_equal(l.kind, LINEAR_F32);
    linear_dot(&l, 0, 1, x, 8, 1, y, 8);
    for (int o = 0; o < 8; o++) assert_float_equal(y[o], values[16 + o], 0);
    linear_free(&l);
}

static void bad_weights_are_refused(void **state)
{
    (void)state;
    struct pool *pool;
    struct error err = {""};
    struct linear l;
    assert_int_equal(pool_open(&pool, 1, &err), 0);
    uint8_t codes[64] = {[9] = 0xff};
    float scale = 1.0f;
    struct weight w = {DTYPE_F8_E4M3, 8, 8, codes, (uint8_t *)&scale, "some.weight", "some.file"};
    assert_true(linear_load(&l, &w, fp9_select(NULL), pool, &err) < 0);
    assert_non_null(strstr(err.text, "some.file: some.weight"));
    assert_non_null(strstr(err.text, "(1, 1)"));
    codes[9] = 0;
    scale = -1.0f;
    assert_true(linear_load(&l, &w, fp9_select(NULL), pool, &err) < 0);
    assert_non_null(strstr(err.text, "some.weight_scale_inv"));
    float f[64] = {[63] = INFINITY};
    w = (struct weight){DTYPE_F32, 8, 8, (uint8_t *)f, NULL, "other.weight", "f"};
    assert_true(linear_load(&l, &w, fp9_select(NULL), pool, &err) < 0);
    assert_non_null(strstr(err.text, "(7, 7)"));
    pool_close(pool);
}

int main(void)
{
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    struct CMUnitTest tests[SHAPES + 2] = {[SHAPES] = cmocka_unit_test(what_fits_bf16_is_packed_as_bf16),
                                           [SHAPES + 1] = cmocka_unit_test(bad_weights_are_refused)};
    for (size_t i = 0; i < SHAPES; i++)
        tests[i] = (struct CMUnitTest){shapes[i].name, products_are_those_of_double_precision, NULL, NULL,
                                       &shapes[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
