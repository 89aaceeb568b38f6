/* cpu_layer.c: one layer up to its feed-forward. Of rows before l->first only the keys are made.
 *
 * Jobs that wait for each other, in order: {q_a, kv_a, index key, index weights}, {q_b, index query},
 * index scores, selection, attention, o, gate. What lies between (norms, rotations, cache writes) is done by
 * rows and, for the few rows of a decode step, by the caller alone: a wait costs more than they do. */
#include <errno.h>
#include <math.h>

#include "host/backend/cpu/cpu.h"
#include "host/backend/cpu/norm.h"
#include "host/backend/cpu/router.h"

#define MLA_NORM_EPS 1e-6f // of q_a, kv_a and the index key, whatever rms_norm_eps says

static struct cpu_layer *weights_of(struct cpu_backend *b, const struct cpu_lane *l)
{
    return &b->layers[l->layer];
}

/* Where the job's attention begins: first_key is an MTP job's. */
static uint32_t first_key(const struct cpu_lane *l)
{
    return l->job.kind == BACKEND_MTP ? l->job.first_key : 0;
}

/* What attention and indexer see: positions count from first_key on. */
static struct kv_layer seen_keys(const struct cpu_lane *l)
{
    struct kv_layer keys = kv_layer(l->kv, l->layer);
    keys.rows += first_key(l) * keys.row_bytes;
    keys.tiles += first_key(l) / KV_TILE * keys.tile_bytes;
    return keys;
}

/* ---- rows ---- */

static void enter_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    const struct cpu_layer *w = weights_of(b, l);
    size_t n = b->c->hidden_size;
    float *x = l->x + row * n;
    cpu_add_answer(b, l, row);
    b->s.bad[row] = !norm_rms(l->h + row * n, w->input_norm, b->c->rms_norm_eps, n, x);
    b->fp9->prepare(x, n, b->s.xs + row * n);
}

/* The new key: latent and roped part, index key; and the query's latent. */
static void latent_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    const struct cpu_layer *w = weights_of(b, l);
    const struct attention_shape *a = &b->attention;
    const float *cosines = l->cosines + row * b->rope.pairs, *sines = l->sines + row * b->rope.pairs;
    uint32_t position = l->job.position + (uint32_t)row;
    struct kv_layer keys = kv_layer(l->kv, l->layer);

    float *latent = b->s.kva + row * (a->latent + a->rope), *roped = latent + a->latent;
    bool ok = norm_rms(latent, w->kv_a_norm, MLA_NORM_EPS, a->latent, latent);
    rope_interleaved(roped, cosines, sines, b->rope.pairs, roped);
    for (size_t i = 0; i < a->rope; i++) ok &= isfinite(roped[i]) != 0;
    kv_write(&keys, position, latent, roped);

    size_t dim = b->c->index_head_dim;
    if (b->c->index_topk) {
        float *key = b->s.ik + row * dim;
        ok &= norm_layer(key, w->k_norm, w->k_norm_bias, MLA_NORM_EPS, dim, key);
        rope_half_split(key, cosines, sines, b->rope.pairs);
        kv_write_index(&keys, position, key);
    }

    if (row >= l->first) {
        size_t q_lora = b->c->q_lora_rank;
        float *qa = b->s.qa + row * q_lora;
        ok &= norm_rms(qa, w->q_a_norm, MLA_NORM_EPS, q_lora, qa);
        b->fp9->prepare(qa, q_lora, b->s.qas + row * q_lora);
    }
    b->s.bad[row] = !ok;
}

static void index_query_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    const struct model_config *c = b->c;
    const float *cosines = l->cosines + row * b->rope.pairs, *sines = l->sines + row * b->rope.pairs;
    float *q = b->s.iq + row * c->index_heads * c->index_head_dim, *w = b->s.iw + row * b->s.iw_stride;
    float scale = 1.0f / sqrtf((float)c->index_heads * (float)c->index_head_dim);
    for (size_t h = 0; h < c->index_heads; h++) {
        rope_half_split(q + h * c->index_head_dim, cosines, sines, b->rope.pairs);
        w[h] *= scale;
    }
}

