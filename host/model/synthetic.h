/* synthetic.h: a model of any shape whose weights are random and need almost no memory or disk.
 *
 * Every tensor is there by name, with the dtype and size of the published files, but all of one kind are
 * windows of the same few megabytes of random values, mapped again and again. Whoever copies weights
 * (backends, ducks) holds full-size copies, so memory traffic is that of a real model; texts mean nothing. */
#ifndef DUCKD_HOST_MODEL_SYNTHETIC_H
#define DUCKD_HOST_MODEL_SYNTHETIC_H

#include "host/model/model.h"

/* What quantization_config says: linear layers are fp8, with scales that are powers of two. */
struct synthetic_format {
    bool fp8, ue8m0;
};

/* Shape and format from a config.json or the folder of one. */
int synthetic_config_read(struct model_config *out, struct synthetic_format *format, const char *path,
                          struct error *err);

/* A model of that shape; model_close() frees its memory. `name` stands in messages. */
int synthetic_open(struct model *out, const struct model_config *c, struct synthetic_format format,
                   const char *name, struct error *err);
void synthetic_close(struct synthetic *s);

#endif
