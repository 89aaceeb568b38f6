/* config.h: the shape of a model, read from config.json, validated once, never changed afterwards.
 *
 * Every size used anywhere in duckd comes from here; none is a constant of the program. Refused with one
 * line that names the file, the key and both values: unknown architectures, missing or mistyped keys,
 * numbers out of the ranges below, shapes the arithmetic cannot serve. */
#ifndef DUCKD_HOST_MODEL_CONFIG_H
#define DUCKD_HOST_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

#define MODEL_MAX_TOP_K 64 // chosen experts per token, an upper bound for fixed arrays

enum model_arch { MODEL_DEEPSEEK_V3, MODEL_DEEPSEEK_V32 };

struct model_config {
    enum model_arch arch;
    uint32_t vocab_size, hidden_size, layers; // layers: main layers, MTP not counted
    uint32_t mtp_layers;                      // num_nextn_predict_layers (0 or 1 used); index = layers
    uint32_t max_positions;
    float rms_norm_eps; // MLA's own two norms and the indexer's LayerNorm use 1e-6 whatever this says

    // MLA
    uint32_t heads, q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim;
    float rope_theta;
    bool yarn; // rope_scaling present
    float yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_mscale, yarn_mscale_all_dim;
    uint32_t yarn_original_positions;

    // indexer (V3.2); index_topk = 0: none
    uint32_t index_heads, index_head_dim, index_topk;

    // feed-forward
    uint32_t first_dense_layers, dense_width; // first_k_dense_replace, intermediate_size
    uint32_t experts, shared_experts, expert_width, top_k, groups, top_groups;
    bool norm_topk_prob;
    float routed_scale;

    int32_t bos_id, eos_id[8]; // bos_id -1: none; config.json and generation_config.json together
    uint32_t eos_count;
};

/* Reads `dir`/config.json (and generation_config.json where present). */
int model_config_read(struct model_config *out, const char *dir, struct error *err);

/* The parser behind it, for tests and fuzzing: `name` is used in messages only. */
int model_config_parse(struct model_config *out, const char *json, size_t length, const char *name,
                       struct error *err);

static inline bool model_layer_is_dense(const struct model_config *c, uint32_t layer)
{
    return layer < c->first_dense_layers || c->experts == 0;
}

#endif
