/* model.h: a checkpoint with its validated shape: what loaders of weights are handed. */
#ifndef DUCKD_HOST_MODEL_MODEL_H
#define DUCKD_HOST_MODEL_MODEL_H

#include "host/model/checkpoint.h"
#include "host/model/config.h"

struct model {
    char dir[4096];
    struct model_config config;
    struct checkpoint *checkpoint;
};

int model_open(struct model *out, const char *dir, struct error *err);
void model_close(struct model *m);

#endif
