/* duck_core_test.c: a bank's feed-forward through duck_core: against double precision, for any cut into
 * ducks, any number of tokens, both loaders, and what must be refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "duck/duck_core.h"
#include "tests/fp9/fp9_random.h"

enum { MAX_DUCKS = 32, MAX_NODES = 512 };

/* A checkpoint's tensors of one bank: a routed expert has its own, always-on experts are parts of one wide
 * one. */
struct bank {
    uint32_t hidden, routed, always, width;
    uint8_t **data[3], **scales[3]; // [matrix][routed experts, then the wide one]
};

static uint32_t tensor_width(const struct bank *b, uint32_t tensor)
{
    return tensor < b->routed ? b->width : b->always * b->width;
}

static struct bank make_bank(uint32_t hidden, uint32_t routed, uint32_t always, uint32_t width,
                             uint64_t *seed)
{
    struct bank b = {.hidden = hidden, .routed = routed, .always = always, .width = width};
    uint32_t tensors = routed + (always ? 1 : 0);
    for (int m = 0; m < 3; m++) {
        b.data[m] = calloc(tensors, sizeof *b.data[m]);
        b.scales[m] = calloc(tensors, sizeof *b.scales[m]);
        for (uint32_t t = 0; t < tensors; t++) {
            size_t n = (size_t)hidden * tensor_width(&b, t);
            size_t blocks = (size_t)(hidden + 127) / 128 * ((tensor_width(&b, t) + 127) / 128);
            b.data[m][t] = malloc(n);
            for (size_t i = 0; i < n; i++) b.data[m][t][i] = random_e4m3(seed);
            b.scales[m][t] = malloc(4 * blocks + 1);
            for (size_t i = 0; i < blocks; i++) {
                float s = (1.5f + 0.5f * random_unit(seed)) * 0x1p-10f;
                memcpy(b.scales[m][t] + 1 + 4 * i, &s, 4); // maybe unaligned
            }
        }
    }
    return b;
}

static void free_bank(struct bank *b)
{
    for (int m = 0; m < 3; m++) {
        for (uint32_t t = 0; t < b->routed + (b->always ? 1 : 0); t++) {
            free(b->data[m][t]);
            free(b->scales[m][t]);
        }
        free(b->data[m]);
        free(b->scales[m]);
    }
}

static double weight_at(const struct bank *b, int m, uint32_t tensor, size_t r, size_t c)
{
    size_t cols = m == DUCK_DOWN ? tensor_width(b, tensor) : b->hidden;
    float s;
    memcpy(&s, b->scales[m][tensor] + 1 + 4 * (r / 128 * ((cols + 127) / 128) + c / 128), 4);
    return (double)fp9_e4m3_to_float(b->data[m][tensor][r * cols + c]) * (double)s;
}

struct duck {
    void *memory, *scratch;
    struct duck_core *core;
    size_t scratch_bytes;
};

static void load_bank(struct duck_core *d, const struct bank *b, uint32_t bank)
{
    for (uint32_t e = 0; e < b->routed + b->always; e++)
        for (int m = 0; m < 3; m++) {
            uint32_t tensor = e < b->routed ? e : b->routed;
            uint64_t where = 0;
            const struct duck_tensor t = {.data = b->data[m][tensor],
                                          .scales = b->scales[m][tensor] + 1,
                                          .element_bytes = 1,
                                          .hidden = b->hidden,
                                          .width = tensor_width(b, tensor),
                                          .which = (enum duck_matrix)m};
            assert_int_equal(
                duck_core_load(d, bank, e, e < b->routed ? 0 : (e - b->routed) * b->width, &t, &where), 0);
        }
}

static struct duck open_duck(const struct duck_shape *shape, uint32_t tokens, uint32_t top_k,
                             const struct fp9_kernels *k)
{
    struct duck d = {0};
    size_t bytes = duck_core_bytes(shape);
    d.memory = aligned_bytes(bytes);
    assert_null(duck_core_init(d.memory, bytes - 1, shape, k));
    d.core = duck_core_init(d.memory, bytes, shape, k);
    assert_non_null(d.core);
    d.scratch_bytes = duck_step_scratch_bytes(d.core, tokens, top_k);
    d.scratch = aligned_bytes(d.scratch_bytes);
    return d;
}

