/* cuda_golden_test.c: the goldens through the CUDA backend: logits, hidden states, router, indexer, MTP,
 * tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/bed.h"
#include "tests/golden/goldens.h"

#define CHUNK 64u

static const struct backend_ops *ops;

struct model_case {
    struct bed_case bed;
    const char *goldens;
    double limit;      // relative L2 of logits and hidden states
    float sure_margin; // tokens are compared where the reference's margin is larger
    const char *prompts[13];
};

#define DUCKLING_PROMPTS                                                                                     \
    {                                                                                                        \
        "short", "hello", "command", "think", "story", "nothink", "name", "turns", "system", "chinese",      \
            "long", "longer"                                                                                 \
    }

static const struct model_case cases[] = {
    {{"tests/goldens/v32-tiny", KV_F32, SHARED_FLOCK},
     "tests/goldens/v32-tiny/goldens",
     1e-3,
     0,
     {"short", "mid", "long"}},
    {{"tests/goldens/v3-tiny", KV_F32, SHARED_FLOCK},
     "tests/goldens/v3-tiny/goldens",
     1e-3,
     0,
     {"short", "mid"}},
    {{"models/duckling", KV_F32, SHARED_FLOCK}, "tests/goldens/duckling", 1e-3, 0, DUCKLING_PROMPTS},
    {{"tests/goldens/v32-tiny", KV_F32, SHARED_BACKEND},
     "tests/goldens/v32-tiny/goldens",
     1e-3,
     0,
     {"short", "mid", "long"}},
    {{"tests/goldens/v3-tiny", KV_F32, SHARED_BACKEND},
     "tests/goldens/v3-tiny/goldens",
     1e-3,
     0,
     {"short", "mid"}},
    {{"models/duckling", KV_F32, SHARED_BACKEND}, "tests/goldens/duckling", 1e-3, 0, DUCKLING_PROMPTS},
    {{"models/duckling", KV_BF16, SHARED_FLOCK}, "tests/goldens/duckling", 1e-2, 0.1f, DUCKLING_PROMPTS},
    {{"models/duckling", KV_BF16, SHARED_BACKEND}, "tests/goldens/duckling", 1e-2, 0.1f, DUCKLING_PROMPTS},
    {{"models/duckling", KV_FP8, SHARED_FLOCK},
     "tests/goldens/duckling",
     1e-1,
     0.5f,
     {"short", "command", "name"}},
};

static const struct golden *need(const struct goldens *g, const char *prompt, const char *name)
{
    const struct golden *t = goldens_find(g, "%s.%s", prompt, name);
    if (!t) fail_msg("no golden %s.%s", prompt, name);
    return t;
}

static const char *kv_name(enum kv_dtype kv)
{
    return kv == KV_F32 ? "f32" : kv == KV_BF16 ? "bf16" : "fp8";
}

static void near(const struct model_case *c, const char *prompt, const char *what, double error, double limit)
{
    print_message("%s %s%s %s: %s relative L2 %.2e (limit %.0e)\n", c->bed.dir, kv_name(c->bed.kv),
                  c->bed.shared == SHARED_BACKEND ? ", shared experts here," : "", prompt, what, error,
                  limit);
    if (!(error <= limit))
        fail_msg("%s %s: %s is off by %.3e, limit %.1e", c->bed.dir, prompt, what, error, limit);
}

/* Rows of `logits` that the last job holds: its row 0 is position `first`. */
static double logits_error(struct bed *bed, const struct golden *rows, const struct golden *logits,
                           uint32_t first, uint32_t n)
{
    const size_t vocab = bed->model.config.vocab_size;
    float *got = malloc(rows->count * vocab * sizeof *got),
          *want = malloc(rows->count * vocab * sizeof *want);
    size_t k = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const uint32_t row = (uint32_t)rows->i[i];
        if (row < first || row >= first + n) continue;
        memcpy(got + k * vocab, bed->b->ops->logits(bed->b, 0, row - first), vocab * sizeof *got);
        memcpy(want + k * vocab, logits->f + i * vocab, vocab * sizeof *want);
        k++;
    }
    if (k == 0) fail_msg("no golden row lies in %u .. %u", first, first + n - 1);
    const double e = relative_l2(got, want, k * vocab);
    free(got);
    free(want);
    return e;
}

