/* fp9_e4m3_test.c: matrices of e4m3 bytes give the bits of the same weights as fp9, in every kernel, and no
 * operation is subnormal however many of the weights are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xmmintrin.h>

#include <cmocka.h>

#include "tests/fp9/down_problem.h"

enum { SUBNORMAL = _MM_EXCEPT_DENORM | _MM_EXCEPT_UNDERFLOW };

/* Which weights come up. */
enum mix { NORMAL, RARE, MANY, ONLY, EXTREME, MIXES };
static const char *const mix_name[] = {"no subnormals", "rare ones", "many", "nothing else", "extremes"};

static uint8_t weight(enum mix mix, uint64_t *seed)
{
    static const uint8_t extreme[] = {0, 1, 7, 8, 9, 0x7e};
    uint8_t sign = (uint8_t)(random_below(seed, 2) << 7), small = (uint8_t)random_below(seed, 8);
    if (mix == ONLY || (mix == RARE && random_below(seed, 2000) == 0)) return sign | small;
    if (mix == MANY) return sign | (uint8_t)random_below(seed, 0x7f);
    if (mix == EXTREME) return sign | extreme[random_below(seed, sizeof extreme)];
    return sign | (random_below(seed, 20) ? (uint8_t)(8 + random_below(seed, 0x77)) : 0);
}

static uint8_t *weights(size_t n, enum mix mix, uint64_t *seed)
{
    uint8_t *w = aligned_bytes(n);
    for (size_t i = 0; i < n; i++) w[i] = weight(mix, seed);
    return w;
}

/* Packed for either format. */
static float *random_scales(size_t n, enum fp9_format f, uint64_t *seed)
{
    float *s = aligned_bytes(n * sizeof *s);
    for (size_t i = 0; i < n; i++)
        s[i] = (1.5f + 0.5f * random_unit(seed)) * 0x1p-8f * (f == FP9_E4M3 ? FP9_E4M3_SCALE : FP9_W_SCALE);
    return s;
}

/* With extreme weights the activations are extreme, too. */
static float *random_rows(size_t tokens, size_t inputs, enum mix mix, uint64_t *seed)
{
    static const float extreme[] = {0.0f,     -0.0f,     0x1p-149f, -0x1p-126f, 0x1.fffffep-61f,
                                    0x1p-60f, -0x1p-60f, 0x1p-30f,  1.0f,       -65536.0f};
    float *xs = aligned_bytes(tokens * inputs * sizeof *xs), *x = aligned_bytes(inputs * sizeof *x);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < inputs; i++)
            x[i] = mix == EXTREME ? extreme[random_below(seed, sizeof extreme / sizeof extreme[0])]
                                  : random_unit(seed) * (i % 5 ? 1.0f : 100.0f);
        fp9_scalar.prepare(x, inputs, xs + t * inputs);
    }
    free(x);
    return xs;
}

/* ---- dots ---- */

struct matrix {
    struct fp9_matrix m;
    uint8_t *panels;
    float *scales;
    uint16_t *marks;
};

/* `seed`: of the scales. */
static struct matrix pack(enum fp9_format f, const uint8_t *rows, size_t panels, size_t inputs,
                          size_t first_output, uint64_t seed)
{
    size_t blocks = (inputs + 127) / 128,
           scale_rows = (first_output + 8 * panels + 127) / 128 - first_output / 128;
    size_t bytes = fp9_panel_bytes(f, inputs);
    struct matrix p = {.panels = aligned_bytes(panels * bytes),
                       .scales = random_scales(scale_rows * blocks, f, &seed),
                       .marks = calloc(panels * blocks, sizeof *p.marks)};
    struct fp9_e4m3_table table;
    fp9_e4m3_table_make(&table);
    for (size_t q = 0; q < panels; q++)
        for (size_t strip = 0; 32 * strip < inputs; strip++) {
            int marks = fp9_strip_put_e4m3(f, fp9_panel_strip(f, p.panels + q * bytes, strip), inputs, strip,
                                           &table, rows + 8 * q * inputs, inputs);
            assert_true(marks >= 0 && (f == FP9_E4M3 || marks == 0));
            p.marks[q * blocks + strip / 4] |= (uint16_t)(marks << strip % 4 * 4);
        }
    p.m = (struct fp9_matrix){.panels = p.panels,
                              .panel_stride = bytes,
                              .scales = p.scales,
                              .scale_stride = blocks,
                              .inputs = inputs,
                              .panel_count = panels,
                              .first_output = first_output,
                              .format = f,
                              .marks = f == FP9_E4M3 ? p.marks : NULL,
                              .mark_stride = blocks};
    return p;
}

