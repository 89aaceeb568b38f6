/* compare.c: looks every value up in the goldens as the engine hands it over. */
#include "tests/golden/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine/rng.h"

struct forced {
    const struct goldens *goldens;
    const char *prompt;
    const struct model_config *config;
    const int32_t *ids;
    uint32_t count;
    const struct comparison *base;
    struct comparison *c;
};

double distance_relative(const struct distance *d)
{
    return d->values ? sqrt(d->difference / d->reference) : 0.0;
}

static void add(struct distance *d, const float *got, const float *want, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        double x = (double)got[i] - (double)want[i];
        d->difference += x * x;
        d->reference += (double)want[i] * (double)want[i];
    }
    d->values += n;
}

/* Index of `value` in an I32 tensor, -1: not there. */
static int64_t index_of(const struct golden *t, uint32_t value)
{
    for (uint64_t i = 0; t && i < t->count; i++)
        if ((uint32_t)t->i[i] == value) return (int64_t)i;
    return -1;
}

/* Rows that fp32 rounding may decide either way: the scores at the threshold are a few units in the last
 * place apart (scores of size 3 carry errors of about 1e-5). Exactly equal scores have a rule and are
 * compared. */
static bool undecided(const struct forced *f, uint32_t row)
{
    const struct golden *gap = goldens_find(f->goldens, "%s.index_row_min_gap", f->prompt);
    uint32_t first = f->config->index_topk;
    if (!gap || row < first || row - first >= gap->count) return false;
    return gap->f[row - first] > 0.0f && gap->f[row - first] < 4e-5f;
}

/* ---- logits ---- */

/* The golden's largest logit may be ours by a hair less than another one. */
static bool argmax_agrees(const float *logits, uint32_t vocab, int32_t golden)
{
    float top = logits[golden];
    for (uint32_t v = 0; v < vocab; v++)
        if (logits[v] > top + 2e-3f) return false;
    return true;
}

static double log_probability(const float *logits, uint32_t vocab, int32_t id)
{
    double top = (double)logits[0], sum = 0.0;
    for (uint32_t v = 1; v < vocab; v++) top = fmax(top, (double)logits[v]);
    for (uint32_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - top);
    return (double)logits[id] - top - log(sum);
}

static void on_row(void *ctx, uint32_t position, const float *logits)
{
    struct forced *f = ctx;
    uint32_t vocab = f->config->vocab_size;
    const struct golden *t = goldens_find(f->goldens, "%s.logits", f->prompt);
    int64_t row = index_of(goldens_find(f->goldens, "%s.logits_rows", f->prompt), position);
    bool left_out = f->base && f->base->choices[position] != f->c->choices[position];
    if (row >= 0 && left_out)
        f->c->left_out++;
    else if (row >= 0)
        add(&f->c->logits, logits, t->f + (uint64_t)row * vocab, vocab);
    if (undecided(f, position)) return;
    t = goldens_find(f->goldens, "%s.argmax", f->prompt);
    f->c->argmax_rows++;
    f->c->argmax_wrong += !argmax_agrees(logits, vocab, t->i[position]);
    if (position + 1 == f->count) return;
    t = goldens_find(f->goldens, "%s.next_logprob", f->prompt);
    double x = fabs(log_probability(logits, vocab, f->ids[position + 1]) - (double)t->f[position]);
    f->c->next_logprob_max = fmax(f->c->next_logprob_max, x);
}

static void on_mtp_row(void *ctx, uint32_t position, const float *logits)
{
    struct forced *f = ctx;
    uint32_t vocab = f->config->vocab_size;
    const struct golden *t = goldens_find(f->goldens, "%s.mtp_logits", f->prompt);
    int64_t row = index_of(goldens_find(f->goldens, "%s.mtp_rows", f->prompt), position);
    if (row >= 0) {
        const float *want = t->f + (uint64_t)row * vocab;
        add(&f->c->mtp_logits, logits, want, vocab);
        for (uint32_t v = 0; v < vocab; v++)
            f->c->mtp_logits_max = fmax(f->c->mtp_logits_max, fabs((double)logits[v] - (double)want[v]));
    }
    if (undecided(f, position)) return;
    t = goldens_find(f->goldens, "%s.mtp_argmax", f->prompt);
    f->c->mtp_argmax_rows++;
    f->c->mtp_argmax_wrong += !argmax_agrees(logits, vocab, t->i[position]);
}

/* ---- what the probe shows ---- */

/* Row `position` of layer index `outer` of tensor (outer, rows, n) or (rows, n); NULL: the goldens lack it.
 */
static const struct golden *find_row(const struct forced *f, const char *name, uint64_t outer, uint64_t row,
                                     size_t n, uint64_t *at)
{
    const struct golden *t = goldens_find(f->goldens, "%s.%s", f->prompt, name);
    if (!t || row >= t->shape[t->dims - 2]) return NULL;
    assert_int_equal(t->shape[t->dims - 1], n);
    *at = (outer * t->shape[t->dims - 2] + row) * n;
    return t;
}

static void see_router(struct forced *f, const char *name, uint64_t outer, uint32_t position,
                       const float *weights, const int32_t *ids, size_t n)
{
    uint64_t at;
    const struct golden *t = find_row(f, name, outer, position, n, &at);
    if (!t) return;
    if (weights) {
        add(&f->c->router_weights, weights, t->f + at, n);
        return;
    }
    f->c->router_rows++;
    f->c->router_wrong += memcmp(ids, t->i + at, n * sizeof *ids) != 0;
}