static void close_duck(struct duck *d)
{
    free(d->memory);
    free(d->scratch);
}

static uint32_t piecewise, pauses; // tasks run in pieces; how often one was left in the middle

/* Every second task as core 0 runs it: in pieces, with another core's tasks in between. */
static void run_task(struct duck_work *w, enum duck_phase phase, uint32_t n)
{
    if (n % 2 == 0) {
        duck_work_run(w, phase, n);
        return;
    }
    piecewise++;
    size_t work = DUCK_PIECE_WORK;
    for (; !duck_work_run_piece(w, fp9_select(NULL), phase, n, &work); work = DUCK_PIECE_WORK) {
        pauses++;
        duck_work_run(w, phase, n - 1);
    }
}

static struct duck_work *run_step(const struct duck *d, const struct duck_step *step)
{
    struct duck_work *w = duck_work_begin(d->core, d->scratch, d->scratch_bytes, step);
    assert_non_null(w);
    for (int phase = 0; phase < DUCK_PHASES; phase++) // tasks of a phase in any order
        for (uint32_t n = duck_work_tasks(w, (enum duck_phase)phase); n-- > 0;)
            run_task(w, (enum duck_phase)phase, n);
    return w;
}

struct node {
    uint32_t first, level;
    const float *values;
};

/* node(level, i) of the tree over `slices`, from complete subtrees. */
static float tree(const struct node *nodes, size_t count, uint32_t slices, uint32_t level, uint32_t i,
                  size_t at)
{
    uint32_t first = i << level;
    for (size_t n = 0; n < count; n++)
        if (nodes[n].first == first && nodes[n].level == level) return nodes[n].values[at];
    assert_true(level > 0);
    float left = tree(nodes, count, slices, level - 1, 2 * i, at);
    if (((2 * i + 1) << (level - 1)) >= slices) return left;
    return left + tree(nodes, count, slices, level - 1, 2 * i + 1, at);
}

static void reduce(const struct node *nodes, size_t count, uint32_t slices, size_t n, float *y)
{
    uint32_t level = 0;
    while ((1u << level) < slices) level++;
    for (size_t i = 0; i < n; i++) y[i] = tree(nodes, count, slices, level, 0, i);
}

/* The bank on `ducks` ducks, slices dealt in uneven runs; with `split` every duck holds two runs. */
static void through_ducks(const struct bank *b, enum fp9_format f, const struct duck_step *step,
                          uint32_t ducks, int split, const struct fp9_kernels *k, float *y)
{
    struct duck duck[MAX_DUCKS];
    struct node nodes[MAX_NODES];
    struct duck_bank_shape bank = {b->routed, b->always, b->width};
    uint32_t slices = b->width / 8, pieces = split ? 2 * ducks : ducks;
    size_t count = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ducks; i++) {
        struct duck_run run[2];
        uint32_t runs = 0;
        for (uint32_t piece = i; piece < pieces; piece += ducks) {
            uint32_t from = slices * piece / pieces, to = slices * (piece + 1) / pieces;
            if (to > from) run[runs++] = (struct duck_run){0, from, to - from};
        }
        if (runs == 2 && run[0].first + run[0].count == run[1].first) {
            run[0].count += run[1].count;
            runs = 1;
        }
        struct duck_shape shape = {b->hidden, 1, &bank, runs, run, f};
        duck[i] = open_duck(&shape, step->tokens, step->top_k, k);
        load_bank(duck[i].core, b, 0);
        struct duck_work *w = run_step(&duck[i], step);
        struct duck_subtree subtree[64];
        uint32_t n = duck_core_subtrees(duck[i].core, 0, subtree, 64);
        for (uint32_t s = 0; s < n; s++)
            nodes[count++] = (struct node){subtree[s].first, subtree[s].level, duck_work_partial(w, s)};
        uint64_t experts, read;
        duck_work_reads(w, &experts, &read);
        assert_true(runs == 0 || (experts >= runs * (step->top_k + b->always) && read > 0));
        bytes += read;
    }
    assert_true(bytes >=
                (uint64_t)(step->top_k + b->always) * 3 * b->hidden * b->width * (f == FP9_E4M3 ? 8 : 9) / 8);
    reduce(nodes, count, slices, (size_t)step->tokens * b->hidden, y);
    for (uint32_t i = 0; i < ducks; i++) close_duck(&duck[i]);
}

