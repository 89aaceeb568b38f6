/* good_test.c: checkpoints that must open, and numbers in them that are known from elsewhere. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/model/model.h"
#include "tests/golden/goldens.h"

static struct model open_model(const char *dir)
{
    struct model m;
    struct error err = {""};
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/%s", dir);
    int rc = model_open(&m, path, &err);
    if (rc) fail_msg("%s", err.text);
    return m;
}

static const struct good {
    const char *dir, *goldens;
    enum model_arch arch;
    uint32_t files, layers, hidden, vocab, experts, top_k, index_topk;
    size_t tensors;
} goods[] = {
    {"models/duckling", "tests/goldens/duckling", MODEL_DEEPSEEK_V32, 3, 6, 256, 6400, 32, 4, 256, 1360},
    {"tests/goldens/v32-tiny", "tests/goldens/v32-tiny/goldens", MODEL_DEEPSEEK_V32, 3, 3, 288, 768, 16, 4,
     64, 0},
    {"tests/goldens/v3-tiny", "tests/goldens/v3-tiny/goldens", MODEL_DEEPSEEK_V3, 1, 3, 256, 512, 12, 3, 0,
     0},
};

static void opens(void **state)
{
    const struct good *g = *state;
    struct model m = open_model(g->dir);
    assert_int_equal(m.config.arch, g->arch);
    assert_int_equal(m.config.layers, g->layers);
    assert_int_equal(m.config.hidden_size, g->hidden);
    assert_int_equal(m.config.experts, g->experts);
    assert_int_equal(m.config.top_k, g->top_k);
    assert_int_equal(m.config.index_topk, g->index_topk);
    assert_int_equal(m.config.mtp_layers, 1);
    assert_true(m.config.yarn);
    assert_int_equal(m.config.bos_id, 0);
    assert_int_equal(m.config.eos_count, 1);
    assert_int_equal(m.config.eos_id[0], 1);
    assert_int_equal(checkpoint_files(m.checkpoint), g->files);
    if (g->tensors) assert_int_equal(checkpoint_tensors(m.checkpoint), g->tensors);
    model_close(&m);
}

/* The golden residual stream begins with the embeddings of the prompt. */
static void embedding_rows(void **state)
{
    const struct good *g = *state;
    struct model m = open_model(g->dir);
    struct error err = {""};
    struct goldens *goldens;
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/%s", g->goldens);
    if (goldens_open(&goldens, path, &err)) fail_msg("%s", err.text);
    struct weight w;
    if (checkpoint_matrix(m.checkpoint, &w, m.config.vocab_size, m.config.hidden_size, &err,
                          "model.%s.weight", "embed_tokens"))
        fail_msg("%s", err.text);
    const struct golden *ids = goldens_find(goldens, "%s.ids", "short"),
                        *hidden = goldens_find(goldens, "short.hidden");
    assert_non_null(ids);
    assert_non_null(hidden);
    assert_int_equal(hidden->shape[2], g->hidden);
    float *row = malloc(g->hidden * sizeof *row);
    for (uint64_t t = 0; t < ids->count; t++) {
        weight_row(&w, (uint64_t)ids->i[t], row);
        assert_memory_equal(row, hidden->f + t * g->hidden, g->hidden * sizeof *row);
    }
    free(row);
    goldens_close(goldens);
    model_close(&m);
}

/* Every tensor can be found by its name, lies in its file and comes in order. */
static void table_of_tensors(void **state)
{
    const struct good *g = *state;
    struct model m = open_model(g->dir);
    for (size_t i = 0; i < checkpoint_tensors(m.checkpoint); i++) {
        const struct tensor *t = checkpoint_tensor(m.checkpoint, i);
        assert_ptr_equal(checkpoint_find(m.checkpoint, t->name), t);
        assert_true(t->file < checkpoint_files(m.checkpoint));
        if (i) {
            const struct tensor *before = t - 1;
            assert_true(before->file < t->file ||
                        (before->file == t->file && before->file_offset + before->bytes <= t->file_offset));
        }
    }
    assert_null(checkpoint_find(m.checkpoint, "model.layers.0.nothing"));
    assert_null(checkpoint_find(m.checkpoint, ""));
    model_close(&m);
}

/* All matrices and vectors of the first layers load with the shapes the config demands. */
static void shapes_match_config(void **state)
{
    const struct good *g = *state;
    struct model m = open_model(g->dir);
    const struct model_config *c = &m.config;
    struct error err = {""};
    struct weight w;
    float v[4096];
    const uint32_t l = c->first_dense_layers;
#define MATRIX(rows, cols, ...)                                                                              \
    if (checkpoint_matrix(m.checkpoint, &w, rows, cols, &err, __VA_ARGS__)) fail_msg("%s", err.text)
#define VECTOR(n, ...)                                                                                       \
    if (checkpoint_vector(m.checkpoint, v, n, &err, __VA_ARGS__)) fail_msg("%s", err.text)
    MATRIX(c->vocab_size, c->hidden_size, "lm_head.weight");
    MATRIX(c->q_lora_rank, c->hidden_size, "model.layers.%u.self_attn.q_a_proj.weight", l);
    assert_int_equal(w.dtype, DTYPE_F8_E4M3);
    MATRIX(c->heads * (c->qk_nope_dim + c->qk_rope_dim), c->q_lora_rank,
           "model.layers.%u.self_attn.q_b_proj.weight", l);
    MATRIX(c->kv_lora_rank + c->qk_rope_dim, c->hidden_size,
           "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", l);
    MATRIX(c->heads * (c->qk_nope_dim + c->v_dim), c->kv_lora_rank,
           "model.layers.%u.self_attn.kv_b_proj.weight", l);
    MATRIX(c->hidden_size, c->heads * c->v_dim, "model.layers.%u.self_attn.o_proj.weight", l);
    MATRIX(c->hidden_size, c->expert_width, "model.layers.%u.mlp.experts.%u.down_proj.weight", l,
           c->experts - 1);
    MATRIX(c->hidden_size, 2 * c->hidden_size, "model.layers.%u.eh_proj.weight", c->layers);
    VECTOR(c->experts, "model.layers.%u.mlp.gate.e_score_correction_bias", l);
    VECTOR(c->hidden_size, "model.norm.weight");
    for (uint32_t i = 0; i < c->hidden_size; i++) assert_true(isfinite(v[i]) && fabsf(v[i]) < 100.0f);
    model_close(&m);
}

#define CASES(fn)                                                                                            \
    {#fn "/duckling", fn, NULL, NULL, (void *)(uintptr_t)&goods[0]},                                         \
        {#fn "/v32-tiny", fn, NULL, NULL, (void *)(uintptr_t)&goods[1]},                                     \
    {                                                                                                        \
#fn "/v3-tiny", fn, NULL, NULL, (void *)(uintptr_t)&goods[2]                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASES(opens),
        CASES(embedding_rows),
        CASES(table_of_tensors),
        CASES(shapes_match_config),
    };
    return cmocka_run_group_tests_name("model-good", tests, NULL, NULL);
}
