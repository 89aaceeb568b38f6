/* cuda_long_test.c: a text of 102 400 positions, far beyond index_topk, on CUDA and on the CPU: the same rows
 * at its end, the same positions chosen. The model is small, random, and has the heads of DeepSeek-V3.2, so
 * that the kernels of its shape run; nobody answers its feed-forward steps but with zeros. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/model/synthetic.h"
#include "host/util/clock.h"
#include "tests/cuda/bed.h"

#define CONFIG "tests/cuda/long.json"
#define LENGTH 102400u
#define CHUNK 2048u
#define ROWS 8u // behind the text
#define DEADLINE_NS (240ull * 1000000000u)

static const struct backend_ops *cuda;
static struct model model;
static struct pool *pool;
static int32_t ids[LENGTH + ROWS];

/* What the rows at the end gave: logits and, in each layer, the chosen positions. */
struct result {
    float *logits;   // (ROWS, vocab)
    int32_t *chosen; // (ROWS, layers, index_topk)
};

static struct result result_open(void)
{
    const struct model_config *c = &model.config;
    return (struct result){calloc((size_t)ROWS * c->vocab_size, sizeof(float)),
                           calloc((size_t)ROWS * c->layers * c->index_topk, sizeof(int32_t))};
}

static void result_close(struct result *r)
{
    free(r->logits);
    free(r->chosen);
}

static void on_row(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                   const int32_t *i, size_t n)
{
    struct result *r = ctx;
    (void)f;
    if (strcmp(name, "index_topk") != 0) return;
    assert_int_equal(n, model.config.index_topk);
    memcpy(r->chosen + ((size_t)(position - LENGTH) * model.config.layers + layer) * n, i, n * sizeof *i);
}

static void run_job(struct backend *b, const struct backend_job *job)
{
    struct error err = {""};
    struct mlp_step step;
    if (b->ops->start(b, 0, job, &err)) fail_msg("%s", err.text);
    const uint64_t start = clock_ns();
    for (;;) {
        const enum backend_event e = b->ops->poll(b, 0, &step, &err);
        if (e == BACKEND_FAILED) fail_msg("%s", err.text);
        if (e == BACKEND_DONE) return;
        if (e == BACKEND_MLP) {
            memset(step.y, 0, (size_t)step.tokens * model.config.hidden_size * sizeof(float));
            b->ops->resume(b, 0);
        }
        if (clock_ns() - start > DEADLINE_NS) fail_msg("a job is not done after 240 s");
    }
}

/* The text in large jobs, then its last rows in jobs of `rows`. */
static void run_text(const struct backend_ops *ops, enum kv_dtype kv, uint32_t rows, bool probe,
                     struct result *r)
{
    struct error err = {""};
    struct backend *b;
    backend_seq seq;
    const struct backend_options o = {.model = &model,
                                      .pool = pool,
                                      .lanes = 1,
                                      .max_tokens = CHUNK,
                                      .kv_dtype = kv,
                                      .kv_dtype_set = true,
                                      .shared = SHARED_FLOCK};
    const struct backend_probe watch = {on_row, r};
    const uint64_t start = clock_ns();
    if (ops->open(&b, &o, &err)) fail_msg("%s", err.text);
    if (ops->seq_open(b, &seq, LENGTH + ROWS, &err)) fail_msg("%s", err.text);
    for (uint32_t p = 0; p < LENGTH; p += CHUNK) {
        const struct backend_job job = {.kind = BACKEND_MAIN,
                                        .seq = seq,
                                        .position = p,
                                        .tokens = CHUNK,
                                        .ids = ids + p,
                                        .logits_from = CHUNK};
        run_job(b, &job);
    }
    if (probe) ops->set_probe(b, &watch);
    for (uint32_t i = 0; i < ROWS; i += rows) {
        const struct backend_job job = {.kind = BACKEND_MAIN,
                                        .seq = seq,
                                        .position = LENGTH + i,
                                        .tokens = rows,
                                        .ids = ids + LENGTH + i};
        run_job(b, &job);
        for (uint32_t k = 0; k < rows; k++)
            memcpy(r->logits + (size_t)(i + k) * model.config.vocab_size, ops->logits(b, 0, k),
                   model.config.vocab_size * sizeof(float));
    }
    if (probe) ops->set_probe(b, NULL);
    ops->close(b);
    print_message("%s: %.1f s\n", ops->name, (double)(clock_ns() - start) * 1e-9);
}

