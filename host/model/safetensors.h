/* safetensors.h: the header of one safetensors file image: names, types, shapes and places of its tensors.
 *
 * Internal to host/model (checkpoint.h is the public face). Touches only the first 8 + N bytes of the image.
 * Checked: the header fits, is one JSON object of tensor descriptions, every shape times its element size is
 * exactly the span of its offsets, every span lies inside the file, none overlap, no name occurs twice.
 * Tolerated: gaps between tensors and bytes after the last one (writers that align data leave them), any
 * alignment. */
#ifndef DUCKD_HOST_MODEL_SAFETENSORS_H
#define DUCKD_HOST_MODEL_SAFETENSORS_H

#include "host/model/checkpoint.h"

#define SAFETENSORS_MAX_HEADER 100000000u // bytes: what the format allows
#define SAFETENSORS_MAX_NAME 255u

struct safetensors {
    struct tensor *tensors; // (count) by ascending offset; data points into the image, file is 0
    size_t count;
    char *names; // storage behind tensors[].name
};

int safetensors_parse(struct safetensors *out, const void *image, size_t bytes, const char *name,
                      struct error *err);
void safetensors_free(struct safetensors *s);

#endif
