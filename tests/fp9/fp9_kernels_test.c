/* fp9_kernels_test.c: dot and down: scalar and AVX2 agree bit for bit, both agree with double precision, and
 * no operation on extreme weights and activations is subnormal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xmmintrin.h>

#include <cmocka.h>

#include "tests/fp9/down_problem.h"

struct problem {
    struct fp9_matrix m;
    uint8_t *panels;
    float *scales, *xs;
    size_t tokens, stride;
};

static void fill_panels(uint8_t *panels, size_t count, size_t inputs, uint64_t *seed)
{
    memset(panels, 0, count * fp9_panel_bytes(FP9_FP9, inputs));
    for (size_t p = 0; p < count; p++)
        for (size_t i = 0; i < inputs; i++)
            for (unsigned lane = 0; lane < 8; lane++)
                fp9_panel_set(panels + p * fp9_panel_bytes(FP9_FP9, inputs), inputs, i, lane,
                              random_code(seed));
}

static float *random_scales(size_t n, uint64_t *seed)
{
    float *s = aligned_bytes(n * sizeof *s);
    for (size_t i = 0; i < n; i++) s[i] = (1.5f + 0.5f * random_unit(seed)) * 0x1p-8f * FP9_W_SCALE;
    return s;
}

static struct problem make(size_t panels, size_t inputs, size_t first_output, size_t tokens, uint64_t *seed)
{
    struct problem p = {.tokens = tokens, .stride = (inputs + 7) / 8 * 8};
    size_t blocks = (inputs + 127) / 128, rows = (first_output + 8 * panels + 127) / 128 - first_output / 128;
    p.panels = aligned_bytes(panels * fp9_panel_bytes(FP9_FP9, inputs));
    fill_panels(p.panels, panels, inputs, seed);
    p.scales = random_scales(rows * blocks, seed);
    p.xs = aligned_bytes(tokens * p.stride * sizeof(float));
    for (size_t t = 0; t < tokens; t++) {
        float *x = aligned_bytes(inputs * sizeof *x);
        for (size_t i = 0; i < inputs; i++) x[i] = random_unit(seed) * (i % 5 ? 1.0f : 100.0f);
        fp9_scalar.prepare(x, inputs, p.xs + t * p.stride);
        free(x);
    }
    p.m = (struct fp9_matrix){p.panels,
                              fp9_panel_bytes(FP9_FP9, inputs),
                              p.scales,
                              blocks,
                              inputs,
                              panels,
                              first_output,
                              0,
                              FP9_FP9,
                              NULL,
                              0};
    return p;
}

static void release(struct problem *p)
{
    free(p->panels);
    free(p->scales);
    free(p->xs);
}

static void check_double(const struct problem *p, const float *y)
{
    double error = 0, norm = 0;
    size_t first = p->m.first_output;
    for (size_t t = 0; t < p->tokens; t++)
        for (size_t r = 0; r < 8 * p->m.panel_count; r++) {
            double sum = 0;
            const float *scales = p->scales + ((first + r) / 128 - first / 128) * p->m.scale_stride;
            for (size_t i = 0; i < p->m.inputs; i++) {
                uint16_t code = fp9_panel_get(FP9_FP9, p->panels + r / 8 * p->m.panel_stride, i, r % 8);
                sum += (double)fp9_to_float(code) * (double)p->xs[t * p->stride + i] * 0x1p-96 *
                       (double)scales[i / 128] * 0x1p-16;
            }
            double got = (double)y[t * 8 * p->m.panel_count + r];
            error += (got - sum) * (got - sum);
            norm += sum * sum;
        }
    if (sqrt(error) > 2e-6 * sqrt(norm)) fail_msg("relative L2 error %g", sqrt(error / norm));
}

/* dot2 a block of inputs at a time. */
static void dot_in_pieces(const struct fp9_kernels *k, const struct problem *p, float *y0, float *y1)
{
    for (size_t block = 0; block * FP9_BLOCK < p->m.inputs; block++) {
        struct fp9_matrix m = p->m;
        struct fp9_rows x = {p->xs + block * FP9_BLOCK, p->stride, NULL, p->tokens};
        m.panels += block * fp9_block_bytes(FP9_FP9);
        m.scales += block;
        m.inputs -= block * FP9_BLOCK;
        if (m.inputs > FP9_BLOCK) m.inputs = FP9_BLOCK;
        m.continues = block > 0;
        k->dot2(&m, &m, 0, m.panel_count, &x, y0, y1, 8 * m.panel_count);
    }
}

