/* attention_test.c: index scores, selection and absorbed attention against brute force in double precision;
 * bits independent of how rows are cut into jobs. */
#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "host/backend/cpu/attention.h"
#include "host/backend/cpu/indexer.h"
#include "tests/backend/random.h"

/* ---- selection ---- */

struct select_case {
    const char *name;
    uint32_t n, k, levels; // distinct scores
};

static void the_largest_scores_are_selected(void **state)
{
    const struct select_case *c = *state;
    uint64_t seed = 17;
    const uint32_t room = (c->n + 7) / 8 * 8; // what lies behind the scores must not count, however large
    float *scores = malloc(room * sizeof *scores);
    int32_t *out = malloc(c->n * sizeof *out);
    bool *taken = malloc(c->n * sizeof *taken);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < c->n; i++) {
            scores[i] = ((float)(random_word(&seed) % c->levels) - (float)(c->levels / 2)) * 0.37f;
            if (scores[i] == 0.0f && random_word(&seed) % 2) scores[i] = -0.0f;
        }
        for (uint32_t i = c->n; i < room; i++) scores[i] = 1e30f;
        uint32_t got = indexer_select(scores, c->n, c->k, out), want = c->k < c->n ? c->k : c->n;
        assert_int_equal(got, want);
        memset(taken, 0, c->n * sizeof *taken);
        for (uint32_t k = 0; k < want; k++) {
            uint32_t best = c->n;
            for (uint32_t i = 0; i < c->n; i++)
                if (!taken[i] && (best == c->n || scores[i] > scores[best])) best = i;
            taken[best] = true;
        }
        for (uint32_t i = 0, at = 0; i < c->n; i++)
            if (taken[i]) assert_int_equal(out[at++], i);
    }
    free(scores), free(out), free(taken);
}

static struct select_case select_cases[] = {
    {"select, distinct scores", 700, 64, 1u << 24},
    {"select, ties at the threshold", 700, 256, 5},
    {"select, all equal", 300, 64, 1},
    {"select, zeros of both signs", 100, 10, 3},
    {"select, one", 50, 1, 10},
    {"select, many", 4001, 512, 1u << 24},
    {"select, all but one", 65, 64, 1000},
    {"select, no more than k", 64, 64, 10},
    {"select, fewer than k", 10, 64, 10},
};

/* ---- index scores ---- */

static void index_scores_are_those_of_double_precision(void **state)
{
    (void)state;
    enum { HEADS = 6, SIZE = 32, KEYS = 75, ROWS = 16, STRIDE = 80 };
    const enum kv_dtype dtypes[] = {KV_F32, KV_BF16, KV_FP8};
    uint64_t seed = 4;
    for (size_t d = 0; d < 3; d++) {
        struct kv_shape shape = {.dtype = dtypes[d], .layers = 1, .latent = 8, .rope = 8, .index_dim = SIZE};
        struct kv kv;
        struct error err = {""};
        assert_int_equal(kv_open(&kv, &shape, KEYS, &err), 0);
        struct kv_layer l = kv_layer(&kv, 0);
        float *keys = random_floats(&seed, KEYS * SIZE), *q = random_floats(&seed, ROWS * HEADS * SIZE),
              *w = random_floats(&seed, ROWS * 8), *scores = random_floats(&seed, ROWS * STRIDE),
              *scratch = random_floats(&seed, 2 * 8 * SIZE), *tile = random_floats(&seed, 8 * SIZE);
        for (uint32_t p = 0; p < KEYS; p++) kv_write_index(&l, p, keys + p * SIZE);
        struct indexer_rows a = {HEADS, SIZE, l, KEYS - ROWS, ROWS, q, HEADS * SIZE, w, 8, scores, STRIDE};
        indexer_score(&a, 0, 4, scratch); // in parts, as tasks do
        indexer_score(&a, 4, (KEYS + 7) / 8 - 4, scratch);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t p = 0; p <= a.position + r; p++) {
                const float *t = kv_tile(&l, p / 8, tile);
                double expected = 0;
                for (uint32_t h = 0; h < HEADS; h++) {
                    double dot = 0;
                    for (uint32_t i = 0; i < SIZE; i++)
                        dot += (double)q[(r * HEADS + h) * SIZE + i] * (double)t[8 * i + p % 8];
                    expected += (double)w[r * 8 + h] * fmax(dot, 0);
                }
                assert_true(fabs((double)scores[r * STRIDE + p] - expected) < 5e-6);
            }
        // a row alone: the same bits
        float *alone = random_floats(&seed, STRIDE);
        struct indexer_rows one = a;
        one.position += 9, one.rows = 1, one.q += 9 * HEADS * SIZE, one.weights += 9 * 8, one.scores = alone;
        indexer_score(&one, 0, (KEYS + 7) / 8, scratch);
        assert_memory_equal(alone, scores + 9 * STRIDE, (one.position + 1) * sizeof(float));
        free(keys), free(q), free(w), free(scores), free(scratch), free(tile), free(alone);
        kv_close(&kv);
    }
}

