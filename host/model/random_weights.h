/* random_weights.h: every tensor of a model with its random values, as a published checkpoint would have
 * them.
 *
 * Every element is a function of (seed, tensor name, index) alone (splitmix64), so neither the order of
 * making nor the layout of files changes a value. Magnitudes keep activations near 1 and logits near a
 * standard deviation of 2. Linear layers are fp8 with fp32 block scales or bf16, the rest has the dtypes of
 * the published files. Makes values; stores none. */
#ifndef DUCKD_HOST_MODEL_RANDOM_WEIGHTS_H
#define DUCKD_HOST_MODEL_RANDOM_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/model/config.h"

enum random_kind {
    RANDOM_FP8,   // codes of values with a fixed standard deviation
    RANDOM_SCALE, // what brings them to `std`
    RANDOM_BF16,  // mean + std x deviate
    RANDOM_F32,
};

struct random_tensor {
    char name[120];
    enum random_kind kind;
    uint32_t dims;
    uint64_t shape[2], count, bytes;
    float mean, std;
    uint32_t file; // for whoever writes files
};

struct random_model {
    const struct model_config *config;
    uint64_t seed;
    bool fp8, ue8m0;               // linear layers; scales are powers of two
    struct random_tensor *tensors; // (count) by ascending name
    size_t count;
    uint8_t code_of_sum[1021];
};

/* Lists the tensors of m->config. -ENOMEM: no memory. */
int random_model_list(struct random_model *m);
/* Elements [first, first + n) in the file's format. */
void random_model_elements(const struct random_model *m, const struct random_tensor *t, uint64_t first,
                           uint64_t n, uint8_t *out);
void random_model_free(struct random_model *m);

#endif