static void release(struct matrix *p)
{
    free(p->panels);
    free(p->scales);
    free(p->marks);
}

/* dot2 a block of inputs at a time. */
static void dot_in_pieces(const struct fp9_kernels *k, const struct fp9_matrix *whole,
                          const struct fp9_rows *rows, float *y0, float *y1)
{
    for (size_t block = 0; block * FP9_BLOCK < whole->inputs; block++) {
        struct fp9_matrix m = *whole;
        struct fp9_rows x = *rows;
        x.xs += block * FP9_BLOCK;
        m.panels += block * fp9_block_bytes(m.format);
        m.scales += block;
        m.marks += block;
        m.inputs -= block * FP9_BLOCK;
        if (m.inputs > FP9_BLOCK) m.inputs = FP9_BLOCK;
        m.continues = block > 0;
        k->dot2(&m, &m, 0, m.panel_count, &x, y0, y1, 8 * m.panel_count);
    }
}

/* Every way to compute the dots of an e4m3 matrix gives `right`. */
static void check_dots(const struct fp9_kernels *k, const struct fp9_matrix *m, const struct fp9_rows *x,
                       const float *right)
{
    const size_t panels = m->panel_count, n = x->count * 8 * panels;
    float *b = aligned_bytes(n * sizeof *b), *c = aligned_bytes(n * sizeof *c);
    k->dot(m, 0, panels, x, b, 8 * panels);
    assert_memory_equal(right, b, n * sizeof *b);
    for (uint32_t t = 0; t < x->count; t++) { // alone, picked by index, panel by panel
        struct fp9_rows one = {x->xs, x->stride, &t, 1};
        for (size_t q = 0; q < panels; q++) k->dot(m, q, 1, &one, c + t * 8 * panels + 8 * q, 8);
    }
    assert_memory_equal(right, c, n * sizeof *b);
    k->dot2(m, m, 0, panels, x, b, c, 8 * panels);
    assert_memory_equal(right, b, n * sizeof *b);
    assert_memory_equal(right, c, n * sizeof *b);
    dot_in_pieces(k, m, x, b, c);
    assert_memory_equal(right, b, n * sizeof *b);
    assert_memory_equal(right, c, n * sizeof *b);
    free(b);
    free(c);
}

static void same_dots(const struct fp9_kernels *k, size_t panels, size_t inputs, size_t tokens, enum mix mix,
                      uint64_t *seed)
{
    size_t first_output = 8 * random_below(seed, 40), n = tokens * 8 * panels;
    uint8_t *rows = weights(8 * panels * inputs, mix, seed);
    uint64_t scale_seed = random_next(seed);
    struct matrix nine = pack(FP9_FP9, rows, panels, inputs, first_output, scale_seed);
    struct matrix eight = pack(FP9_E4M3, rows, panels, inputs, first_output, scale_seed);
    float *xs = random_rows(tokens, inputs, mix, seed), *right = aligned_bytes(n * sizeof *right);
    struct fp9_rows x = {xs, inputs, NULL, tokens};
    fp9_scalar.dot(&nine.m, 0, panels, &x, right, 8 * panels);
    _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
    check_dots(k, &eight.m, &x, right);
    unsigned met = _mm_getcsr() & SUBNORMAL;
    if (met) fail_msg("%s: dots of %s: MXCSR %#x", k->name, mix_name[mix], met);
    release(&nine);
    release(&eight);
    free(rows);
    free(xs);
    free(right);
}