/* ---- attention ---- */

struct attention_case {
    const char *name;
    size_t heads, nope, rope, v, latent;
    uint32_t keys, rows, top_k; // rows are the last positions; top_k 0: dense
    enum kv_dtype dtype;
};

struct setup {
    struct attention a;
    struct kv kv;
    float *weights; // kv_b: (heads, nope + v, latent)
    float *q, *cosines, *sines, *out, *scratch;
    int32_t *selected;
    size_t q_stride, out_stride;
};

static void set_up(struct setup *s, const struct attention_case *c)
{
    uint64_t seed = 23;
    struct error err = {""};
    struct attention_shape shape = {c->heads, c->nope, c->rope, c->v, c->latent, 0.7f};
    struct kv_shape ks = {.dtype = c->dtype, .layers = 1, .latent = c->latent, .rope = c->rope};
    assert_int_equal(kv_open(&s->kv, &ks, c->keys, &err), 0);
    struct kv_layer keys = kv_layer(&s->kv, 0);
    for (uint32_t p = 0; p < c->keys; p++) {
        float *row = random_floats(&seed, c->latent + c->rope);
        kv_write(&keys, p, row, row + c->latent);
        free(row);
    }
    s->weights = random_floats(&seed, c->heads * (c->nope + c->v) * c->latent);
    struct linear *up = calloc(2 * c->heads, sizeof *up);
    for (size_t h = 0; h < c->heads; h++) {
        const float *w = s->weights + h * (c->nope + c->v) * c->latent;
        assert_int_equal(linear_pack(&up[h], c->latent, c->nope, w, 1, c->latent, &err), 0);
        assert_int_equal(
            linear_pack(&up[c->heads + h], c->v, c->latent, w + c->nope * c->latent, c->latent, 1, &err), 0);
    }
    s->q_stride = c->heads * (c->nope + c->rope);
    s->out_stride = c->heads * c->v;
    s->q = random_floats(&seed, c->rows * s->q_stride);
    s->cosines = random_floats(&seed, c->rows * c->rope / 2);
    s->sines = random_floats(&seed, c->rows * c->rope / 2);
    s->out = random_floats(&seed, c->rows * s->out_stride);
    s->scratch = random_floats(&seed, attention_scratch_floats(&shape));
    s->selected = calloc((size_t)c->rows * (c->top_k ? c->top_k : 1), sizeof *s->selected);
    for (uint32_t r = 0; r < c->rows && c->top_k; r++) {
        uint32_t position = c->keys - c->rows + r; // every other one or so, ascending
        for (uint32_t k = 0; k < c->top_k; k++)
            s->selected[r * c->top_k + k] = (int32_t)((uint64_t)(k + 1) * (position + 1) / c->top_k) - 1;
    }
    s->a = (struct attention){shape,
                              up,
                              up + c->heads,
                              keys,
                              c->keys - c->rows,
                              c->rows,
                              c->rows % 2 ? 3 : ATTENTION_ROWS,
                              s->q,
                              s->q_stride,
                              s->cosines,
                              s->sines,
                              s->selected,
                              c->top_k,
                              c->top_k ? c->top_k : UINT32_MAX,
                              s->out,
                              s->out_stride,
                              NULL};
}

static void tear_down(struct setup *s)
{
    for (size_t h = 0; h < 2 * s->a.shape.heads; h++) linear_free((struct linear *)&s->a.key_up[h]);
    free((void *)s->a.key_up);
    kv_close(&s->kv);
    free(s->weights), free(s->q), free(s->cosines), free(s->sines), free(s->out), free(s->scratch),
        free(s->selected);
}