struct step_data {
    struct duck_step step;
    float *x, *weights;
    int32_t *ids;
};

static struct step_data make_step(const struct bank *b, uint32_t tokens, uint32_t top_k, uint64_t *seed)
{
    struct step_data s = {.x = malloc(sizeof(float) * tokens * b->hidden),
                          .weights = malloc(sizeof(float) * tokens * top_k + 1),
                          .ids = malloc(sizeof(int32_t) * tokens * top_k + 1)};
    for (size_t i = 0; i < (size_t)tokens * b->hidden; i++) s.x[i] = random_unit(seed);
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < b->routed && chosen < top_k; e++)
            if (random_below(seed, b->routed - e) < top_k - chosen) s.ids[t * top_k + chosen++] = (int32_t)e;
    }
    for (size_t i = 0; i < (size_t)tokens * top_k; i++) s.weights[i] = 0.5f + 0.4f * random_unit(seed);
    s.step = (struct duck_step){0, tokens, top_k, s.x, s.ids, s.weights};
    return s;
}

static void free_step(struct step_data *s)
{
    free(s->x);
    free(s->weights);
    free(s->ids);
}

static void add_expert(const struct bank *b, uint32_t tensor, uint32_t column, double weight, const float *x,
                       double *y)
{
    for (uint32_t c = column; c < column + b->width; c++) {
        double g = 0, u = 0;
        for (uint32_t i = 0; i < b->hidden; i++) {
            g += weight_at(b, DUCK_GATE, tensor, c, i) * (double)x[i];
            u += weight_at(b, DUCK_UP, tensor, c, i) * (double)x[i];
        }
        double h = g / (1 + exp(-g)) * u * weight;
        for (uint32_t r = 0; r < b->hidden; r++) y[r] += weight_at(b, DUCK_DOWN, tensor, r, c) * h;
    }
}

static void assert_close(const struct bank *b, const struct duck_step *s, const float *y)
{
    double error = 0, norm = 0, *exact = malloc(b->hidden * sizeof *exact);
    for (uint32_t t = 0; t < s->tokens; t++) {
        memset(exact, 0, b->hidden * sizeof *exact);
        for (uint32_t k = 0; k < s->top_k; k++)
            add_expert(b, (uint32_t)s->ids[t * s->top_k + k], 0, (double)s->weights[t * s->top_k + k],
                       s->x + t * b->hidden, exact);
        for (uint32_t a = 0; a < b->always; a++)
            add_expert(b, b->routed, a * b->width, 1.0, s->x + t * b->hidden, exact);
        for (uint32_t r = 0; r < b->hidden; r++) {
            double d = (double)y[t * b->hidden + r] - exact[r];
            error += d * d;
            norm += exact[r] * exact[r];
        }
    }
    free(exact);
    if (!(sqrt(error) <= 2e-6 * sqrt(norm))) fail_msg("relative L2 error %g", sqrt(error / norm));
}

static void assert_same_bits(const float *a, const float *b, size_t n, const char *what, uint32_t ducks)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s, %u ducks, element %zu: %a and %a", what, ducks, i, (double)a[i], (double)b[i]);
}

