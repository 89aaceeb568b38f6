/* golden_test.c: the whole CPU backend against goldens: prompt and greedy continuation are fed in chunks, and
 * everything the goldens hold is compared: hidden states, router, indexer, logits, MTP. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// cmocka.h wants these before it
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/backend/harness.h"
#include "tests/golden/goldens.h"

#define TOLERANCE 1e-4 // relative L2 of a row
/* MTP rows of a prompt with near-ties: they see every row that may have taken the other key. */
#define NEAR_TIE_MTP_TOLERANCE 1e-2

struct golden_case {
    const char *name, *model, *goldens, *prompt;
    uint32_t chunk;
};

struct run {
    struct house house;
    struct goldens *g;
    const struct golden_case *c;
    const struct golden *ids, *greedy;
    uint32_t prompt, total; // P, S
    int32_t *all;           // (S) ids, then greedy
    bool *near_tie;         // (S)
    bool near_ties;         // any
    unsigned compared;
};

static const struct golden *find(const struct run *r, const char *name)
{
    return goldens_find(r->g, "%s.%s", r->c->prompt, name);
}

static int row_of(const struct golden *rows, uint32_t position)
{
    for (uint32_t i = 0; rows && i < rows->count; i++)
        if (rows->i[i] == (int32_t)position) return (int)i;
    return -1;
}

static void compare_floats(struct run *r, const char *name, uint32_t layer, uint32_t position, const float *f,
                           const float *expected, size_t n)
{
    if (r->near_tie[position]) return;
    double e = relative_l2(f, expected, n);
    double most = r->near_ties && strncmp(name, "mtp_", 4) == 0 ? NEAR_TIE_MTP_TOLERANCE : TOLERANCE;
    if (!(e <= most))
        fail_msg("%s: %s of layer %u, position %u: relative error %g", r->c->name, name, layer, position, e);
    r->compared++;
}

static void compare_ints(struct run *r, const char *name, uint32_t layer, uint32_t position, const int32_t *i,
                         const int32_t *expected, size_t n)
{
    if (r->near_tie[position]) return;
    for (size_t k = 0; k < n; k++)
        if (i[k] != expected[k])
            fail_msg("%s: %s of layer %u, position %u: entry %zu is %d, expected %d", r->c->name, name, layer,
                     position, k, i[k], expected[k]);
    r->compared++;
}

/* Index scores are sums with cancellation: compared against the row's largest. */
static void compare_scores(struct run *r, uint32_t layer, uint32_t position, const float *f,
                           const float *expected)
{
    float largest = 0;
    for (uint32_t k = 0; k <= position; k++) largest = fmaxf(largest, fabsf(expected[k]));
    for (uint32_t k = 0; k <= position; k++)
        if (!(fabsf(f[k] - expected[k]) <= 2e-5f * largest))
            fail_msg("%s: index score of layer %u, row %u, key %u is %g, expected %g", r->c->name, layer,
                     position, k, (double)f[k], (double)expected[k]);
    r->compared++;
}

static void on_row(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                   const int32_t *i, size_t n)
{
    struct run *r = ctx;
    const struct golden *g;
    uint32_t layers = r->house.model.config.layers;
    if (strncmp(name, "index_", 6) == 0) {
        int row = row_of(find(r, "index_rows"), position);
        if (row < 0 || layer == layers) return; // the goldens have no index values of the MTP layer
        g = find(r, name);
        size_t at = (layer * g->shape[1] + (size_t)row) * g->shape[2];
        if (f)
            compare_scores(r, layer, position, f, g->f + at);
        else
            compare_ints(r, name, layer, position, i, g->i + at, n);
        return;
    }
    if (!(g = find(r, name))) return;
    if (strncmp(name, "router_", 7) == 0) {
        int which = row_of(find(r, "router_layers"), layer);
        assert_true(which >= 0);
        if (position >= g->shape[1]) return;
        size_t at = ((size_t)which * g->shape[1] + position) * n;
        if (f)
            compare_floats(r, name, layer, position, f, g->f + at, n);
        else
            compare_ints(r, name, layer, position, i, g->i + at, n);
        return;
    }
    // hidden is (layers + 1, P, D), the others (P, n)
    uint64_t rows = g->shape[g->dims - 2];
    if (position >= rows) return;
    size_t at = ((g->dims == 3 ? layer * rows : 0) + position) * n;
    if (f)
        compare_floats(r, name, layer, position, f, g->f + at, n);
    else
        compare_ints(r, name, layer, position, i, g->i + at, n);
}