static void dot_same_bits_as_scalar(const struct fp9_kernels *k, size_t panels, size_t inputs,
                                    size_t first_output, size_t tokens, uint64_t *seed)
{
    struct problem p = make(panels, inputs, first_output, tokens, seed);
    size_t n = tokens * 8 * panels;
    float *a = aligned_bytes(n * sizeof *a), *b = aligned_bytes(n * sizeof *b),
          *c = aligned_bytes(n * sizeof *c);
    struct fp9_rows x = {p.xs, p.stride, NULL, tokens};
    fp9_scalar.dot(&p.m, 0, panels, &x, a, 8 * panels);
    k->dot(&p.m, 0, panels, &x, b, 8 * panels);
    assert_memory_equal(a, b, n * sizeof *a);
    check_double(&p, a);
    for (uint32_t t = 0; t < tokens; t++) { // alone, picked by index, panel by panel
        struct fp9_rows one = {p.xs, p.stride, &t, 1};
        for (size_t q = 0; q < panels; q++) k->dot(&p.m, q, 1, &one, c + t * 8 * panels + 8 * q, 8);
    }
    assert_memory_equal(a, c, n * sizeof *a);
    memset(b, 0, n * sizeof *b);
    memset(c, 0, n * sizeof *c);
    k->dot2(&p.m, &p.m, 0, panels, &x, b, c, 8 * panels);
    assert_memory_equal(a, b, n * sizeof *a);
    assert_memory_equal(a, c, n * sizeof *a);
    dot_in_pieces(k, &p, b, c);
    assert_memory_equal(a, b, n * sizeof *a);
    assert_memory_equal(a, c, n * sizeof *a);
    free(a);
    free(b);
    free(c);
    release(&p);
}

static void dot_same_bits_of(const struct fp9_kernels *k)
{
    uint64_t seed = 11;
    for (size_t tokens = 1; tokens <= 27; tokens++)
        for (int shape = 0; shape < 6; shape++) {
            size_t panels = 1 + random_below(&seed, 12), inputs = 1 + random_below(&seed, 400);
            if (shape == 0) inputs = 128 * (1 + random_below(&seed, 3));
            if (shape == 1) inputs = 32 * (1 + random_below(&seed, 12)); // whole strips
            dot_same_bits_as_scalar(k, panels, inputs, 8 * random_below(&seed, 40), tokens, &seed);
        }
    static const size_t many[] = {96, 97, 193}; // more than a pass has, and more panels than are held at once
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++)
        dot_same_bits_as_scalar(k, 17, 168, 120, many[i], &seed);
}

static void dot_same_bits(void **state)
{
    (void)state;
    dot_same_bits_of(&fp9_avx2);
    dot_same_bits_of(&fp9_avx2_l2);
    if (fp9_select("avx512")) dot_same_bits_of(&fp9_avx512);
}

static void dot_long_rows(void **state)
{
    (void)state;
    const struct fp9_kernels *k = fp9_select(NULL);
    uint64_t seed = 12;
    struct problem p = make(5, 7168, 120, 1, &seed);
    float a[40], b[40];
    struct fp9_rows x = {p.xs, p.stride, NULL, 1};
    fp9_scalar.dot(&p.m, 0, 5, &x, a, 40);
    k->dot(&p.m, 0, 5, &x, b, 40);
    assert_memory_equal(a, b, sizeof a);
    check_double(&p, a);
    release(&p);
}