/* What this CPU has of them. */
static const struct fp9_kernels *const *kernels(void)
{
    static const struct fp9_kernels *all[5];
    size_t n = 0;
    all[n++] = &fp9_scalar;
    all[n++] = &fp9_avx2;
    all[n++] = &fp9_avx2_l2;
    if (fp9_select("avx512")) all[n++] = &fp9_avx512;
    return all;
}

static void dots_have_the_bits_of_fp9(void **state)
{
    (void)state;
    uint64_t seed = 41;
    for (const struct fp9_kernels *const *k = kernels(); *k; k++)
        for (size_t tokens = 1; tokens <= 27; tokens += *k == &fp9_scalar ? 13 : 1)
            for (int mix = 0; mix < MIXES; mix++) {
                size_t inputs = (size_t)mix == tokens % MIXES ? 128 * (1 + random_below(&seed, 3))
                                                              : 8 * (1 + random_below(&seed, 50));
                same_dots(*k, 1 + random_below(&seed, 12), inputs, tokens, (enum mix)mix, &seed);
            }
}

static void long_rows(void **state)
{
    (void)state;
    uint64_t seed = 42;
    for (const struct fp9_kernels *const *k = kernels(); *k; k++) {
        same_dots(*k, 5, 7168, 1, RARE, &seed);
        same_dots(*k, 4, 2048, 2, MANY, &seed);
    }
}

/* ---- down ---- */

static void pack_down(struct fp9_down_expert *to, enum fp9_format f, const uint8_t *w, size_t rows,
                      size_t slices, size_t scale_stride, uint64_t seed)
{
    size_t inputs = 8 * slices, quads = (rows / 8 + 3) / 4, bytes = fp9_quad_bytes(f, inputs);
    uint8_t *panels = aligned_bytes(quads * bytes);
    uint16_t *marks = calloc(quads * fp9_down_marks(slices), sizeof *marks);
    struct fp9_e4m3_table table;
    fp9_e4m3_table_make(&table);
    memset(panels, 0, quads * bytes);
    for (size_t p = 0; p < rows / 8; p++)
        for (size_t strip = 0; 4 * strip < slices; strip++) {
            uint8_t *at = fp9_quad_strip(f, panels + p / 4 * bytes, inputs, p % 4, strip);
            int m = fp9_strip_put_e4m3(f, at, inputs, strip, &table, w + 8 * p * inputs, inputs);
            marks[p / 4 * fp9_down_marks(slices) + strip / 4] |= (uint16_t)(m << strip % 4 * 4);
        }
    to->panels = panels;
    to->scales = random_scales((rows + 127) / 128 * scale_stride, f, &seed);
    to->marks = marks;
}

static struct down_problem random_down(size_t tokens, size_t first, size_t slices, size_t experts,
                                       size_t rows, enum fp9_format f, enum mix mix, uint64_t seed)
{
    struct down_problem p = down_problem_make(tokens, first, slices, experts, rows, f, &seed);
    for (size_t e = 0; e < experts; e++) {
        uint8_t *w = weights(rows * 8 * slices, mix, &seed);
        pack_down(&p.expert[e], f, w, rows, slices, p.d.scale_stride, random_next(&seed));
        free(w);
    }
    p.hs = random_rows(p.pairs, fp9_down_hs_floats(1, slices), mix, &seed);
    p.d.hs = p.hs;
    return p;
}