static void any_cut_same_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t hidden, routed, always, width, tokens, top_k;
    } shapes[] = {
        {256, 6, 1, 128, 1, 4}, {288, 5, 2, 96, 3, 2},  {136, 3, 3, 40, 9, 2},
        {64, 0, 2, 264, 5, 0},  {64, 4, 1, 256, 40, 3},
    };
    static const uint32_t ducks[] = {1, 2, 3, 5, 7, 32};
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct bank b =
            make_bank(shapes[i].hidden, shapes[i].routed, shapes[i].always, shapes[i].width, &seed);
        struct step_data s = make_step(&b, shapes[i].tokens, shapes[i].top_k, &seed);
        size_t n = (size_t)shapes[i].tokens * b.hidden;
        float *a = malloc(n * sizeof *a), *c = malloc(n * sizeof *c);
        through_ducks(&b, FP9_FP9, &s.step, 1, 0, &fp9_scalar, a);
        assert_close(&b, &s.step, a);
        through_ducks(&b, FP9_E4M3, &s.step, 1, 0, &fp9_scalar, c);
        assert_same_bits(a, c, n, "scalar, e4m3", 1);
        for (size_t d = 0; d < sizeof ducks / sizeof ducks[0]; d++)
            for (int f = 0; f < 2 * FP9_FORMATS; f++) {
                static const char *const what[] = {"avx2", "avx2, e4m3", "avx512", "avx512, e4m3"};
                const struct fp9_kernels *k = fp9_select(f < FP9_FORMATS ? "avx2" : "avx512");
                if (!k) continue;
                through_ducks(&b, (enum fp9_format)(f % FP9_FORMATS), &s.step, ducks[d], ducks[d] % 2, k, c);
                assert_same_bits(a, c, n, what[f], ducks[d]);
            }
        free(a);
        free(c);
        free_step(&s);
        free_bank(&b);
    }
}

/* A token's result does not depend on what else is in the step. */
static void many_tokens_same_bits(void **state)
{
    (void)state;
    enum { TOKENS = 512, HIDDEN = 128, TOP_K = 4 };
    uint64_t seed = 6;
    struct bank b = make_bank(HIDDEN, 32, 1, 64, &seed);
    struct step_data s = make_step(&b, TOKENS, TOP_K, &seed);
    float *all = malloc(sizeof(float) * TOKENS * HIDDEN), one[HIDDEN];
    through_ducks(&b, FP9_FP9, &s.step, 1, 0, &fp9_avx2, all);
    for (int f = 0; f < FP9_FORMATS; f++) {
        struct duck_bank_shape bank = {32, 1, 64};
        struct duck_run run = {0, 0, 8};
        struct duck_shape shape = {HIDDEN, 1, &bank, 1, &run, (enum fp9_format)f};
        struct duck d = open_duck(&shape, 1, TOP_K, &fp9_avx2);
        load_bank(d.core, &b, 0);
        for (uint32_t t = 0; t < TOKENS; t++) {
            struct duck_step step = {0, 1, TOP_K, s.x + t * HIDDEN, s.ids + t * TOP_K, s.weights + t * TOP_K};
            memcpy(one, duck_work_partial(run_step(&d, &step), 0), sizeof one);
            assert_same_bits(all + t * HIDDEN, one, HIDDEN, "token alone", t);
            uint64_t experts, bytes;
            duck_work_reads(d.scratch, &experts, &bytes);
            assert_int_equal(experts, TOP_K + 1);
            assert_int_equal(bytes, (TOP_K + 1) * 3 * 8 * 8 * HIDDEN * (f == FP9_E4M3 ? 8 : 9) / 8);
        }
        close_duck(&d);
    }
    free(all);
    free_step(&s);
    free_bank(&b);
}

static void bad_activations_stay_harmless(void **state)
{
    (void)state;
    uint64_t seed = 7;
    struct bank b = make_bank(64, 4, 1, 16, &seed);
    struct step_data s = make_step(&b, 3, 2, &seed);
    s.x[5] = NAN;
    s.x[64 + 9] = INFINITY;
    float y[3 * 64];
    through_ducks(&b, FP9_FP9, &s.step, 1, 0, &fp9_avx2, y);
    for (size_t i = 0; i < 64; i++) {
        assert_true(isnan(y[i]));
        assert_true(isfinite(y[2 * 64 + i])); // the neighbour's NaN stays with the neighbour
    }
    free_step(&s);
    free_bank(&b);
}

