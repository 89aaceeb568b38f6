// flock_test.c: local flocks on real checkpoints: right sums, and the same bits from every flock.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/flock/flock.h"
#include "host/flock/spec.h"
#include "tests/flock/moe_reference.h"

#define MAX_TOKENS 24u
#define LANES 3u

static const char *const models[] = {"tests/goldens/v32-tiny", "tests/goldens/v3-tiny", "models/duckling",
                                     NULL /* the synthetic one */};
#define MODELS (sizeof models / sizeof *models)
#define SYNTH 3

static char synth_dir[] = "/tmp/duckd-flock-XXXXXX";
static struct model model[MODELS];
static struct pool *pool[3]; // of 1 and 2 threads

static int shell(const char *format, const char *a, const char *b)
{
    char command[512];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

static int open_all(void **state)
{
    (void)state;
    if (!mkdtemp(synth_dir)) return -1;
    // One dense and one MoE layer are enough to have all 32 ducks work.
    if (shell("sed '/num_hidden_layers/s/3/2/;/num_nextn/s/1/0/' configs/synth-2048.json >%s/small.json%s",
              synth_dir, ""))
        return -1;
    if (shell("%1$s/synth-model --config %2$s/small.json --out %2$s --seed 5 2>/dev/null", BINARY_DIR,
              synth_dir))
        return -1;
    struct error err;
    for (unsigned i = 0; i < MODELS; i++) {
        if (model_open(&model[i], models[i] ? models[i] : synth_dir, &err) != 0) {
            print_error("%s\n", err.text);
            return -1;
        }
    }
    return pool_open(&pool[1], 1, NULL) || pool_open(&pool[2], 2, NULL);
}

static int close_all(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MODELS; i++) model_close(&model[i]);
    pool_close(pool[1]);
    pool_close(pool[2]);
    return shell("rm -r %s%s", synth_dir, "");
}

static uint64_t rng = 3;

static double uniform(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng >> 11) * 0x1p-53;
}

/* A step with memory of its own. */
static struct mlp_step make_step(const struct model *m, uint32_t layer, uint32_t tokens)
{
    const struct model_config *c = &m->config;
    uint32_t top_k = model_layer_is_dense(c, layer) ? 0 : c->top_k;
    float *x = calloc((size_t)tokens * c->hidden_size, sizeof *x);
    int32_t *ids = calloc((size_t)tokens * top_k + 1, sizeof *ids);
    float *weights = calloc((size_t)tokens * top_k + 1, sizeof *weights);
    for (size_t i = 0; i < (size_t)tokens * c->hidden_size; i++) x[i] = (float)(2 * uniform() - 1);
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t k = 0;
        for (uint32_t e = 0; k < top_k; e++) { // k of the experts, ascending
            if (uniform() * (c->experts - e) >= top_k - k) continue;
            ids[(size_t)t * top_k + k] = (int32_t)e;
            weights[(size_t)t * top_k + k++] = (float)(0.1 + uniform());
        }
    }
    return (struct mlp_step){.layer = layer,
                             .tokens = tokens,
                             .top_k = top_k,
                             .x = x,
                             .ids = ids,
                             .weights = weights,
                             .y = calloc((size_t)tokens * c->hidden_size, sizeof(float))};
}

static void free_step(struct mlp_step *s)
{
    free((void *)s->x);
    free((void *)s->ids);
    free((void *)s->weights);
    free(s->y);
}

/* flock_open() of a specification's text; the flock has it afterwards. */
static int open_text(struct flock **f, const char *text, struct flock_options *o, struct error *err)
{
    struct flock_spec spec;
    if (flock_spec_read(&spec, text, err) != 0) fail_msg("%s", err->text);
    o->spec = &spec;
    int rc = flock_open(f, o, err);
    assert_null(spec.duck);
    return rc;
}

static struct flock *open_flock(const struct model *m, const char *text, unsigned threads,
                                enum wire_dtype activation, enum wire_dtype result)
{
    struct flock_options o = {.model = m,
                              .pool = pool[threads],
                              .lanes = LANES,
                              .max_tokens = MAX_TOKENS,
                              .mtp = true,
                              .activation = activation,
                              .result = result};
    struct flock *f;
    struct error err;
    if (open_text(&f, text, &o, &err) != 0) fail_msg("%s", err.text);
    return f;
}