static void down_has_the_bits_of_fp9(void **state)
{
    (void)state;
    static const struct {
        size_t tokens, first, slices, experts, rows;
    } shapes[] = {
        {1, 0, 1, 1, 8},    {1, 0, 16, 5, 256}, {1, 3, 13, 9, 40},  {2, 8, 8, 9, 264},   {2, 5, 6, 3, 24},
        {3, 0, 256, 2, 16}, {7, 40, 24, 4, 72}, {17, 1, 31, 3, 48}, {40, 0, 16, 4, 24},  {300, 2, 5, 2, 16},
        {1, 0, 4, 0, 16},   {64, 0, 8, 6, 64},  {9, 12, 20, 5, 32}, {130, 5, 40, 3, 40},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int mix = 0; mix < MIXES; mix++) {
            struct down_problem p[FP9_FORMATS];
            for (int f = 0; f < FP9_FORMATS; f++)
                p[f] = random_down(shapes[i].tokens, shapes[i].first, shapes[i].slices, shapes[i].experts,
                                   shapes[i].rows, (enum fp9_format)f, (enum mix)mix, 51 + i);
            size_t n = p->subtrees * p->d.out_subtree, panels = p->rows / 8, cut = panels / 3 / 4 * 4;
            float *right = aligned_bytes(n * sizeof *right), *y = aligned_bytes(n * sizeof *y);
            p[FP9_FP9].d.out = right;
            p[FP9_E4M3].d.out = y;
            fp9_scalar.down->rows(&p[FP9_FP9].d, 0, panels);
            for (const struct fp9_kernels *const *k = kernels(); *k; k++) {
                memset(y, 0, n * sizeof *y);
                _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
                (*k)->down->rows(&p[FP9_E4M3].d, 0, cut);
                (*k)->down->rows(&p[FP9_E4M3].d, cut, panels - cut);
                unsigned met = _mm_getcsr() & SUBNORMAL;
                if (met) fail_msg("%s: down of %s: MXCSR %#x", (*k)->name, mix_name[mix], met);
                assert_memory_equal(right, y, n * sizeof *y);
            }
            free(right);
            free(y);
            for (int f = 0; f < FP9_FORMATS; f++) down_problem_free(&p[f]);
        }
}

/* ---- layout ---- */

static void weights_come_back_and_marks_are_right(void **state)
{
    (void)state;
    uint64_t seed = 61;
    struct fp9_e4m3_table table;
    fp9_e4m3_table_make(&table);
    for (size_t inputs = 8; inputs <= 72; inputs += 8)
        for (int mix = 0; mix < MIXES; mix++) {
            uint8_t *rows = weights(8 * inputs, (enum mix)mix, &seed);
            uint8_t *panel = aligned_bytes(fp9_panel_bytes(FP9_E4M3, inputs));
            for (size_t strip = 0; 32 * strip < inputs; strip++) {
                int want = 0, end = inputs - 32 * strip < 32 ? (int)(inputs - 32 * strip) : 32;
                for (int i = 0; i < 8 * end; i++) {
                    uint8_t body = rows[(size_t)(i / end) * inputs + 32 * strip + (size_t)(i % end)] & 0x7f;
                    if (body > 0 && body < 8) want |= 1 << i % end / 8;
                }
                assert_int_equal(fp9_strip_put_e4m3(FP9_E4M3, fp9_panel_strip(FP9_E4M3, panel, strip), inputs,
                                                    strip, &table, rows, inputs),
                                 want);
            }
            for (size_t i = 0; i < 8 * inputs; i++) {
                uint16_t code;
                assert_int_equal(fp9_from_e4m3(rows[i], &code), 0);
                assert_int_equal(fp9_panel_get(FP9_E4M3, panel, i % inputs, (unsigned)(i / inputs)), code);
            }
            size_t at = random_below(&seed, (uint32_t)(8 * inputs));
            rows[at] = (uint8_t)(0x7f | random_below(&seed, 2) << 7);
            size_t strip = at % inputs / 32;
            assert_int_equal(fp9_strip_put_e4m3(FP9_E4M3, fp9_panel_strip(FP9_E4M3, panel, strip), inputs,
                                                strip, &table, rows, inputs),
                             -1);
            free(rows);
            free(panel);
        }
    assert_int_equal(fp9_panel_bytes(FP9_E4M3, 7168), 8 * 7168);
    assert_int_equal(fp9_quad_bytes(FP9_E4M3, 64), 32 * 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_come_back_and_marks_are_right),
        cmocka_unit_test(dots_have_the_bits_of_fp9),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(down_has_the_bits_of_fp9),
    };
    if (fp9_cpu_missing()) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