/* The prompt in chunks, the MTP layer following each; then the golden tokens one by one. */
static void run_prompt(const struct model_case *c, struct bed *bed, const struct goldens *g,
                       const char *prompt)
{
    const struct golden *ids = need(g, prompt, "ids"), *greedy = need(g, prompt, "greedy");
    const struct golden *margin = need(g, prompt, "greedy_margin");
    const uint32_t count = (uint32_t)ids->count, vocab = bed->model.config.vocab_size;
    const backend_seq seq = bed_seq(bed, count + (uint32_t)greedy->count + 1);
    int32_t *next = malloc((count + 1) * sizeof *next);
    memcpy(next, ids->i, count * sizeof *next);
    next[count] = greedy->i[0];
    int32_t token = -1;
    for (uint32_t p = 0; p < count; p += CHUNK) {
        const uint32_t n = count - p < CHUNK ? count - p : CHUNK;
        const struct backend_job main = {.kind = BACKEND_MAIN,
                                         .seq = seq,
                                         .position = p,
                                         .tokens = n,
                                         .ids = next + p,
                                         .logits_from = p + n == count ? 0 : n};
        bed_run(bed, 0, &main);
        if (p + n == count) {
            near(c, prompt, "logits",
                 logits_error(bed, need(g, prompt, "logits_rows"), need(g, prompt, "logits"), p, n),
                 c->limit);
            token = argmax(bed->b->ops->logits(bed->b, 0, n - 1), vocab);
        }
        const struct backend_job mtp = {.kind = BACKEND_MTP,
                                        .seq = seq,
                                        .position = p,
                                        .tokens = n,
                                        .ids = next + p + 1,
                                        .logits_from = p + n == count ? 0 : n};
        bed_run(bed, 0, &mtp);
        if (p + n == count)
            near(c, prompt, "MTP logits",
                 logits_error(bed, need(g, prompt, "mtp_rows"), need(g, prompt, "mtp_logits"), p, n),
                 c->limit *
                     (strcmp(prompt, "long") ? 1 : 10)); // the long one has rows with tied index scores
    }
    uint32_t compared = 0;
    for (uint32_t i = 0; i < greedy->count; i++) {
        if (margin->f[i] > c->sure_margin) {
            compared++;
            if (token != greedy->i[i])
                fail_msg("%s %s: token %u is %d, reference %d (margin %g)", c->bed.dir, prompt, i, token,
                         greedy->i[i], (double)margin->f[i]);
        }
        const struct backend_job job = {.kind = BACKEND_MAIN,
                                        .seq = seq,
                                        .position = count + i,
                                        .tokens = 1,
                                        .ids = &greedy->i[i],
                                        .logits_from = 0};
        bed_run(bed, 0, &job);
        token = argmax(bed->b->ops->logits(bed->b, 0, 0), vocab);
    }
    print_message("%s %s %s: %u of %u tokens compared\n", c->bed.dir, kv_name(c->bed.kv), prompt, compared,
                  (uint32_t)greedy->count);
    free(next);
    bed->b->ops->seq_close(bed->b, seq);
}

static void test_prompts(void **state)
{
    const struct model_case *c = *state;
    struct error err = {""};
    struct goldens *g;
    struct bed bed;
    if (goldens_open(&g, c->goldens, &err)) fail_msg("%s", err.text);
    bed_open(&bed, ops, &c->bed, 1, CHUNK);
    for (size_t i = 0; c->prompts[i]; i++) run_prompt(c, &bed, g, c->prompts[i]);
    bed_close(&bed);
    goldens_close(g);
}

/* ---- intermediates of the prompt `short`, and the indexer's choice of the longer ones ---- */

struct probe_state {
    const struct goldens *g;
    const char *prompt;
    double worst, worst_mtp; // of hidden states
    uint32_t rows, routed, indexed;
};

static void compare_router(struct probe_state *s, const struct golden *ids, const struct golden *weights,
                           size_t at, const float *f, const int32_t *i, size_t n)
{
    if (i && memcmp(i, ids->i + at, n * sizeof *i)) fail_msg("%s: router ids differ", s->prompt);
    if (f && !(relative_l2(f, weights->f + at, n) < 1e-3)) fail_msg("%s: router weights differ", s->prompt);
    s->routed++;
}

