// moe_reference.c: gate, up, silu, down as the textbook has them.
#include "tests/flock/moe_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static struct weight matrix(const struct model *m, const char *prefix, const char *name, uint64_t rows,
                            uint64_t cols)
{
    struct weight w;
    struct error err;
    if (checkpoint_matrix(m->checkpoint, &w, rows, cols, &err, "%s.%s.weight", prefix, name) != 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return w;
}

static double dot(const struct weight *w, uint64_t row, const double *x, float *scratch)
{
    weight_row(w, row, scratch);
    double sum = 0;
    for (uint64_t i = 0; i < w->cols; i++) sum += (double)scratch[i] * x[i];
    return sum;
}

static void add_expert(const struct model *m, const char *prefix, uint64_t width, const float *x,
                       double weight, double *y)
{
    uint64_t hidden = m->config.hidden_size, longest = width > hidden ? width : hidden;
    struct weight gate = matrix(m, prefix, "gate_proj", width, hidden);
    struct weight up = matrix(m, prefix, "up_proj", width, hidden);
    struct weight down = matrix(m, prefix, "down_proj", hidden, width);
    double *in = calloc(hidden, sizeof *in), *h = calloc(width, sizeof *h);
    float *scratch = calloc(longest, sizeof *scratch);
    for (uint64_t i = 0; i < hidden; i++) in[i] = (double)x[i];
    for (uint64_t j = 0; j < width; j++) {
        double g = dot(&gate, j, in, scratch);
        h[j] = g / (1 + exp(-g)) * dot(&up, j, in, scratch) * weight;
    }
    for (uint64_t i = 0; i < hidden; i++) y[i] += dot(&down, i, h, scratch);
    free(in);
    free(h);
    free(scratch);
}

void moe_reference(const struct model *m, const struct mlp_step *step, double *y)
{
    const struct model_config *c = &m->config;
    char prefix[128];
    for (uint32_t t = 0; t < step->tokens; t++) {
        const float *x = step->x + (size_t)t * c->hidden_size;
        double *out = y + (size_t)t * c->hidden_size;
        for (uint32_t i = 0; i < c->hidden_size; i++) out[i] = 0;
        if (model_layer_is_dense(c, step->layer)) {
            snprintf(prefix, sizeof prefix, "model.layers.%u.mlp", step->layer);
            add_expert(m, prefix, c->dense_width, x, 1, out);
            continue;
        }
        for (uint32_t k = 0; k < step->top_k; k++) {
            size_t i = (size_t)t * step->top_k + k;
            snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%d", step->layer, step->ids[i]);
            add_expert(m, prefix, c->expert_width, x, (double)step->weights[i], out);
        }
        if (c->shared_experts == 0) continue;
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.shared_experts", step->layer);
        add_expert(m, prefix, (uint64_t)c->shared_experts * c->expert_width, x, 1, out);
    }
}

double relative_l2(const float *got, const double *want, size_t n)
{
    double off = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return sqrt(off / norm);
}