static void compare_logits(struct run *r, const char *prefix, uint32_t position, const float *logits)
{
    uint32_t vocab = r->house.model.config.vocab_size;
    char name[64];
    if (r->near_tie[position]) return;
    int row = row_of(find(r, *prefix ? "mtp_rows" : "logits_rows"), position);
    snprintf(name, sizeof name, "%slogits", prefix);
    if (row >= 0) compare_floats(r, name, 0, position, logits, find(r, name)->f + (size_t)row * vocab, vocab);
    snprintf(name, sizeof name, "%sargmax", prefix);
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    const struct golden *g = find(r, name);
    if (position >= g->count) return;
    int32_t expected = g->i[position];
    // where two logits are equal within what fp32 can tell, either may be the largest
    if ((int32_t)best != expected && !(logits[best] - logits[expected] < 1e-3f))
        fail_msg("%s: %s at %u is %u, expected %d", r->c->name, name, position, best, expected);
    r->compared++;
}

static void run_chunk(struct run *r, backend_seq seq, uint32_t position, uint32_t tokens)
{
    struct backend_job job = {.kind = BACKEND_MAIN,
                              .seq = seq,
                              .position = position,
                              .tokens = tokens,
                              .ids = r->all + position,
                              .logits_from = 0};
    struct backend *b = r->house.backend;
    house_run(&r->house, 0, &job);
    for (uint32_t i = 0; i < tokens; i++) compare_logits(r, "", position + i, b->ops->logits(b, 0, i));
    if (position + tokens == r->total) tokens--; // the last row has no next token
    if (tokens == 0) return;
    job = (struct backend_job){.kind = BACKEND_MTP,
                               .seq = seq,
                               .position = position,
                               .tokens = tokens,
                               .ids = r->all + position + 1,
                               .logits_from = 0};
    house_run(&r->house, 1, &job);
    for (uint32_t i = 0; i < tokens; i++) compare_logits(r, "mtp_", position + i, b->ops->logits(b, 1, i));
}

static void mark_near_ties(struct run *r)
{
    const cJSON *p, *row;
    r->near_tie = calloc(r->total, sizeof *r->near_tie);
    cJSON_ArrayForEach(p, cJSON_GetObjectItem(goldens_manifest(r->g), "prompts"))
    {
        if (strcmp(cJSON_GetObjectItem(p, "name")->valuestring, r->c->prompt) != 0) continue;
        cJSON_ArrayForEach(row, cJSON_GetObjectItem(p, "rows_with_index_gap_below_1e-5")) r->near_ties =
            r->near_tie[row->valueint] = true;
    }
}

static void every_value_is_the_references(void **state)
{
    struct run r = {.c = *state};
    struct error err = {""};
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/%s", SOURCE_DIR, r.c->goldens);
    if (goldens_open(&r.g, dir, &err)) fail_msg("%s", err.text);
    snprintf(dir, sizeof dir, "%s/%s", SOURCE_DIR, r.c->model);
    house_open(&r.house, dir, 2, r.c->chunk, KV_F32, true);
    r.ids = find(&r, "ids");
    r.greedy = find(&r, "greedy");
    assert_non_null(r.ids);
    r.prompt = (uint32_t)r.ids->count;
    r.total = r.prompt + (uint32_t)r.greedy->count;
    r.all = malloc(r.total * sizeof *r.all);
    memcpy(r.all, r.ids->i, r.prompt * sizeof *r.all);
    memcpy(r.all + r.prompt, r.greedy->i, r.greedy->count * sizeof *r.all);
    mark_near_ties(&r);

    struct backend_probe probe = {on_row, &r};
    r.house.backend->ops->set_probe(r.house.backend, &probe);
    backend_seq seq = house_seq(&r.house, r.total);
    for (uint32_t p = 0; p < r.total; p += r.c->chunk)
        run_chunk(&r, seq, p, r.total - p < r.c->chunk ? r.total - p : r.c->chunk);
    assert_true(r.compared > r.total);
    free(r.all);
    free(r.near_tie);
    house_close(&r.house);
    goldens_close(r.g);
}

static struct golden_case cases[] = {
    {"v32-tiny short", "tests/goldens/v32-tiny", "tests/goldens/v32-tiny/goldens", "short", 16},
    {"v32-tiny mid, beyond top-k", "tests/goldens/v32-tiny", "tests/goldens/v32-tiny/goldens", "mid", 64},
    {"v32-tiny long", "tests/goldens/v32-tiny", "tests/goldens/v32-tiny/goldens", "long", 512},
    {"v3-tiny short, no indexer", "tests/goldens/v3-tiny", "tests/goldens/v3-tiny/goldens", "short", 64},
    {"v3-tiny mid", "tests/goldens/v3-tiny", "tests/goldens/v3-tiny/goldens", "mid", 100},
    {"duckling short", "models/duckling", "tests/goldens/duckling", "short", 64},
    {"duckling story", "models/duckling", "tests/goldens/duckling", "story", 1},
    {"duckling long, index ties", "models/duckling", "tests/goldens/duckling", "long", 256},
};

int main(void)
{
    struct CMUnitTest tests[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, every_value_is_the_references, NULL, NULL, &cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