static void compute(struct flock *f, const struct mlp_step *step)
{
    struct error err;
    if (flock_submit(f, 1, step, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(flock_poll(f, 1, true, &err), 1);
}

static uint32_t banks(const struct model *m)
{
    return m->config.layers + m->config.mtp_layers;
}

static void equals_plain_double_precision(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * MODELS; i++) { // the second time round without shared experts
        struct model m = model[i % MODELS];
        if (i >= MODELS) m.config.shared_experts = 0;
        struct flock *f = open_flock(&m, i < MODELS ? "local" : "local:3", 2, WIRE_F32, WIRE_F32);
        uint32_t hidden = m.config.hidden_size;
        double worst = 0;
        for (uint32_t layer = 0; layer < banks(&m); layer++) {
            struct mlp_step s = make_step(&m, layer, 3);
            double *want = calloc((size_t)s.tokens * hidden, sizeof *want);
            moe_reference(&m, &s, want);
            compute(f, &s);
            double off = relative_l2(s.y, want, (size_t)s.tokens * hidden);
            if (!(off <= 1e-5)) fail_msg("%s layer %u: relative L2 %g", m.dir, layer, off);
            if (off > worst) worst = off;
            free(want);
            free_step(&s);
        }
        print_message("%s, %u shared: worst relative L2 %.2g\n", m.dir, m.config.shared_experts, worst);
        flock_close(f);
    }
}

static const char unlike_json[] =
    "{\"transport\": \"local\", \"ducks\": [{\"weight\": 1}, {\"weight\": 0.3}, {\"weight\": 2.2},"
    " {\"weight\": 1.7, \"memory_gb\": 0.0005}]}";

/* Steps of all layers, one of 1 and one of 11 tokens, through one flock after another: equal bits. */
static void check_equal_bits(const struct model *m, enum wire_dtype activation, bool some, const char *unlike)
{
    const char *const specs[] = {"local:1", "local:2", "local:3", "local:5", "local:7", "local:32", unlike};
    uint32_t count = 2 * banks(m);
    size_t hidden = m->config.hidden_size;
    struct mlp_step *step = calloc(count, sizeof *step);
    float **want = calloc(count, sizeof *want);
    for (uint32_t i = 0; i < count; i++) step[i] = make_step(m, i / 2, i % 2 ? 11 : 1);
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        if (some && (s == 1 || s == 2 || s == 3)) continue;
        struct flock *f = open_flock(m, specs[s], s % 3 ? 2 : 1, activation, WIRE_F32);
        for (uint32_t i = 0; i < count; i++) {
            size_t bytes = step[i].tokens * hidden * sizeof(float);
            compute(f, &step[i]);
            if (s == 0) {
                want[i] = malloc(bytes);
                memcpy(want[i], step[i].y, bytes);
            } else if (memcmp(want[i], step[i].y, bytes) != 0) {
                fail_msg("%s layer %u, %s: other bits than from one duck", m->dir, i / 2, specs[s]);
            }
            memset(step[i].y, 0xff, bytes);
        }
        flock_close(f);
    }
    for (uint32_t i = 0; i < count; i++) {
        free(want[i]);
        free_step(&step[i]);
    }
    free(want);
    free(step);
}

static void same_bits_from_every_flock(void **state)
{
    (void)state;
    char unlike[] = "/tmp/duckd-ducks-XXXXXX";
    int fd = mkstemp(unlike);
    assert_int_equal(write(fd, unlike_json, sizeof unlike_json - 1), sizeof unlike_json - 1);
    close(fd);
    for (unsigned i = 0; i < MODELS; i++) {
        bool large = model[i].config.experts * model[i].config.expert_width > 2048; // takes time to load
        check_equal_bits(&model[i], WIRE_F32, large, unlike);
        if (large) continue;
        check_equal_bits(&model[i], WIRE_BF16, true, unlike);
        check_equal_bits(&model[i], WIRE_FP8, true, unlike);
    }
    unlink(unlike);
}

static void tokens_alone_or_together(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SYNTH; i++) {
        const struct model *m = &model[i];
        size_t hidden = m->config.hidden_size;
        struct flock *f = open_flock(m, "local:3", 2, WIRE_BF16, WIRE_F32);
        struct mlp_step all = make_step(m, m->config.layers - 1, MAX_TOKENS);
        compute(f, &all);
        for (uint32_t t = 0; t < all.tokens; t++) {
            float y[1024];
            assert_true(hidden <= 1024);
            struct mlp_step one = all;
            one.tokens = 1;
            one.x += t * hidden;
            one.ids += (size_t)t * all.top_k;
            one.weights += (size_t)t * all.top_k;
            one.y = y;
            compute(f, &one);
            assert_memory_equal(y, all.y + t * hidden, hidden * sizeof *y);
        }
        free_step(&all);
        flock_close(f);
    }
}