static void leave_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    const struct cpu_layer *w = weights_of(b, l);
    size_t n = b->c->hidden_size;
    float *x = l->x + row * n;
    norm_add(l->h + row * n, b->s.attended + row * n, n);
    b->s.bad[row] = !norm_rms(l->h + row * n, w->post_norm, b->c->rms_norm_eps, n, x);
    if (!w->dense && linear_prepared(&w->gate)) b->fp9->prepare(x, n, b->s.xs + row * n);
}

static void route_row(struct cpu_backend *b, struct cpu_lane *l, size_t row)
{
    uint32_t k = b->c->top_k;
    b->s.bad[row] = !router_choose(b->c, b->s.gate + row * b->s.gate_stride, weights_of(b, l)->gate_bias,
                                   b->s.biased + row * b->s.biased_stride, l->expert_ids + row * k,
                                   l->expert_weights + row * k);
}

/* ---- the indexer's jobs ---- */

struct index_job {
    struct cpu_backend *b;
    struct indexer_rows rows;
    uint32_t first_row, tiles, chunk;
};

static void score_task(void *arg, size_t task, unsigned worker)
{
    const struct index_job *j = arg;
    uint32_t first = (uint32_t)task * j->chunk;
    uint32_t count = j->tiles - first < j->chunk ? j->tiles - first : j->chunk;
    indexer_score(&j->rows, first, count, j->b->s.worker[worker]);
}

static void select_task(void *arg, size_t row, unsigned worker)
{
    (void)worker;
    const struct index_job *j = arg;
    uint32_t k = j->b->c->index_topk, n = j->rows.position + (uint32_t)row + 1;
    if (n <= k) return; // attends to everything
    indexer_select(j->rows.scores + row * j->rows.score_stride, n, k,
                   j->b->s.selected + (j->first_row + row) * k);
}

static void probe_index(struct cpu_backend *b, struct cpu_lane *l, const struct index_job *j)
{
    uint32_t k = b->c->index_topk;
    for (uint32_t r = 0; r < j->rows.rows; r++) {
        uint32_t position = j->rows.position + r, n = position + 1;
        const float *scores = j->rows.scores + r * j->rows.score_stride;
        int32_t *selected = b->s.selected + (size_t)(j->first_row + r) * k;
        if (n <= k) indexer_select(scores, n, k, selected);
        b->probe.row(b->probe.ctx, "index_scores", l->layer, position, scores, NULL, n);
        b->probe.row(b->probe.ctx, "index_topk", l->layer, position, NULL, selected, n < k ? n : k);
    }
}

static void select_keys(struct cpu_backend *b, struct cpu_lane *l)
{
    const struct model_config *c = b->c;
    const uint32_t position = l->job.position - first_key(l);
    for (uint32_t first = l->first; first < l->job.tokens; first += INDEXER_ROWS) {
        uint32_t rows = l->job.tokens - first < INDEXER_ROWS ? l->job.tokens - first : INDEXER_ROWS;
        uint32_t end = position + first + rows; // positions that the last row sees
        if (end <= c->index_topk && !b->probe.row) continue;
        size_t q_stride = (size_t)c->index_heads * c->index_head_dim;
        struct index_job j = {
            .b = b, .first_row = first, .tiles = (end + KV_TILE - 1) / KV_TILE, .chunk = 64};
        j.rows = (struct indexer_rows){.heads = c->index_heads,
                                       .dim = c->index_head_dim,
                                       .keys = seen_keys(l),
                                       .position = position + first,
                                       .rows = rows,
                                       .q = b->s.iq + first * q_stride,
                                       .q_stride = q_stride,
                                       .weights = b->s.iw + first * b->s.iw_stride,
                                       .weights_stride = b->s.iw_stride,
                                       .scores = b->s.scores,
                                       .score_stride = b->s.score_stride};
        parallel(b->pool, score_task, &j, (j.tiles + j.chunk - 1) / j.chunk,
                 (double)q_stride * KV_TILE * j.tiles * rows);
        // about 10 ns a position and row, as much as 64 multiply-adds
        parallel(b->pool, select_task, &j, rows, 64.0 * end * rows);
        if (b->probe.row) probe_index(b, l, &j);
    }
}

