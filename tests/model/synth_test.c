/* synth_test.c: synthetic checkpoints: complete for their config, the same bytes however they are written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "host/model/model.h"
#include "tests/model/scratch.h"

/* Makes and opens root/name. */
static struct model make(const char *name, const char *config, const char *options)
{
    char command[1024], dir[256];
    snprintf(dir, sizeof dir, "%s/%s", scratch_root, name);
    snprintf(command, sizeof command,
             BINARY_DIR "/synth-model --config " SOURCE_DIR "/%s --out %s %s 2>/dev/null", config, dir,
             options);
    assert_int_equal(system(command), 0);
    struct model m;
    struct error err = {""};
    if (model_open(&m, dir, &err)) fail_msg("%s", err.text);
    return m;
}

static size_t differing_tensors(const struct model *a, const struct model *b)
{
    size_t n = 0;
    assert_int_equal(checkpoint_tensors(a->checkpoint), checkpoint_tensors(b->checkpoint));
    for (size_t i = 0; i < checkpoint_tensors(a->checkpoint); i++) {
        const struct tensor *x = checkpoint_tensor(a->checkpoint, i),
                            *y = checkpoint_find(b->checkpoint, x->name);
        assert_non_null(y);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->bytes, y->bytes);
        n += memcmp(x->data, y->data, x->bytes) != 0;
    }
    return n;
}

static const char wide[] = "configs/synth-2048.json", tiny[] = "tests/goldens/v3-tiny/config.json";

static void shards_do_not_change_bytes(void **state)
{
    (void)state;
    struct model one = make("one", tiny, "--seed 7"), five = make("five", tiny, "--seed 7 --shards 5");
    assert_int_equal(checkpoint_files(one.checkpoint), 1);
    assert_int_equal(checkpoint_files(five.checkpoint), 5);
    assert_int_equal(differing_tensors(&one, &five), 0);
    model_close(&one);
    model_close(&five);
}

static void seed_changes_every_tensor(void **state)
{
    (void)state;
    struct model a = make("seed1", tiny, "--seed 1"), b = make("seed2", tiny, "--seed 2");
    assert_int_equal(differing_tensors(&a, &b), checkpoint_tensors(a.checkpoint));
    model_close(&a);
    model_close(&b);
}

static double std_of(const struct weight *w)
{
    double sum = 0, squares = 0;
    float *row = malloc(w->cols * sizeof *row);
    for (uint64_t r = 0; r < w->rows; r++) {
        weight_row(w, r, row);
        for (uint64_t i = 0; i < w->cols; i++)
            sum += (double)row[i], squares += (double)row[i] * (double)row[i];
    }
    free(row);
    const double n = (double)w->rows * (double)w->cols;
    return sqrt(squares / n - sum / n * (sum / n));
}

/* 256 slices in every bank, so that 32 ducks all hold some; values of the size they should have. */
static void wide_model(void **state)
{
    const char *options = *state;
    struct model m = make("wide", wide, options);
    const struct model_config *c = &m.config;
    struct error err = {""};
    assert_int_equal(c->expert_width, 2048);
    assert_int_equal(c->dense_width, 2048);
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint_tensors(m.checkpoint); i++)
        bytes += checkpoint_tensor(m.checkpoint, i)->bytes;
    assert_true(bytes < 100000000);
    struct weight w;
    const double in = 1 / sqrt(256), inner = 1 / sqrt(2048);
    const bool pow2 = strstr(options, "ue8m0") != NULL;
    for (uint32_t l = c->first_dense_layers; l <= c->layers; l++)
        for (uint32_t e = 0; e < c->experts; e++) {
            if (checkpoint_matrix(m.checkpoint, &w, 2048, 256, &err,
                                  "model.layers.%u.mlp.experts.%u.gate_proj.weight", l, e))
                fail_msg("%s", err.text);
            assert_int_equal(w.dtype, DTYPE_F8_E4M3);
            if (e == 0) assert_true(fabs(std_of(&w) / in - 1) < (pow2 ? 0.5 : 0.1));
            if (checkpoint_matrix(m.checkpoint, &w, 256, 2048, &err,
                                  "model.layers.%u.mlp.experts.%u.down_proj.weight", l, e))
                fail_msg("%s", err.text);
            if (e == 0) assert_true(fabs(std_of(&w) / inner - 1) < (pow2 ? 0.5 : 0.1));
            for (int i = 0; i < 32 && pow2; i++) {
                float scale;
                int exponent;
                memcpy(&scale, w.scales + 4 * i, 4);
                assert_true(frexpf(scale, &exponent) == 0.5f);
            }
        }
    model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_do_not_change_bytes),
        cmocka_unit_test(seed_changes_every_tensor),
        {"wide_model/arbitrary scales", wide_model, NULL, NULL, (void *)(uintptr_t) "--seed 3 --shards 2"},
        {"wide_model/ue8m0", wide_model, NULL, NULL, (void *)(uintptr_t) "--seed 3 --ue8m0"},
    };
    return cmocka_run_group_tests_name("model-synth", tests, make_scratch, remove_scratch);
}