static void results_as_bf16(void **state)
{
    (void)state;
    const struct model *m = &model[0];
    size_t n = 2 * m->config.hidden_size;
    struct mlp_step s = make_step(m, 1, 2);
    double *want = calloc(n, sizeof *want);
    moe_reference(m, &s, want);
    static const char *const specs[] = {"local", "local:3"};
    for (int i = 0; i < 2; i++) {
        float *first = NULL;
        for (unsigned threads = 1; threads <= 2; threads++) {
            struct flock *f = open_flock(m, specs[i], threads, WIRE_F32, WIRE_BF16);
            compute(f, &s);
            double off = relative_l2(s.y, want, n);
            assert_true(off > 1e-4 && off < 4e-3); // rounded, and no more than that
            if (!first) {
                first = malloc(n * sizeof *first);
                memcpy(first, s.y, n * sizeof *first);
            }
            assert_memory_equal(first, s.y, n * sizeof *first);
            flock_close(f);
        }
        free(first);
    }
    free(want);
    free_step(&s);
}

static void activations_are_rounded(void **state)
{
    (void)state;
    static const struct {
        enum wire_dtype dtype;
        double low, high;
    } cases[] = {{WIRE_BF16, 2e-4, 5e-3}, {WIRE_FP8, 5e-3, 8e-2}};
    const struct model *m = &model[0];
    size_t n = 2 * m->config.hidden_size;
    struct mlp_step s = make_step(m, 1, 2);
    double *want = calloc(n, sizeof *want);
    moe_reference(m, &s, want);
    for (int i = 0; i < 2; i++) {
        struct flock *f = open_flock(m, "local:2", 1, cases[i].dtype, WIRE_F32);
        compute(f, &s);
        double off = relative_l2(s.y, want, n);
        if (off < cases[i].low || off > cases[i].high)
            fail_msg("dtype %d: relative L2 %g", cases[i].dtype, off);
        flock_close(f);
    }
    free(want);
    free_step(&s);
}

static void thirty_two_ducks_all_work(void **state)
{
    (void)state;
    const struct model *m = &model[SYNTH];
    struct flock *f = open_flock(m, "local:32", 2, WIRE_BF16, WIRE_F32);
    struct mlp_step s = make_step(m, 1, 1);
    compute(f, &s);
    assert_int_equal(flock_ducks(f), 32);
    uint64_t bytes = 0, slices = 0;
    for (uint32_t d = 0; d < 32; d++) {
        struct duck_stats st;
        flock_duck_stats(f, d, &st);
        char name[16];
        snprintf(name, sizeof name, "local-%u", d);
        assert_string_equal(st.name, name);
        assert_int_equal(st.steps, 1);
        assert_int_equal(st.expert_reads, m->config.top_k + 1);
        assert_true(st.expert_bytes > 0 && st.weight_bytes > st.expert_bytes && st.compute_ns > 0);
        bytes += st.expert_bytes;
        slices += st.slices;
    }
    assert_int_equal(slices, 256 * banks(m));
    // 3 matrices x (hidden x 2048) weights of 9 bits, and the padding of short rows
    uint64_t weights = (uint64_t)(m->config.top_k + 1) * 3 * m->config.hidden_size * 2048;
    assert_true(bytes >= weights * 9 / 8 && bytes < weights * 9 / 8 * 11 / 10);
    free_step(&s);
    flock_close(f);
}

