/* feed_forward.c: experts as fp32 matrices, a token at a time. */
#include "tests/cuda/feed_forward.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct expert {
    float *gate, *up, *down; // (width, hidden), (width, hidden), (hidden, width)
    uint32_t width;
};

struct bank {
    struct expert *experts; // routed ones, then one that every token uses, if there is one (width 0: none)
};

struct feed_forward {
    struct pool *pool;
    uint32_t hidden, routed, banks, widest;
    bool shared;
    struct bank *bank;
    float *scratch; // (threads, 2, widest)
    const struct mlp_step *step;
};

static int load(const struct model *m, float **out, uint64_t rows, uint64_t cols, const char *name,
                struct error *err)
{
    struct weight w;
    int rc = checkpoint_matrix(m->checkpoint, &w, rows, cols, err, "%s", name);
    if (rc) return rc;
    *out = malloc(rows * cols * sizeof **out);
    if (!*out) return error_set(err, -ENOMEM, "no memory for %s", name);
    for (uint64_t r = 0; r < rows; r++) weight_row(&w, r, *out + r * cols);
    return 0;
}

static int load_expert(const struct model *m, struct expert *e, const char *prefix, uint32_t width,
                       struct error *err)
{
    const uint64_t hidden = m->config.hidden_size;
    char name[256];
    e->width = width;
    snprintf(name, sizeof name, "%s.gate_proj.weight", prefix);
    int rc = load(m, &e->gate, width, hidden, name, err);
    snprintf(name, sizeof name, "%s.up_proj.weight", prefix);
    if (!rc) rc = load(m, &e->up, width, hidden, name, err);
    snprintf(name, sizeof name, "%s.down_proj.weight", prefix);
    if (!rc) rc = load(m, &e->down, hidden, width, name, err);
    return rc;
}

static int load_bank(struct feed_forward *f, const struct model *m, uint32_t layer, struct error *err)
{
    const struct model_config *c = &m->config;
    char prefix[128];
    struct expert *e = f->bank[layer].experts = calloc(f->routed + 1, sizeof *e);
    if (!e) return error_set(err, -ENOMEM, "no memory for layer %u", layer);
    if (model_layer_is_dense(c, layer)) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp", layer);
        return load_expert(m, &e[f->routed], prefix, c->dense_width, err);
    }
    for (uint32_t i = 0; i < f->routed; i++) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u", layer, i);
        int rc = load_expert(m, &e[i], prefix, c->expert_width, err);
        if (rc) return rc;
    }
    if (!f->shared) return 0;
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.shared_experts", layer);
    return load_expert(m, &e[f->routed], prefix, c->expert_width * c->shared_experts, err);
}

int feed_forward_open(struct feed_forward **out, const struct model *model, struct pool *pool,
                      bool with_shared, struct error *err)
{
    const struct model_config *c = &model->config;
    struct feed_forward *f = calloc(1, sizeof *f);
    *out = f;
    if (!f) return error_set(err, -ENOMEM, "no memory");
    f->pool = pool;
    f->shared = with_shared;
    f->hidden = c->hidden_size;
    f->routed = c->experts;
    f->banks = c->layers + (c->mtp_layers ? 1 : 0);
    const uint32_t shared = c->expert_width * c->shared_experts;
    f->widest = shared > c->dense_width ? shared : c->dense_width;
    f->bank = calloc(f->banks, sizeof *f->bank);
    f->scratch = malloc((size_t)pool_threads(pool) * 2 * f->widest * sizeof(float));
    if (!f->bank || !f->scratch) return error_set(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; i < f->banks; i++) {
        int rc = load_bank(f, model, i, err);
        if (rc) return rc;
    }
    return 0;
}

void feed_forward_close(struct feed_forward *f)
{
    if (!f) return;
    for (uint32_t i = 0; f->bank && i < f->banks; i++) {
        for (uint32_t e = 0; f->bank[i].experts && e <= f->routed; e++) {
            free(f->bank[i].experts[e].gate);
            free(f->bank[i].experts[e].up);
            free(f->bank[i].experts[e].down);
        }
        free(f->bank[i].experts);
    }
    free(f->bank);
    free(f->scratch);
    free(f);
}

static float dot(const float *a, const float *b, size_t n)
{
    float sum[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++) sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void add_expert(const struct feed_forward *f, const struct expert *e, const float *x, float weight,
                       float *h, float *y)
{
    for (uint32_t j = 0; j < e->width; j++) {
        const float g = dot(e->gate + (size_t)j * f->hidden, x, f->hidden);
        h[j] = g / (1.0f + expf(-g)) * dot(e->up + (size_t)j * f->hidden, x, f->hidden) * weight;
    }
    for (uint32_t i = 0; i < f->hidden; i++) y[i] += dot(e->down + (size_t)i * e->width, h, e->width);
}

static void token(void *arg, size_t t, unsigned worker)
{
    struct feed_forward *f = arg;
    const struct mlp_step *s = f->step;
    const struct expert *e = f->bank[s->layer].experts;
    float *h = f->scratch + (size_t)worker * 2 * f->widest;
    const float *x = s->x + t * f->hidden;
    float *y = s->y + t * f->hidden;
    memset(y, 0, f->hidden * sizeof *y);
    for (uint32_t k = 0; k < s->top_k; k++)
        add_expert(f, &e[s->ids[t * s->top_k + k]], x, s->weights[t * s->top_k + k], h, y);
    add_expert(f, &e[f->routed], x, 1.0f, h, y);
}

void feed_forward_answer(struct feed_forward *f, const struct mlp_step *step)
{
    f->step = step;
    pool_run(f->pool, token, f, step->tokens);
}
