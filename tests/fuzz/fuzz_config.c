/* fuzz_config.c: config.json from arbitrary bytes. What is accepted must keep the promises of config.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Loaders and kernels divide by these and size arrays with them. */
static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "accepted although not: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    struct error err = {""};
    if (model_config_parse(&c, (const char *)data, size, "fuzz", &err)) {
        require(err.text[0] != '\0' && !strchr(err.text, '\n'), "one line says why");
        return 0;
    }
    require(c.hidden_size && c.hidden_size % 8 == 0, "hidden a multiple of 8");
    require(c.expert_width && c.expert_width % 8 == 0, "expert width a multiple of 8");
    require(c.dense_width && c.dense_width % 8 == 0, "dense width a multiple of 8");
    require(c.qk_rope_dim % 2 == 0 && c.heads && c.layers && c.vocab_size, "attention shape");
    require(c.top_k >= 1 && c.top_k <= MODEL_MAX_TOP_K, "top_k");
    require(c.groups && c.experts % c.groups == 0, "groups divide experts");
    require(c.top_k <= (uint64_t)c.top_groups * (c.experts / c.groups), "enough experts kept");
    require(c.eos_count <= 8 && c.first_dense_layers <= c.layers, "counts");
    for (uint32_t i = 0; i < c.eos_count; i++)
        require((uint32_t)c.eos_id[i] < c.vocab_size, "eos in vocabulary");
    return 0;
}