static void see_index(struct forced *f, uint32_t layer, uint32_t position, const float *scores,
                      const int32_t *topk, size_t n)
{
    int64_t row = index_of(goldens_find(f->goldens, "%s.index_rows", f->prompt), position);
    if (row < 0 || layer >= f->config->layers) return;
    if (scores) {
        const struct golden *t = goldens_find(f->goldens, "%s.index_scores", f->prompt);
        add(&f->c->index_scores, scores, t->f + ((uint64_t)layer * t->shape[1] + (uint64_t)row) * t->shape[2],
            n);
        return;
    }
    uint64_t at;
    const struct golden *t = find_row(f, "index_topk", layer, (uint64_t)row, n, &at);
    f->c->index_rows++;
    f->c->index_wrong += memcmp(topk, t->i + at, n * sizeof *topk) != 0;
}

static void note_choice(struct forced *f, uint32_t position, const int32_t *ids, size_t n)
{
    uint64_t *hash = &f->c->choices[position];
    for (size_t i = 0; ids && i < n; i++) *hash = rng_mix(*hash + (uint64_t)ids[i] + 1);
}

static void on_probe(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *x,
                     const int32_t *ids, size_t n)
{
    struct forced *f = ctx;
    uint64_t at;
    const struct golden *t;
    if (strcmp(name, "hidden") == 0) {
        t = find_row(f, name, layer, position, n, &at);
        if (t) add(&f->c->hidden, x, t->f + at, n);
    } else if (strcmp(name, "final_norm") == 0) {
        t = find_row(f, name, 0, position, n, &at);
        if (t) add(&f->c->final_norm, x, t->f + at, n);
    } else if (strcmp(name, "mtp_hidden") == 0) {
        t = find_row(f, name, 0, position, n, &at);
        if (t) add(&f->c->mtp_hidden, x, t->f + at, n);
    } else if (strncmp(name, "mtp_router_", 11) == 0) {
        see_router(f, name, 0, position, x, ids, n);
    } else if (strncmp(name, "router_", 7) == 0) {
        note_choice(f, position, ids, n);
        int64_t outer = index_of(goldens_find(f->goldens, "%s.router_layers", f->prompt), layer);
        if (outer >= 0) see_router(f, name, (uint64_t)outer, position, x, ids, n);
    } else if (strncmp(name, "index_", 6) == 0) {
        if (layer < f->config->layers) note_choice(f, position, ids, n);
        see_index(f, layer, position, x, ids, n);
    } else {
        fail_msg("the probe shows '%s'", name);
    }
}

/* ---- runs ---- */

struct engine *compare_open(const char *dir, const struct engine_options *o)
{
    struct engine_options options = *o;
    options.model_dir = dir;
    struct engine *e = NULL;
    struct error err = {""};
    if (engine_open(&e, &options, &err)) fail_msg("%s: %s", dir, err.text);
    return e;
}

static const struct golden *must_find(const struct goldens *g, const char *prompt, const char *name)
{
    const struct golden *t = goldens_find(g, "%s.%s", prompt, name);
    if (!t) {
        fail_msg("no golden %s.%s", prompt, name);
        abort();
    }
    return t;
}

void compare_forced(struct engine *e, const struct goldens *g, const char *prompt,
                    const struct comparison *base, struct comparison *out)
{
    const struct golden *ids = must_find(g, prompt, "ids"), *greedy = must_find(g, prompt, "greedy");
    uint32_t count = (uint32_t)(ids->count + greedy->count);
    int32_t *all = malloc(count * sizeof *all);
    memcpy(all, ids->i, ids->count * sizeof *all);
    memcpy(all + ids->count, greedy->i, greedy->count * sizeof *all);
    struct forced f = {.goldens = g,
                       .prompt = prompt,
                       .config = &engine_model(e)->config,
                       .ids = all,
                       .count = count,
                       .base = base,
                       .c = out};
    assert_true(count <= COMPARE_ROWS);
    *out = (struct comparison){.left_out = 0};
    const struct backend_probe probe = {on_probe, &f};
    const struct engine_rows rows = {.row = on_row, .mtp_row = on_mtp_row, .ctx = &f};
    struct backend *b = engine_backend(e);
    struct error err = {""};
    b->ops->set_probe(b, &probe);
    if (engine_evaluate(e, all, count, 0, &rows, &err)) fail_msg("%s: %s", prompt, err.text);
    b->ops->set_probe(b, NULL);
    free(all);
}

struct tokens {
    const struct golden *want;
    const char *prompt;
    uint32_t count;
};

static bool on_token(void *ctx, const struct generated *t)
{
    struct tokens *k = ctx;
    if (t->id != k->want->i[t->index])
        fail_msg("%s: token %u is %d, golden %d", k->prompt, t->index, t->id, k->want->i[t->index]);
    k->count++;
    return true;
}

struct generation_result compare_greedy(struct engine *e, const struct goldens *g, const char *prompt,
                                        bool ignore_eos)
{
    const struct golden *ids = must_find(g, prompt, "ids");
    struct tokens k = {must_find(g, prompt, "greedy"), prompt, 0};
    const struct generation_request r = {.prompt = ids->i,
                                         .prompt_count = (uint32_t)ids->count,
                                         .max_tokens = (uint32_t)k.want->count,
                                         .ignore_eos = ignore_eos,
                                         .sampling = SAMPLING_GREEDY,
                                         .on_token = on_token,
                                         .ctx = &k};
    struct generation *run = NULL;
    struct error err = {""};
    if (engine_start(e, &run, &r, &err)) fail_msg("%s: %s", prompt, err.text);
    while (engine_step(e)) continue;
    struct generation_result result = *generation_result(run);
    generation_free(run);
    if (result.reason == FINISH_ERROR) fail_msg("%s: %s", prompt, result.error.text);
    assert_int_equal(k.count, k.want->count);
    return result;
}