static void refuse_bad_weights(enum fp9_format f)
{
    enum { HIDDEN = 136, WIDTH = 144 };
    struct duck_bank_shape bank = {2, 0, WIDTH};
    struct duck_run run = {0, 0, WIDTH / 8};
    struct duck_shape shape = {HIDDEN, 1, &bank, 1, &run, f};
    struct duck d = open_duck(&shape, 1, 1, &fp9_avx2);
    uint8_t *data = calloc(HIDDEN, WIDTH);
    const float bad[] = {0.0f, -1.0f, NAN, INFINITY, 0x1p-127f, ldexpf(1, duck_scale_end(f))};
    float scales[4] = {1, 1, 1, 1}, *w = calloc(HIDDEN * WIDTH, sizeof *w);
    uint64_t where = 0;
    for (int m = 0; m < 3; m++) {
        const struct duck_tensor codes = {data, (uint8_t *)scales, 1, HIDDEN, WIDTH, (enum duck_matrix)m},
                                 floats = {(uint8_t *)w, NULL, 4, HIDDEN, WIDTH, (enum duck_matrix)m};
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            scales[3] = bad[i];
            assert_int_equal(duck_core_load(d.core, 0, 1, 0, &codes, &where), DUCK_BAD_SCALE);
            assert_int_equal(where, 3);
        }
        scales[3] = 1;
        data[HIDDEN * WIDTH - 7] = 0xff;
        assert_int_equal(duck_core_load(d.core, 0, 0, 0, &codes, &where), DUCK_BAD_WEIGHT);
        assert_int_equal(where, HIDDEN * WIDTH - 7);
        data[HIDDEN * WIDTH - 7] = 0;
        const float bad_weight[] = {NAN, -INFINITY, 0x1p126f};
        for (size_t i = 0; i < 3 && f == FP9_FP9; i++) {
            w[1234] = bad_weight[i];
            assert_int_equal(duck_core_load(d.core, 0, 0, 0, &floats, &where), DUCK_BAD_WEIGHT);
            assert_int_equal(where, 1234);
        }
        w[1234] = 0;
        assert_int_equal(duck_core_load(d.core, 0, 0, 0, &floats, &where),
                         f == FP9_E4M3 ? DUCK_BAD_WEIGHT : 0);
    }
    free(data);
    free(w);
    close_duck(&d);
}

static void refuses_bad_weights(void **state)
{
    (void)state;
    refuse_bad_weights(FP9_FP9);
    refuse_bad_weights(FP9_E4M3); // and all that is not e4m3
}

/* e4m3 values times power-of-two scales are exact in bf16 and fp32, so every loader must give the same
 * result. */
static void float_loader_is_exact_on_fp9_values(void **state)
{
    (void)state;
    enum { HIDDEN = 136, WIDTH = 144, N = HIDDEN * WIDTH };
    uint64_t seed = 8;
    struct bank b = make_bank(HIDDEN, 1, 0, WIDTH, &seed);
    struct step_data s = make_step(&b, 2, 1, &seed);
    float expected[2 * HIDDEN];
    for (int m = 0; m < 3; m++)
        for (size_t i = 0; i < 4; i++) {
            float scale = ldexpf(1.0f, (int)i - 8 - 50 * (m == DUCK_UP)) * (m == DUCK_DOWN ? 0x1p50f : 1.0f);
            memcpy(b.scales[m][0] + 1 + 4 * i, &scale, 4);
        }
    through_ducks(&b, FP9_FP9, &s.step, 1, 0, &fp9_avx2, expected);
    struct duck_bank_shape bank = {1, 0, WIDTH};
    struct duck_run run[2] = {{0, 0, 3}, {0, 5, 13}}; // two runs: both loaded from the one tensor
    struct duck_shape shape = {HIDDEN, 1, &bank, 2, run, FP9_FP9};
    struct duck exact = open_duck(&shape, 2, 1, &fp9_avx2), other = open_duck(&shape, 2, 1, &fp9_avx2);
    load_bank(exact.core, &b, 0);
    float *w = malloc(N * sizeof *w);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        for (int m = 0; m < 3; m++) {
            size_t cols = m == DUCK_DOWN ? WIDTH : HIDDEN;
            for (size_t i = 0; i < N; i++) {
                float x = (float)weight_at(&b, m, 0, i / cols, i % cols);
                uint32_t bits;
                memcpy(&bits, &x, 4);
                uint16_t top = (uint16_t)(bits >> 16);
                memcpy((uint8_t *)w + i * (is_bf16 ? 2 : 4), is_bf16 ? (void *)&top : (void *)&x,
                       is_bf16 ? 2 : 4);
            }
            uint64_t where = 0;
            const struct duck_tensor t = {(uint8_t *)w, NULL,  is_bf16 ? 2 : 4,
                                          HIDDEN,       WIDTH, (enum duck_matrix)m};
            assert_int_equal(duck_core_load(other.core, 0, 0, 0, &t, &where), 0);
        }
        struct duck_work *p = run_step(&exact, &s.step), *q = run_step(&other, &s.step);
        uint32_t n = duck_core_subtrees(other.core, 0, NULL, 0);
        assert_int_equal(n, 2 + 4); // [0,2) [2,3); [5,6) [6,8) [8,16) [16,18)
        for (uint32_t i = 0; i < n; i++)
            assert_same_bits(duck_work_partial(p, i), duck_work_partial(q, i), 2 * HIDDEN, "float loader", i);
        assert_true(fabsf(duck_work_partial(q, 0)[0]) > 0.0f);
    }
    free(w);
    close_duck(&exact);
    close_duck(&other);
    free_step(&s);
    free_bank(&b);
}

