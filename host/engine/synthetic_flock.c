/* synthetic_flock.c: see synthetic_flock.h. */
#include "host/engine/synthetic_flock.h"

#include <stdlib.h>
#include <string.h>

struct translated {
    int32_t *ids;   // (max_tokens, top_k)
    float *weights; // likewise
};

struct synthetic_flock {
    struct flock *flock;
    const struct model *model;
    const struct model_config *held;
    uint32_t lanes;
    struct translated *lane; // (lanes)
    int32_t *room;           // (experts + held experts)
};

struct model_config synthetic_flock_config(const struct model_config *c, uint32_t layers, uint32_t experts)
{
    struct model_config held = *c;
    uint32_t dense = c->first_dense_layers, moe = c->layers - dense;
    held.first_dense_layers = dense < layers ? dense : layers;
    held.layers = held.first_dense_layers + (moe < layers ? moe : layers);
    held.mtp_layers = 0;
    if (experts < held.experts) held.experts = experts;
    return held;
}

struct synthetic_flock *synthetic_flock_open(struct flock *flock, const struct model *model,
                                             const struct model_config *held, uint32_t lanes,
                                             uint32_t max_tokens)
{
    struct synthetic_flock *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    *f = (struct synthetic_flock){.flock = flock, .model = model, .held = held, .lanes = lanes};
    size_t choices = (size_t)max_tokens * model->config.top_k;
    f->lane = calloc(lanes, sizeof *f->lane);
    f->room = calloc((size_t)model->config.experts + held->experts, sizeof *f->room);
    bool ok = f->lane && f->room;
    for (uint32_t i = 0; ok && i < lanes; i++) {
        f->lane[i].ids = calloc(choices + 1, sizeof *f->lane[i].ids);
        f->lane[i].weights = calloc(choices + 1, sizeof *f->lane[i].weights);
        ok = f->lane[i].ids && f->lane[i].weights;
    }
    if (ok) return f;
    synthetic_flock_close(f);
    return NULL;
}

void synthetic_flock_close(struct synthetic_flock *f)
{
    if (!f) return;
    for (uint32_t i = 0; f->lane && i < f->lanes; i++) {
        free(f->lane[i].ids);
        free(f->lane[i].weights);
    }
    free(f->lane);
    free(f->room);
    free(f);
}

static void sort_row(int32_t *ids, float *weights, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i; k > 0 && ids[k - 1] > ids[k]; k--) {
            int32_t id = ids[k];
            float w = weights[k];
            ids[k] = ids[k - 1];
            weights[k] = weights[k - 1];
            ids[k - 1] = id;
            weights[k - 1] = w;
        }
}

static bool in_row(const int32_t *row, uint32_t n, int32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (row[i] == id) return true;
    return false;
}

void synthetic_flock_choose(int32_t *ids, float *weights, uint32_t tokens, uint32_t top_k, uint32_t experts,
                            uint32_t held, uint32_t layer, int32_t *room)
{
    int32_t *slot = room, *taken = room + experts; // expert -> held one or -1; held one -> whether taken
    for (uint32_t i = 0; i < experts; i++) slot[i] = -1;
    memset(taken, 0, held * sizeof *taken);
    uint32_t free_slots = held;
    for (uint32_t t = 0; t < tokens; t++) {
        int32_t *row = ids + (size_t)t * top_k;
        for (uint32_t k = 0; k < top_k; k++) {
            int32_t expert = row[k], at = slot[expert];
            if (at < 0 || in_row(row, k, at)) {
                at = (int32_t)(((uint32_t)expert + layer * 5) % held);
                while (free_slots ? taken[at] : in_row(row, k, at)) at = (at + 1) % (int32_t)held;
                if (free_slots) {
                    taken[at] = 1;
                    free_slots--;
                }
                slot[expert] = at;
            }
            row[k] = at;
        }
        sort_row(row, weights + (size_t)t * top_k, top_k);
    }
}

static int submit(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    struct synthetic_flock *f = flock;
    const struct model_config *c = &f->model->config;
    bool dense = model_layer_is_dense(c, step->layer);
    uint32_t layer = step->layer - (dense ? 0 : c->first_dense_layers);
    struct mlp_step s = *step;
    s.layer = dense ? layer % f->held->first_dense_layers
                    : f->held->first_dense_layers + layer % (f->held->layers - f->held->first_dense_layers);
    if (step->top_k > 0) {
        struct translated *to = &f->lane[lane];
        size_t n = (size_t)step->tokens * step->top_k;
        memcpy(to->ids, step->ids, n * sizeof *to->ids);
        memcpy(to->weights, step->weights, n * sizeof *to->weights);
        synthetic_flock_choose(to->ids, to->weights, step->tokens, step->top_k, c->experts, f->held->experts,
                               step->layer, f->room);
        s.ids = to->ids;
        s.weights = to->weights;
    }
    return flock_submit(f->flock, lane, &s, err);
}

static int poll(void *flock, uint32_t lane, bool wait, struct error *err)
{
    return flock_poll(((struct synthetic_flock *)flock)->flock, lane, wait, err);
}

struct flock_seam synthetic_flock_seam(struct synthetic_flock *f, bool works_in_wait)
{
    return (struct flock_seam){submit, poll, f, works_in_wait};
}