static void fill_quads(uint8_t *quads, size_t panels, size_t inputs, uint64_t *seed)
{
    memset(quads, 0, (panels + 3) / 4 * fp9_quad_bytes(FP9_FP9, inputs));
    for (size_t p = 0; p < panels; p++)
        for (size_t strip = 0; FP9_STRIP_INPUTS * strip < inputs; strip++) {
            uint16_t code[256] = {0};
            for (size_t i = 0; i < 256; i++)
                if (FP9_STRIP_INPUTS * strip + i % FP9_STRIP_INPUTS < inputs) code[i] = random_code(seed);
            fp9_strip_put(fp9_quad_strip(FP9_FP9, quads + p / 4 * fp9_quad_bytes(FP9_FP9, inputs), inputs,
                                         p % 4, strip),
                          inputs, strip, code);
        }
}

static struct down_problem random_down(size_t tokens, size_t first, size_t slices, size_t experts,
                                       size_t rows, uint64_t *seed)
{
    struct down_problem p = down_problem_make(tokens, first, slices, experts, rows, FP9_FP9, seed);
    size_t inputs = 8 * slices, hs = fp9_down_hs_floats(p.pairs, slices);
    for (size_t e = 0; e < experts; e++) {
        uint8_t *panels = aligned_bytes((rows / 8 + 3) / 4 * fp9_quad_bytes(FP9_FP9, inputs));
        fill_quads(panels, rows / 8, inputs, seed);
        p.expert[e].panels = panels;
        p.expert[e].scales = random_scales((rows + 127) / 128 * p.d.scale_stride, seed);
    }
    p.hs = aligned_bytes(hs * sizeof *p.hs);
    for (size_t i = 0; i < hs; i++) p.hs[i] = random_unit(seed) * FP9_X_SCALE;
    p.d.hs = p.hs;
    return p;
}

static void down_same_bits_of(const struct fp9_kernels *k)
{
    static const struct {
        size_t tokens, first, slices, experts, rows;
    } shapes[] = {
        {1, 0, 1, 1, 8},    {1, 0, 16, 5, 256},  {1, 3, 13, 9, 40},   {1, 8, 8, 9, 264},  {2, 5, 6, 3, 24},
        {3, 0, 256, 2, 16}, {7, 40, 24, 4, 136}, {17, 1, 31, 3, 48},  {40, 0, 16, 4, 24}, {513, 2, 5, 2, 16},
        {300, 0, 16, 2, 8}, {1, 0, 4, 0, 16},    {130, 5, 40, 3, 40}, {64, 0, 8, 6, 64},  {9, 12, 20, 5, 32},
        {150, 4, 4, 2, 8},  {257, 0, 256, 2, 8}, // sums of a pass: of 256 tokens
    };
    uint64_t seed = 21;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct down_problem p = random_down(shapes[i].tokens, shapes[i].first, shapes[i].slices,
                                            shapes[i].experts, shapes[i].rows, &seed);
        size_t n = p.subtrees * p.d.out_subtree;
        float *a = aligned_bytes(n * sizeof *a), *b = aligned_bytes(n * sizeof *b);
        struct fp9_down d = p.d;
        d.out = a;
        fp9_scalar.down->rows(&d, 0, p.rows / 8);
        d.out = b;
        size_t cut = p.rows / 8 / 3 / 4 * 4; // rows in two uneven parts: the cut must not matter
        k->down->rows(&d, 0, cut);
        k->down->rows(&d, cut, p.rows / 8 - cut);
        for (size_t j = 0; j < n; j++)
            if (memcmp(&a[j], &b[j], sizeof a[j]) != 0)
                fail_msg("shape %zu, element %zu: %a and %a", i, j, (double)a[j], (double)b[j]);
        memset(b, 0, n * sizeof *b);
        struct fp9_down_walk walk = {.count = p.rows / 8, .cells = aligned_bytes(FP9_DOWN_CELLS)};
        size_t pieces = 1, work = 1000;
        for (; !k->down->some_rows(&d, &walk, &work); work = 1000) pieces++;
        assert_true(pieces > 1 || d.experts < 2);
        assert_memory_equal(a, b, n * sizeof *a);
        free(walk.cells);
        free(a);
        free(b);
        down_problem_free(&p);
    }
}