static void on_row(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                   const int32_t *i, size_t n)
{
    struct probe_state *s = ctx;
    const struct golden *t = goldens_find(s->g, "%s.%s", s->prompt, name);
    if (!strcmp(name, "hidden") && t) {
        const double e = relative_l2(f, t->f + ((size_t)layer * t->shape[1] + position) * n, n);
        s->worst = e > s->worst ? e : s->worst;
        s->rows++;
    } else if ((!strcmp(name, "final_norm") || !strcmp(name, "mtp_hidden")) && t) {
        if (position >= t->shape[0]) return;
        const double e = relative_l2(f, t->f + (size_t)position * n, n);
        double *worst = name[0] == 'f' ? &s->worst : &s->worst_mtp;
        *worst = e > *worst ? e : *worst;
        s->rows++;
    } else if (!strncmp(name, "router_", 7) && t) {
        const struct golden *layers = need(s->g, s->prompt, "router_layers");
        for (size_t m = 0; m < layers->count; m++)
            if ((uint32_t)layers->i[m] == layer)
                compare_router(s, need(s->g, s->prompt, "router_ids"),
                               need(s->g, s->prompt, "router_weights"), (m * t->shape[1] + position) * n, f,
                               i, n);
    } else if (!strncmp(name, "mtp_router_", 11) && t && position < t->shape[0]) {
        compare_router(s, need(s->g, s->prompt, "mtp_router_ids"),
                       need(s->g, s->prompt, "mtp_router_weights"), position * n, f, i, n);
    } else if (!strcmp(name, "index_topk") && t) {
        const struct golden *rows = need(s->g, s->prompt, "index_rows"),
                            *gap = need(s->g, s->prompt, "index_gap");
        for (size_t r = 0; r < rows->count; r++) {
            if ((uint32_t)rows->i[r] != position) continue;
            const size_t at = layer * rows->count + r;
            const float g = gap->f[at];
            if (g != 0.0f && g < 1e-5f) continue; // rounding may swap two of these; exact ties may not
            if (memcmp(i, t->i + at * n, n * sizeof *i))
                fail_msg("%s: layer %u position %u: the indexer chose other positions (gap %g)", s->prompt,
                         layer, position, (double)g);
            s->indexed++;
        }
    }
}

static void probe_prompt(struct bed *bed, const struct goldens *g, const char *prompt)
{
    struct probe_state s = {.g = g, .prompt = prompt};
    const struct backend_probe probe = {on_row, &s};
    const struct golden *ids = need(g, prompt, "ids"), *greedy = need(g, prompt, "greedy");
    const uint32_t count = (uint32_t)ids->count;
    const backend_seq seq = bed_seq(bed, count + 1);
    int32_t *next = malloc((count + 1) * sizeof *next);
    memcpy(next, ids->i, count * sizeof *next);
    next[count] = greedy->i[0];
    bed->b->ops->set_probe(bed->b, &probe);
    for (uint32_t p = 0; p < count; p += CHUNK) {
        const uint32_t n = count - p < CHUNK ? count - p : CHUNK;
        const struct backend_job main = {
            .kind = BACKEND_MAIN, .seq = seq, .position = p, .tokens = n, .ids = next + p, .logits_from = n};
        const struct backend_job mtp = {.kind = BACKEND_MTP,
                                        .seq = seq,
                                        .position = p,
                                        .tokens = n,
                                        .ids = next + p + 1,
                                        .logits_from = n};
        bed_run(bed, 0, &main);
        bed_run(bed, 0, &mtp);
    }
    bed->b->ops->set_probe(bed->b, NULL);
    bed->b->ops->seq_close(bed->b, seq);
    free(next);
    print_message("%s: worst hidden state %.2e, MTP %.2e; %u rows, %u router rows, %u index rows\n", prompt,
                  s.worst, s.worst_mtp, s.rows, s.routed, s.indexed);
    if (!(s.worst <= 1e-3) || !(s.worst_mtp <= 1e-3)) fail_msg("%s: hidden states are off", prompt);
    if (!strcmp(prompt, "short") && (s.rows == 0 || s.routed == 0))
        fail_msg("%s: nothing was compared", prompt);
}

static void test_intermediates(void **state)
{
    (void)state;
    for (size_t m = 0; m < 6; m++) {
        struct error err = {""};
        struct goldens *g;
        struct bed bed;
        if (goldens_open(&g, cases[m].goldens, &err)) fail_msg("%s", err.text);
        bed_open(&bed, ops, &cases[m].bed, 1, CHUNK);
        for (size_t i = 0; cases[m].prompts[i]; i++) probe_prompt(&bed, g, cases[m].prompts[i]);
        bed_close(&bed);
        goldens_close(g);
    }
}

int main(void)
{
    ops = bed_backend();
    if (!ops) return BED_SKIPPED;
    struct CMUnitTest tests[sizeof cases / sizeof cases[0] + 1];
    const size_t n = sizeof cases / sizeof cases[0];
    tests[0] = (struct CMUnitTest){"intermediates", test_intermediates, NULL, NULL, NULL};
    for (size_t i = 0; i < n; i++)
        tests[i + 1] =
            (struct CMUnitTest){cases[i].bed.dir, test_prompts, NULL, NULL, (void *)(uintptr_t)&cases[i]};
    return _cmocka_run_group_tests("cuda-golden", tests, n + 1, NULL, NULL) != 0;
}