/* ---- attention ---- */

struct attention_job {
    struct attention a;
    struct cpu_backend *b;
};

static void attend_task(void *arg, size_t task, unsigned worker)
{
    const struct attention_job *j = arg;
    attention_task(&j->a, task, j->b->s.worker[worker]);
}

static void attend(struct cpu_backend *b, struct cpu_lane *l)
{
    const struct cpu_layer *w = weights_of(b, l);
    const struct attention_shape *s = &b->attention;
    size_t first = l->first, q_stride = s->heads * (s->nope + s->rope), out_stride = s->heads * s->v;
    struct attention_job j = {.b = b};
    j.a = (struct attention){.shape = *s,
                             .key_up = w->key_up,
                             .value_up = w->value_up,
                             .keys = seen_keys(l),
                             .position = l->job.position - first_key(l) + l->first,
                             .rows = l->job.tokens - l->first,
                             .task_rows = attention_task_rows(s, l->job.tokens - l->first, b->threads),
                             .q = b->s.q + first * q_stride,
                             .q_stride = q_stride,
                             .cosines = l->cosines + first * b->rope.pairs,
                             .sines = l->sines + first * b->rope.pairs,
                             .selected = b->s.selected + first * b->c->index_topk,
                             .selected_stride = b->c->index_topk,
                             .top_k = b->c->index_topk ? b->c->index_topk : UINT32_MAX,
                             .out = b->s.mixed + first * out_stride,
                             .out_stride = out_stride,
                             .prepare = linear_prepared(&w->o) ? b->fp9->prepare : NULL};
    parallel(b->pool, attend_task, &j, attention_tasks(&j.a), attention_work(&j.a));
}

/* ---- the layer ---- */

static int check(struct cpu_backend *b, struct cpu_lane *l, size_t first, const char *what, struct error *err)
{
    int row = cpu_bad_row(b, first, l->job.tokens);
    if (row < 0) return 0;
    return error_set(err, -EDOM, "layer %u: %s at position %u is not finite", l->layer, what,
                     l->job.position + (uint32_t)row);
}

static void first_products(struct cpu_backend *b, struct cpu_lane *l, bool select)
{
    const struct cpu_layer *w = weights_of(b, l);
    size_t n = b->c->hidden_size, key = b->attention.latent + b->attention.rope, count = 0;
    struct product p[4];
    p[count++] = (struct product){&w->kv_a, cpu_input(&w->kv_a, l->x, b->s.xs), n, b->s.kva, key};
    if (b->c->index_topk)
        p[count++] =
            (struct product){&w->wk, cpu_input(&w->wk, l->x, b->s.xs), n, b->s.ik, b->c->index_head_dim};
    if (l->first < l->job.tokens)
        p[count++] =
            (struct product){&w->q_a, cpu_input(&w->q_a, l->x, b->s.xs), n, b->s.qa, b->c->q_lora_rank};
    if (l->first < l->job.tokens && select)
        p[count++] = (struct product){&w->index_weights, cpu_input(&w->index_weights, l->x, b->s.xs), n,
                                      b->s.iw, b->s.iw_stride};
    products_run(b->pool, p, count, l->job.tokens);
}

/* A product of the rows that are wanted; `x` and `y` are row 0's. */
static struct product wanted(const struct cpu_lane *l, const struct linear *w, const float *x,
                             size_t x_stride, float *y, size_t y_stride)
{
    return (struct product){w, x + l->first * x_stride, x_stride, y + l->first * y_stride, y_stride};
}

static void second_products(struct cpu_backend *b, struct cpu_lane *l, bool select)
{
    const struct cpu_layer *w = weights_of(b, l);
    const struct attention_shape *a = &b->attention;
    size_t n = b->c->q_lora_rank;
    const struct product p[2] = {
        wanted(l, &w->q_b, cpu_input(&w->q_b, b->s.qa, b->s.qas), n, b->s.q, a->heads * (a->nope + a->rope)),
        wanted(l, &w->wq_b, cpu_input(&w->wq_b, b->s.qa, b->s.qas), n, b->s.iq,
               (size_t)b->c->index_heads * b->c->index_head_dim)};
    products_run(b->pool, p, select ? 2 : 1, l->job.tokens - l->first);
}