static void down_same_bits(void **state)
{
    (void)state;
    down_same_bits_of(&fp9_avx2);
    if (fp9_select("avx512")) down_same_bits_of(&fp9_avx512);
}

/* Weights and activations at the ends of their ranges; MXCSR tells what the hardware met. */
static void nothing_is_subnormal(void **state)
{
    (void)state;
    enum { INPUTS = 256, SUBNORMAL = _MM_EXCEPT_DENORM | _MM_EXCEPT_UNDERFLOW };
    static const float extreme[] = {0.0f,     -0.0f,           0x1p-149f, -0x1p-126f, 0x1.fffffep-61f,
                                    0x1p-60f, -0x1p-60f,       0x1p-30f,  1.0f,       -65536.0f,
                                    1e30f,    -0x1.fffffep127f};
    static const uint16_t code[] = {0, 256, 8, 264, 0xf7, 0x1f7};
    const struct fp9_kernels *kernels[] = {&fp9_scalar, &fp9_avx2, &fp9_avx2_l2, fp9_select("avx512")};
    uint8_t *panel = aligned_bytes(fp9_panel_bytes(FP9_FP9, INPUTS));
    float x[2 * INPUTS], *xs = aligned_bytes(sizeof x), y[16], g[32], u[32], hs[32];
    uint64_t seed = 31;
    for (int round = 0; round < 200; round++) {
        float scales[2] = {(round & 1 ? 0x1p-20f : 0x1p10f) * FP9_W_SCALE, 0x1p-20f * FP9_W_SCALE};
        uint32_t most = round % 3 ? 9 : 12; // two thirds without values that overflow
        memset(panel, 0, fp9_panel_bytes(FP9_FP9, INPUTS));
        for (size_t i = 0; i < INPUTS; i++)
            for (unsigned lane = 0; lane < 8; lane++)
                fp9_panel_set(panel, INPUTS, i, lane, code[random_below(&seed, 6)]);
        for (size_t i = 0; i < 2 * INPUTS; i++) x[i] = extreme[random_below(&seed, most)];
        for (size_t i = 0; i < 32; i++) {
            g[i] = random_below(&seed, 2) ? extreme[random_below(&seed, 12)] : 100.0f * random_unit(&seed);
            u[i] = extreme[random_below(&seed, 12)];
        }
        struct fp9_matrix m = {panel, 0, scales, 2, INPUTS, 1, 0, 0, FP9_FP9, NULL, 0};
        for (size_t k = 0; k < 4 && kernels[k]; k++) {
            _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
            kernels[k]->prepare(x, 2 * INPUTS, xs);
            for (size_t tokens = 1; tokens <= 2; tokens++) {
                struct fp9_rows rows = {xs, INPUTS, NULL, tokens};
                kernels[k]->dot(&m, 0, 1, &rows, y, 8);
            }
            kernels[k]->expert(g, u, extreme[random_below(&seed, 12)], 32, hs);
            unsigned met = _mm_getcsr() & SUBNORMAL;
            if (met) fail_msg("%s, round %d: MXCSR %#x", kernels[k]->name, round, met);
        }
    }
    free(panel);
    free(xs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_same_bits),
        cmocka_unit_test(dot_long_rows),
        cmocka_unit_test(down_same_bits),
        cmocka_unit_test(nothing_is_subnormal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
