/* model.h: a checkpoint with its validated shape: what loaders of weights are handed. */
#ifndef DUCKD_HOST_MODEL_MODEL_H
#define DUCKD_HOST_MODEL_MODEL_H

#include "host/model/checkpoint.h"
#include "host/model/config.h"

struct synthetic;

struct model {
    char dir[4096];
    struct model_config config;
    struct checkpoint *checkpoint;
    struct synthetic *synthetic; // what is behind random weights (synthetic.h); NULL: files
    uint32_t distinct_layers;    // of each kind (dense, MoE) that have weights of their own; 0: all
};

/* The layer whose weights this layer has: another one only in a synthetic model that does not fit otherwise.
 */
static inline uint32_t model_weights_layer(const struct model *m, uint32_t layer)
{
    uint32_t first = model_layer_is_dense(&m->config, layer) ? 0 : m->config.first_dense_layers;
    return m->distinct_layers ? first + (layer - first) % m->distinct_layers : layer;
}

int model_open(struct model *out, const char *dir, struct error *err);
void model_close(struct model *m);

#endif