static int route(struct cpu_backend *b, struct cpu_lane *l, struct error *err)
{
    const struct cpu_layer *w = weights_of(b, l);
    size_t n = b->c->hidden_size;
    const struct product gate =
        wanted(l, &w->gate, cpu_input(&w->gate, l->x, b->s.xs), n, b->s.gate, b->s.gate_stride);
    products_run(b->pool, &gate, 1, l->job.tokens - l->first);
    cpu_rows(b, l, route_row, l->first, l->job.tokens - l->first, (double)b->c->experts * (b->c->top_k + 16));
    int e = check(b, l, l->first, "the router's output", err);
    if (e) return e;
    bool mtp = l->job.kind == BACKEND_MTP;
    cpu_probe_rows(b, l, mtp ? "mtp_router_ids" : "router_ids", l->layer, NULL, l->expert_ids, b->c->top_k,
                   b->c->top_k);
    cpu_probe_rows(b, l, mtp ? "mtp_router_weights" : "router_weights", l->layer, l->expert_weights, NULL,
                   b->c->top_k, b->c->top_k);
    return 0;
}

/* Rows whose output nobody reads: in a job's last layer those without logits, if the MTP layer does
 * not want their hidden states. Probes look at every row. */
static uint32_t first_wanted(const struct cpu_backend *b, const struct cpu_lane *l)
{
    const struct backend_job *j = &l->job;
    if (b->probe.row || l->layer + 1 < l->last_layer) return 0;
    bool feeds = j->kind == BACKEND_MAIN && b->with_mtp && j->hidden_from < j->logits_from;
    return feeds ? j->hidden_from : j->logits_from;
}

/* Norm and first products of every row, keys into the cache. */
static int make_keys(struct cpu_backend *b, struct cpu_lane *l, bool select, struct error *err)
{
    const struct attention_shape *a = &b->attention;
    size_t tokens = l->job.tokens, n = b->c->hidden_size;
    cpu_rows(b, l, enter_row, 0, tokens, 4.0 * (double)n);
    int e = check(b, l, 0, "the residual stream entering it", err);
    if (e) return e;
    if (l->job.kind == BACKEND_MAIN) cpu_probe_rows(b, l, "hidden", l->layer, l->h, NULL, n, n);
    first_products(b, l, select);
    cpu_rows(b, l, latent_row, 0, tokens, 8.0 * (double)(b->c->q_lora_rank + a->latent + a->rope));
    return check(b, l, 0, "a latent of attention", err);
}

int cpu_layer_run(struct cpu_backend *b, struct cpu_lane *l, struct error *err)
{
    const struct model_config *c = b->c;
    const struct cpu_layer *w = weights_of(b, l);
    const struct attention_shape *a = &b->attention;
    size_t n = c->hidden_size;
    /* Up to top-k positions everything is selected: only the keys must be cached. */
    bool select =
        c->index_topk && (b->probe.row || l->job.position - first_key(l) + l->job.tokens > c->index_topk);

    l->first = first_wanted(b, l);
    size_t first = l->first, rows = l->job.tokens - first;
    int e = make_keys(b, l, select, err);
    if (e || rows == 0) return e;
    second_products(b, l, select);
    if (select) {
        cpu_rows(b, l, index_query_row, first, rows, 4.0 * c->index_heads * (double)a->rope);
        select_keys(b, l);
    }
    attend(b, l);
    const struct product o = wanted(l, &w->o, b->s.mixed, a->heads * a->v, b->s.attended, n);
    products_run(b->pool, &o, 1, rows);
    cpu_rows(b, l, leave_row, first, rows, 4.0 * (double)n);
    e = check(b, l, first, "the output of attention", err);
    if (e || w->dense) return e;
    return route(b, l, err);
}