/* Expanded keys and values, one row and head. */
static void naive(const struct setup *s, const struct attention_case *c, uint32_t row, size_t head,
                  double *out)
{
    uint32_t position = c->keys - c->rows + row;
    bool sparse = c->top_k && position + 1 > c->top_k;
    uint32_t n = sparse ? c->top_k : position + 1;
    const float *w = s->weights + head * (c->nope + c->v) * c->latent;
    const float *q = s->q + row * s->q_stride + head * (c->nope + c->rope);
    double *score = malloc(n * sizeof *score), sum = 0, largest = -INFINITY;
    float *scratch = malloc((c->latent + c->rope) * sizeof(float));
    memset(out, 0, c->v * sizeof *out);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = 0; k < n; k++) {
            uint32_t p = sparse ? (uint32_t)s->selected[row * c->top_k + k] : k;
            const float *key = kv_row(&s->a.keys, p, scratch);
            if (pass == 0) {
                double dot = 0;
                for (size_t i = 0; i < c->nope; i++) {
                    double expanded = 0;
                    for (size_t j = 0; j < c->latent; j++)
                        expanded += (double)w[i * c->latent + j] * (double)key[j];
                    dot += (double)q[i] * expanded;
                }
                for (size_t i = 0; i < c->rope / 2; i++) {
                    double co = (double)s->cosines[row * c->rope / 2 + i],
                           si = (double)s->sines[row * c->rope / 2 + i];
                    double x = (double)q[c->nope + 2 * i], y = (double)q[c->nope + 2 * i + 1];
                    dot += (x * co - y * si) * (double)key[c->latent + 2 * i] +
                           (y * co + x * si) * (double)key[c->latent + 2 * i + 1];
                }
                score[k] = dot * (double)s->a.shape.scale;
                largest = fmax(largest, score[k]);
            } else {
                double weight = exp(score[k] - largest);
                sum += weight;
                for (size_t i = 0; i < c->v; i++)
                    for (size_t j = 0; j < c->latent; j++)
                        out[i] += weight * (double)w[(c->nope + i) * c->latent + j] * (double)key[j];
            }
        }
    for (size_t i = 0; i < c->v; i++) out[i] /= sum;
    free(score), free(scratch);
}

static void attention_is_that_of_double_precision(void **state)
{
    const struct attention_case *c = *state;
    struct setup s;
    set_up(&s, c);
    for (size_t t = 0; t < attention_tasks(&s.a); t++) attention_task(&s.a, t, s.scratch);
    double *expected = malloc(c->v * sizeof *expected);
    for (uint32_t r = 0; r < c->rows; r += 1 + c->rows / 4)
        for (size_t h = 0; h < c->heads; h += 3) {
            naive(&s, c, r, h, expected);
            for (size_t i = 0; i < c->v; i++)
                assert_true(fabs((double)s.out[r * s.out_stride + h * c->v + i] - expected[i]) < 2e-4);
        }
    free(expected);
    // one row at a time: the same bits
    float *all = s.out;
    uint64_t seed = 1;
    float *alone = random_floats(&seed, s.out_stride);
    for (uint32_t r = 0; r < c->rows; r++) {
        struct attention one = s.a;
        one.position += r, one.rows = 1, one.q += r * s.q_stride, one.out = alone;
        one.cosines += r * c->rope / 2, one.sines += r * c->rope / 2, one.selected += r * one.selected_stride;
        for (size_t t = 0; t < attention_tasks(&one); t++) attention_task(&one, t, s.scratch);
        assert_memory_equal(alone, all + r * s.out_stride, s.out_stride * sizeof(float));
    }
    free(alone);
    tear_down(&s);
}

static struct attention_case attention_cases[] = {
    {"attention, first position", 8, 16, 8, 16, 32, 1, 1, 0, KV_F32},
    {"attention, one segment", 8, 16, 8, 16, 32, 100, 40, 0, KV_F32},
    {"attention, several segments, two groups of heads", 12, 16, 8, 24, 40, 530, 35, 0, KV_F32},
    {"attention, selected keys", 6, 16, 8, 16, 32, 90, 60, 37, KV_F32},
    {"attention, selected keys in two segments", 8, 16, 8, 16, 32, 400, 20, 300, KV_F32},
    {"attention, bf16 cache", 8, 16, 8, 16, 32, 300, 20, 0, KV_BF16},
    {"attention, fp8 cache, selected keys", 8, 16, 8, 16, 32, 90, 60, 37, KV_FP8},
};

int main(void)
{
    enum {
        SELECT = sizeof select_cases / sizeof *select_cases,
        ATTEND = sizeof attention_cases / sizeof *attention_cases
    };
    struct CMUnitTest tests[SELECT + ATTEND + 1] = {
        cmocka_unit_test(index_scores_are_those_of_double_precision)};
    for (size_t i = 0; i < SELECT; i++)
        tests[1 + i] = (struct CMUnitTest){select_cases[i].name, the_largest_scores_are_selected, NULL, NULL,
                                           &select_cases[i]};
    for (size_t i = 0; i < ATTEND; i++)
        tests[1 + SELECT + i] = (struct CMUnitTest){
            attention_cases[i].name, attention_is_that_of_double_precision, NULL, NULL, &attention_cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
