/* harness.c: see harness.h. Matrices are kept transposed (inputs, outputs), so that a product is a sum of
 * rows: plain C that the compiler vectorises without changing any order. */
#include "tests/backend/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// cmocka.h wants these before it
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct expert {
    float *gate, *up, *down; // transposed; NULL until first used
    uint32_t width;
};

struct feed_forward {
    const struct model *m;
    uint32_t layers;        // MTP included
    struct expert *experts; // (layers, experts + 1): the last is the shared one or the dense MLP
    float *g, *u;           // (widest)
};

static uint32_t widest(const struct model_config *c)
{
    uint32_t w = c->dense_width;
    if (c->expert_width * c->shared_experts > w) w = c->expert_width * c->shared_experts;
    return c->expert_width > w ? c->expert_width : w;
}

struct feed_forward *feed_forward_new(const struct model *m)
{
    struct feed_forward *f = calloc(1, sizeof *f);
    f->m = m;
    f->layers = m->config.layers + 1;
    f->experts = calloc((size_t)f->layers * (m->config.experts + 1), sizeof *f->experts);
    f->g = malloc(widest(&m->config) * sizeof(float));
    f->u = malloc(widest(&m->config) * sizeof(float));
    return f;
}

void feed_forward_free(struct feed_forward *f)
{
    for (size_t i = 0; i < (size_t)f->layers * (f->m->config.experts + 1); i++) {
        free(f->experts[i].gate);
        free(f->experts[i].up);
        free(f->experts[i].down);
    }
    free(f->experts);
    free(f->g);
    free(f->u);
    free(f);
}

static float *matrix(const struct model *m, uint32_t rows, uint32_t cols, const char *prefix,
                     const char *name)
{
    struct weight w;
    struct error err = {""};
    if (checkpoint_matrix(m->checkpoint, &w, rows, cols, &err, "%s%s_proj.weight", prefix, name))
        fail_msg("%s", err.text);
    float *t = malloc((size_t)rows * cols * sizeof(float)), *row = malloc(cols * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        weight_row(&w, r, row);
        for (uint32_t c = 0; c < cols; c++) t[(size_t)c * rows + r] = row[c];
    }
    free(row);
    return t;
}

static const struct expert *expert(struct feed_forward *f, uint32_t layer, uint32_t id)
{
    const struct model_config *c = &f->m->config;
    struct expert *e = &f->experts[(size_t)layer * (c->experts + 1) + id];
    if (e->gate) return e;
    char prefix[128];
    if (id < c->experts) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u.", layer, id);
        e->width = c->expert_width;
    } else if (model_layer_is_dense(c, layer)) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.", layer);
        e->width = c->dense_width;
    } else {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.shared_experts.", layer);
        e->width = c->expert_width * c->shared_experts;
    }
    e->gate = matrix(f->m, e->width, c->hidden_size, prefix, "gate");
    e->up = matrix(f->m, e->width, c->hidden_size, prefix, "up");
    e->down = matrix(f->m, c->hidden_size, e->width, prefix, "down");
    return e;
}

static void product(const float *restrict t, const float *restrict x, size_t inputs, size_t outputs,
                    float scale, float *restrict y)
{
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++) y[o] += t[i * outputs + o] * (x[i] * scale);
}

static void apply(struct feed_forward *f, const struct expert *e, const float *x, float weight, float *y)
{
    uint32_t n = f->m->config.hidden_size;
    memset(f->g, 0, e->width * sizeof(float));
    memset(f->u, 0, e->width * sizeof(float));
    product(e->gate, x, n, e->width, 1.0f, f->g);
    product(e->up, x, n, e->width, 1.0f, f->u);
    for (uint32_t i = 0; i < e->width; i++) f->g[i] = f->g[i] / (1.0f + expf(-f->g[i])) * f->u[i];
    product(e->down, f->g, e->width, n, weight, y);
}

void feed_forward_run(struct feed_forward *f, const struct mlp_step *step)
{
    const struct model_config *c = &f->m->config;
    for (uint32_t t = 0; t < step->tokens; t++) {
        const float *x = step->x + (size_t)t * c->hidden_size;
        float *y = step->y + (size_t)t * c->hidden_size;
        memset(y, 0, c->hidden_size * sizeof(float));
        for (uint32_t k = 0; k < step->top_k; k++) {
            size_t at = (size_t)t * step->top_k + k;
            apply(f, expert(f, step->layer, (uint32_t)step->ids[at]), x, step->weights[at], y);
        }
        if (step->top_k == 0 || c->shared_experts) apply(f, expert(f, step->layer, c->experts), x, 1.0f, y);
    }
}

void house_open(struct house *h, const char *dir, unsigned threads, uint32_t max_tokens, enum kv_dtype kv,
                bool mtp)
{
    struct error err = {""};
    memset(h, 0, sizeof *h);
    if (model_open(&h->model, dir, &err)) fail_msg("%s", err.text);
    if (pool_open(&h->pool, threads, &err)) fail_msg("%s", err.text);
    struct backend_options o = {.model = &h->model,
                                .pool = h->pool,
                                .lanes = 2,
                                .max_tokens = max_tokens,
                                .kv_dtype = kv,
                                .kv_dtype_set = true,
                                .mtp = mtp};
    if (backend_cpu.open(&h->backend, &o, &err)) fail_msg("%s", err.text);
    h->ff = feed_forward_new(&h->model);
}

void house_close(struct house *h)
{
    h->backend->ops->close(h->backend);
    feed_forward_free(h->ff);
    pool_close(h->pool);
    model_close(&h->model);
}

backend_seq house_seq(struct house *h, uint32_t capacity)
{
    struct error err = {""};
    backend_seq seq;
    if (h->backend->ops->seq_open(h->backend, &seq, capacity, &err)) fail_msg("%s", err.text);
    return seq;
}

void house_run(struct house *h, uint32_t lane, const struct backend_job *job)
{
    struct error err = {""};
    const struct backend_ops *ops = h->backend->ops;
    if (ops->start(h->backend, lane, job, &err)) fail_msg("%s", err.text);
    for (;;) {
        struct mlp_step step;
        switch (ops->poll(h->backend, lane, &step, &err)) {
        case BACKEND_BUSY:
            break;
        case BACKEND_MLP:
            feed_forward_run(h->ff, &step);
            ops->resume(h->backend, lane);
            break;
        case BACKEND_DONE:
            return;
        case BACKEND_FAILED:
            fail_msg("%s", err.text);
        }
    }
}

double relative_l2(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}