/* Positions that both chose, of a row and layer. */
static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t same = 0;
    for (uint32_t i = 0, k = 0; i < n && k < n;)
        if (a[i] == b[k])
            same++, i++, k++;
        else if (a[i] < b[k])
            i++;
        else
            k++;
    return same;
}

/* least: of the positions that a row chooses, how many must be the same; limit: of the rows' relative L2. */
static void compare(const char *what, const struct result *got, const struct result *want, uint32_t least,
                    double limit)
{
    const struct model_config *c = &model.config;
    const double e = relative_l2(got->logits, want->logits, (size_t)ROWS * c->vocab_size);
    uint32_t fewest = c->index_topk;
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        uint32_t of_layer = c->index_topk;
        for (uint32_t r = 0; r < ROWS; r++) {
            const size_t at = ((size_t)r * c->layers + layer) * c->index_topk;
            const uint32_t same = common(got->chosen + at, want->chosen + at, c->index_topk);
            if (same < of_layer) of_layer = same;
        }
        print_message("%s, layer %u: at least %u of %u positions the same\n", what, layer, of_layer,
                      c->index_topk);
        if (of_layer < fewest) fewest = of_layer;
    }
    print_message("%s: relative L2 %.2e (limit %.0e)\n", what, e, limit);
    if (!(e <= limit) || fewest < least)
        fail_msg("%s: relative L2 %.3e, %u positions the same", what, e, fewest);
}

/* fp32 caches: the decode kernels everywhere. */
static void f32_equals_the_cpu(void **state)
{
    (void)state;
    struct result want = result_open(), got = result_open();
    run_text(&backend_cpu, KV_F32, ROWS, true, &want);
    run_text(cuda, KV_F32, ROWS, true, &got);
    compare("f32 beside the CPU", &got, &want, model.config.index_topk - 2, 1e-3);
    result_close(&got);
    result_close(&want);
}

/* bf16 caches, prompts in blocks; rows alone, as graphs, have the bits of rows together, step by step. */
static void bf16_is_near_the_cpu(void **state)
{
    (void)state;
    struct result want = result_open(), got = result_open(), alone = result_open();
    run_text(&backend_cpu, KV_BF16, ROWS, true, &want);
    run_text(cuda, KV_BF16, ROWS, true, &got);
    run_text(cuda, KV_BF16, 1, false, &alone);
    assert_memory_equal(got.logits, alone.logits, (size_t)ROWS * model.config.vocab_size * sizeof(float));
    compare("bf16 beside the CPU", &got, &want, model.config.index_topk * 9 / 10, 5e-2);
    result_close(&alone);
    result_close(&got);
    result_close(&want);
}

int main(void)
{
    struct error err = {""};
    struct model_config c;
    struct synthetic_format format;
    cuda = bed_backend();
    if (!cuda) return BED_SKIPPED;
    if (synthetic_config_read(&c, &format, CONFIG, &err) ||
        synthetic_open(&model, &c, format, CONFIG, &err) || pool_open(&pool, 0, &err)) {
        printf("FAILED: %s\n", err.text);
        return 1;
    }
    uint32_t z = 1;
    for (uint32_t i = 0; i < LENGTH + ROWS; i++)
        ids[i] = (int32_t)((z = z * 1664525u + 1013904223u) >> 8) % 1024;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_equals_the_cpu),
        cmocka_unit_test(bf16_is_near_the_cpu),
    };
    const int failed = cmocka_run_group_tests_name("cuda-long", tests, NULL, NULL);
    pool_close(pool);
    model_close(&model);
    return failed;
}