static void refuses_impossible_shapes_and_steps(void **state)
{
    (void)state;
    struct duck_bank_shape bank[] = {{4, 1, 64}, {0, 1, 12}};
    static const struct {
        uint32_t hidden, banks, runs;
        struct duck_run run[2];
    } bad[] = {
        {60, 1, 1, {{0, 0, 8}}},
        {0, 1, 1, {{0, 0, 8}}},
        {64, 2, 1, {{0, 0, 8}}}, // width 12
        {64, 1, 1, {{1, 0, 1}}},
        {64, 1, 1, {{0, 0, 9}}},
        {64, 1, 1, {{0, 8, 1}}},
        {64, 1, 1, {{0, 0, 0}}},
        {64, 1, 2, {{0, 0, 5}, {0, 4, 4}}},
        {64, 1, 2, {{0, 4, 4}, {0, 0, 2}}},
    };
    char *memory = aligned_bytes(1 << 20);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct duck_shape shape = {bad[i].hidden, bad[i].banks, bank, bad[i].runs, bad[i].run, FP9_FP9};
        assert_null(duck_core_init(memory, 1 << 20, &shape, &fp9_avx2));
    }
    free(memory);
    struct duck_run run = {0, 0, 8};
    struct duck_shape shape = {64, 1, bank, 1, &run, FP9_FORMATS};
    memory = aligned_bytes(1 << 20);
    assert_null(duck_core_init(memory, 1 << 20, &shape, &fp9_avx2));
    free(memory);
    shape.format = FP9_FP9;
    struct duck d = open_duck(&shape, 2, 2, &fp9_avx2);
    float x[192] = {0}, weights[6] = {0};
    static const int32_t ids[][4] = {{0, 1, 2, 3}, {0, 0, 2, 3}, {1, 0, 2, 3}, {0, 4, 1, 2}, {0, 1, -1, 2}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        struct duck_step step = {0, 2, 2, x, ids[i], weights};
        struct duck_work *w = duck_work_begin(d.core, d.scratch, d.scratch_bytes, &step);
        assert_true((w != NULL) == (i == 0));
        assert_null(duck_work_begin(d.core, d.scratch, d.scratch_bytes - 1, &step));
    }
    struct duck_step other_bank = {1, 1, 2, x, ids[0], weights}, too_many = {0, 3, 2, x, ids[0], weights};
    assert_null(duck_work_begin(d.core, d.scratch, d.scratch_bytes, &other_bank));
    int32_t six[] = {0, 1, 0, 1, 0, 1};
    too_many.ids = six;
    assert_null(duck_work_begin(d.core, d.scratch, d.scratch_bytes, &too_many));
    close_duck(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_same_bits),
        cmocka_unit_test(many_tokens_same_bits),
        cmocka_unit_test(bad_activations_stay_harmless),
        cmocka_unit_test(refuses_bad_weights),
        cmocka_unit_test(float_loader_is_exact_on_fp9_values),
        cmocka_unit_test(refuses_impossible_shapes_and_steps),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("%u tasks in pieces, %u pauses\n", piecewise, pauses);
    return rc ? rc : pauses == 0;
}