static void lanes_take_turns(void **state)
{
    (void)state;
    const struct model *m = &model[2];
    struct flock *f = open_flock(m, "local:2", 2, WIRE_F32, WIRE_F32);
    size_t bytes = 2 * m->config.hidden_size * sizeof(float);
    struct mlp_step s[LANES];
    float *want[LANES];
    struct error err;
    for (uint32_t i = 0; i < LANES; i++) {
        s[i] = make_step(m, i + 1, 2);
        compute(f, &s[i]);
        want[i] = malloc(bytes);
        memcpy(want[i], s[i].y, bytes);
        memset(s[i].y, 0xff, bytes);
    }
    for (uint32_t i = 0; i < LANES; i++) assert_int_equal(flock_submit(f, i, &s[i], &err), 0);
    assert_int_equal(flock_submit(f, 1, &s[1], &err), -EBUSY);
    assert_int_equal(flock_poll(f, 2, false, &err), 0); // computes lane 0, which came first
    assert_memory_equal(s[0].y, want[0], bytes);
    assert_int_equal(flock_poll(f, 2, true, &err), 1);
    assert_int_equal(flock_poll(f, 0, false, &err), 1);
    assert_int_equal(flock_poll(f, 1, false, &err), 1);
    for (uint32_t i = 0; i < LANES; i++) assert_memory_equal(s[i].y, want[i], bytes);
    assert_int_equal(flock_poll(f, 1, true, &err), -EINVAL); // nothing left
    for (uint32_t i = 0; i < LANES; i++) {
        free(want[i]);
        free_step(&s[i]);
    }
    flock_close(f);
}

static void impossible_steps_are_refused(void **state)
{
    (void)state;
    const struct model *m = &model[1]; // 12 experts, 3 chosen, layers 0 .. 3
    struct flock *f = open_flock(m, "local", 1, WIRE_F32, WIRE_F32);
    struct mlp_step good = make_step(m, 1, 1);
    static const int32_t beyond[] = {0, 1, 12}, negative[] = {-1, 1, 2}, falling[] = {2, 1, 3},
                         twice[] = {1, 1, 2};
    struct {
        struct mlp_step step;
        uint32_t lane;
        const char *message;
    } cases[] = {
        {good, LANES, "lane 3 of 3"},
        {good, 0, "layer 4: the flock holds layers 0 .. 3"},
        {good, 0, "layer 1: 0 tokens in a step, 1 .. 24 are possible"},
        {good, 0, "layer 1: 25 tokens in a step, 1 .. 24 are possible"},
        {good, 0, "layer 0: 3 experts a token, at most 0 are possible"},
        {good, 0, "layer 1: 4 experts a token, at most 3 are possible"},
        {good, 0, "layer 1, token 0: expert 12 of 12"},
        {good, 0, "layer 1, token 0: expert -1 of 12"},
        {good, 0, "layer 1, token 0: expert 1 after 2, they must ascend"},
        {good, 0, "layer 1, token 0: expert 1 after 1, they must ascend"},
    };
    cases[1].step.layer = 4;
    cases[2].step.tokens = 0;
    cases[3].step.tokens = 25;
    cases[4].step.layer = 0;
    cases[5].step.top_k = 4;
    cases[6].step.ids = beyond;
    cases[7].step.ids = negative;
    cases[8].step.ids = falling;
    cases[9].step.ids = twice;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = {0};
        assert_int_equal(flock_submit(f, cases[i].lane, &cases[i].step, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].message);
    }
    compute(f, &good);
    free_step(&good);
    flock_close(f);
}

/* A copy of the model in memory order, with one byte of one tensor changed. */
static void change_byte(const char *dir, const struct model *original, const char *tensor, uint64_t offset,
                        uint8_t value)
{
    const struct tensor *t = checkpoint_find(original->checkpoint, tensor);
    assert_non_null(t);
    const char *name = strrchr(checkpoint_file(original->checkpoint, t->file), '/') + 1;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->file_offset + offset), SEEK_SET), 0);
    fputc(value, f);
    assert_int_equal(fclose(f), 0);
}

static int open_changed(struct model *changed, struct flock **f, const char *dir, struct error *err)
{
    assert_int_equal(model_open(changed, dir, err), 0);
    struct flock_options o = {.model = changed, .pool = pool[2], .lanes = 1, .max_tokens = 1, .mtp = true};
    return open_text(f, "local:3", &o, err);
}

static void one_weight_counts(void **state)
{
    (void)state;
    char dir[] = "/tmp/duckd-changed-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_int_equal(shell("cp %s/*.json %s/", models[0], dir), 0);
    assert_int_equal(shell("cp %s/*.safetensors %s/", models[0], dir), 0);
    const struct model *m = &model[0];
    struct mlp_step s = make_step(m, 2, 1);
    struct flock *f = open_flock(m, "local:3", 1, WIRE_F32, WIRE_F32);
    compute(f, &s);
    flock_close(f);
    float before[1024];
    size_t bytes = m->config.hidden_size * sizeof(float);
    memcpy(before, s.y, bytes);

    char tensor[128];
    snprintf(tensor, sizeof tensor, "model.layers.2.mlp.experts.%d.down_proj.weight", s.ids[1]);
    const struct tensor *t = checkpoint_find(m->checkpoint, tensor);
    uint64_t at = 5 * t->shape[1] + 77; // row 5
    change_byte(dir, m, tensor, at, ((const uint8_t *)t->data)[at] ^ 0x80);
    struct model changed;
    struct error err = {0};
    assert_int_equal(open_changed(&changed, &f, dir, &err), 0);
    struct mlp_step again = s;
    assert_int_equal(flock_submit(f, 0, &again, &err), 0);
    assert_int_equal(flock_poll(f, 0, true, &err), 1);
    for (uint32_t i = 0; i < m->config.hidden_size; i++) {
        if (i == 5) {
            assert_true(s.y[i] != before[i]);
        } else {
            assert_memory_equal(&s.y[i], &before[i], sizeof *before);
        }
    }
    flock_close(f);
    model_close(&changed);

    change_byte(dir, m, tensor, at, 0x7f);
    assert_int_equal(open_changed(&changed, &f, dir, &err), -EINVAL);
    char message[256];
    snprintf(message, sizeof message,
             ".safetensors: %s: element [5, 77] is not a number that experts can be computed with", tensor);
    if (!strstr(err.text, message)) fail_msg("got '%s', want '%s'", err.text, message);
    model_close(&changed);

    change_byte(dir, m, tensor, at, 0);
    snprintf(tensor, sizeof tensor, "model.layers.1.mlp.shared_experts.up_proj.weight_scale_inv");
    change_byte(dir, m, tensor, 4 + 3, 0); // scale 1 becomes subnormal
    change_byte(dir, m, tensor, 4 + 2, 1);
    assert_int_equal(open_changed(&changed, &f, dir, &err), -EINVAL);
    static const char wanted[] =
        ".safetensors: model.layers.1.mlp.shared_experts.up_proj.weight: scale 1 is 9.";
    if (!strstr(err.text, wanted)) fail_msg("got '%s', want '%s'", err.text, wanted);
    model_close(&changed);
    free_step(&s);
    assert_int_equal(shell("rm -r %s%s", dir, ""), 0);
}

/* A checkpoint of bf16 has no e4m3 to keep: refused before anything is loaded, in one line. */
static void only_e4m3_is_kept_as_e4m3(void **state)
{
    (void)state;
    char dir[] = "/tmp/duckd-bf16-XXXXXX";
    struct model plain;
    struct error err = {0};
    struct flock *f = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(shell("sed '/quantization_config/,/}/d' %s/small.json >%s/small.json", synth_dir, dir),
                     0);
    assert_int_equal(
        shell("%1$s/synth-model --config %2$s/small.json --out %2$s --seed 5 2>/dev/null", BINARY_DIR, dir),
        0);
    assert_int_equal(model_open(&plain, dir, &err), 0);
    struct flock_options o = {.model = &plain, .pool = pool[2], .lanes = 1, .max_tokens = 1};
    o.expert_format = FP9_E4M3;
    assert_int_equal(open_text(&f, "local:3", &o, &err), -EINVAL);
    assert_null(f);
    static const char wanted[] = "/model.safetensors: model.layers.0.mlp.down_proj.weight is BF16: ducks can "
                                 "keep experts as e4m3 (--expert-format e4m3) only "
                                 "if all of the checkpoint's are";
    if (!strstr(err.text, wanted)) fail_msg("got '%s', want '%s'", err.text, wanted);
    o.expert_format = FP9_FP9;
    assert_int_equal(open_text(&f, "local:3", &o, &err), 0);
    flock_close(f);
    model_close(&plain);
    assert_int_equal(shell("rm -r %s%s", dir, ""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_plain_double_precision),
        cmocka_unit_test(same_bits_from_every_flock),
        cmocka_unit_test(tokens_alone_or_together),
        cmocka_unit_test(results_as_bf16),
        cmocka_unit_test(activations_are_rounded),
        cmocka_unit_test(thirty_two_ducks_all_work),
        cmocka_unit_test(lanes_take_turns),
        cmocka_unit_test(impossible_steps_are_refused),
        cmocka_unit_test(one_weight_counts),
        cmocka_unit_test(only_e4m3_is_kept_as_e4m3),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
