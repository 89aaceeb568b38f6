/* config.c: see config.h. The allowed ranges stand in tables beside the keys; what depends on several keys
 * follows in check_*(). Ranges are far above every published model and far below what would overflow: any
 * product of two of these numbers fits into 64 bits, most into 32. */
#include "host/model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/model/json.h"

#define MAX_CONFIG_BYTES ((size_t)1 << 20)
#define REQUIRED (-1)

/* Where a value is looked for and how messages call that place. */
struct section {
    const cJSON *object;
    const char *file, *prefix; // prefix: "" or "rope_scaling."
    struct error *err;
};

struct uint_key {
    const char *key;
    size_t offset; // in struct model_config
    uint32_t min, max, step;
    int64_t fallback; // when absent or null; REQUIRED: then it is refused
};
#define UINT(key, member, min, max, step, fallback)                                                          \
    {                                                                                                        \
        key, offsetof(struct model_config, member), min, max, step, fallback                                 \
    }

static const struct uint_key uint_keys[] = {
    UINT("vocab_size", vocab_size, 2, 1u << 20, 1, REQUIRED),
    UINT("hidden_size", hidden_size, 8, 65536, 8, REQUIRED),
    UINT("num_hidden_layers", layers, 1, 1000, 1, REQUIRED),
    UINT("num_nextn_predict_layers", mtp_layers, 0, 1, 1, 0),
    UINT("max_position_embeddings", max_positions, 1, 1u << 24, 1, REQUIRED),
    UINT("num_attention_heads", heads, 1, 1024, 1, REQUIRED),
    UINT("q_lora_rank", q_lora_rank, 1, 65536, 1, REQUIRED),
    UINT("kv_lora_rank", kv_lora_rank, 1, 16384, 1, REQUIRED),
    UINT("qk_nope_head_dim", qk_nope_dim, 1, 1024, 1, REQUIRED),
    UINT("qk_rope_head_dim", qk_rope_dim, 2, 1024, 2, REQUIRED),
    UINT("v_head_dim", v_dim, 1, 1024, 1, REQUIRED),
    UINT("first_k_dense_replace", first_dense_layers, 0, 1000, 1, REQUIRED),
    UINT("intermediate_size", dense_width, 8, 1u << 20, 8, REQUIRED),
    UINT("n_routed_experts", experts, 1, 65536, 1, REQUIRED),
    UINT("n_shared_experts", shared_experts, 0, 64, 1, 0),
    UINT("moe_intermediate_size", expert_width, 8, 1u << 20, 8, REQUIRED),
    UINT("num_experts_per_tok", top_k, 1, MODEL_MAX_TOP_K, 1, REQUIRED),
    UINT("n_group", groups, 1, 65536, 1, REQUIRED),
    UINT("topk_group", top_groups, 1, 65536, 1, REQUIRED),
};

static const struct uint_key indexer_keys[] = {
    UINT("index_n_heads", index_heads, 1, 1024, 1, REQUIRED),
    UINT("index_head_dim", index_head_dim, 2, 1024, 2, REQUIRED),
    UINT("index_topk", index_topk, 1, 1u << 24, 1, REQUIRED),
};

static const struct uint_key yarn_uint_keys[] = {
    UINT("original_max_position_embeddings", yarn_original_positions, 1, 1u << 24, 1, REQUIRED),
};

struct float_key {
    const char *key;
    size_t offset;
    double min, max, fallback; // NAN: required
};
#define FLOAT(key, member, min, max, fallback)                                                               \
    {                                                                                                        \
        key, offsetof(struct model_config, member), min, max, fallback                                       \
    }

static const struct float_key float_keys[] = {
    FLOAT("rms_norm_eps", rms_norm_eps, 1e-12, 1e-2, NAN),
    FLOAT("routed_scaling_factor", routed_scale, 1e-6, 1e6, NAN),
};

static const struct float_key theta_keys[] = {FLOAT("rope_theta", rope_theta, 1, 1e12, NAN)};

static const struct float_key yarn_float_keys[] = {
    FLOAT("factor", yarn_factor, 1, 1e4, NAN),
    FLOAT("beta_fast", yarn_beta_fast, 1e-3, 1e4, 32),
    FLOAT("beta_slow", yarn_beta_slow, 1e-3, 1e4, 1),
    FLOAT("mscale", yarn_mscale, 0, 100, 1),
    FLOAT("mscale_all_dim", yarn_mscale_all_dim, 0, 100, 0),
};

/* Keys with one supported value, as json_show() prints it; absent means that value. */
struct fixed_key {
    const char *key, *value;
};

static const struct fixed_key fixed_keys[] = {
    {"hidden_act", "\"silu\""},  {"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""},
    {"attention_bias", "false"}, {"moe_layer_freq", "1"},         {"tie_word_embeddings", "false"},
    {"rope_interleave", "true"}, {"mlp_bias", "false"},
};
static const struct fixed_key quantization_keys[] = {{"quant_method", "\"fp8\""}, {"fmt", "\"e4m3\""}};
static const struct fixed_key yarn_fixed_keys[] = {{"truncate", "true"}, {"attention_factor", "null"}};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void *member(struct model_config *c, size_t offset)
{
    return (char *)c + offset;
}

static int read_uints(const struct section *s, struct model_config *c, const struct uint_key *keys, size_t n)
{
    for (const struct uint_key *k = keys; k < keys + n; k++) {
        const cJSON *item = json_get(s->object, k->key);
        uint64_t v = 0;
        if (!item && k->fallback != REQUIRED)
            v = (uint64_t)k->fallback;
        else if (!item)
            return error_set(s->err, -EINVAL, "%s: key %s%s is missing", s->file, s->prefix, k->key);
        else if (!json_uint(item, &v) || v < k->min || v > k->max || v % k->step)
            return error_set(s->err, -EINVAL, "%s: %s%s is %s, must be an integer %u to %u%s%s", s->file,
                             s->prefix, k->key, json_show(item).s, k->min, k->max,
                             k->step == 8 ? ", a multiple of 8" : "", k->step == 2 ? ", even" : "");
        *(uint32_t *)member(c, k->offset) = (uint32_t)v;
    }
    return 0;
}

static int read_floats(const struct section *s, struct model_config *c, const struct float_key *keys,
                       size_t n)
{
    for (const struct float_key *k = keys; k < keys + n; k++) {
        const cJSON *item = json_get(s->object, k->key);
        double v = k->fallback;
        if (item && (!cJSON_IsNumber(item) || !(item->valuedouble >= k->min && item->valuedouble <= k->max)))
            return error_set(s->err, -EINVAL, "%s: %s%s is %s, must be a number %g to %g", s->file, s->prefix,
                             k->key, json_show(item).s, k->min, k->max);
        if (item)
            v = item->valuedouble;
        else if (isnan(v))
            return error_set(s->err, -EINVAL, "%s: key %s%s is missing", s->file, s->prefix, k->key);
        *(float *)member(c, k->offset) = (float)v;
    }
    return 0;
}

static int check_fixed(const struct section *s, const struct fixed_key *keys, size_t n)
{
    for (const struct fixed_key *k = keys; k < keys + n; k++) {
        const cJSON *item = json_get(s->object, k->key);
        if (item && strcmp(json_show(item).s, k->value) != 0)
            return error_set(s->err, -EINVAL, "%s: %s%s is %s, supported: %s", s->file, s->prefix, k->key,
                             json_show(item).s, k->value);
    }
    return 0;
}

/* ---- architecture ---- */

static const struct {
    const char *type, *class;
    enum model_arch arch;
} architectures[] = {
    {"deepseek_v3", "DeepseekV3ForCausalLM", MODEL_DEEPSEEK_V3},
    {"deepseek_v32", "DeepseekV32ForCausalLM", MODEL_DEEPSEEK_V32},
};

static int read_architecture(const struct section *s, struct model_config *c)
{
    const cJSON *type = json_get(s->object, "model_type");
    const char *class = NULL;
    for (size_t i = 0; i < COUNT(architectures); i++)
        if (cJSON_IsString(type) && strcmp(type->valuestring, architectures[i].type) == 0) {
            class = architectures[i].class;
            c->arch = architectures[i].arch;
        }
    if (!class)
        return error_set(s->err, -EINVAL,
                         "%s: model_type is %s, supported: \"deepseek_v3\", \"deepseek_v32\"", s->file,
                         json_show(type).s);
    const cJSON *list = json_get(s->object, "architectures");
    if (!list) return 0;
    for (const cJSON *i = list->child; i; i = i->next)
        if (cJSON_IsString(i) && strcmp(i->valuestring, class) == 0) return 0;
    return error_set(s->err, -EINVAL, "%s: architectures is [%s], but model_type %s means \"%s\"", s->file,
                     list->child ? json_show(list->child).s : "", type->valuestring, class);
}

/* ---- rope ---- */

/* "yarn", "default" (no scaling) or refused; older files call the key `type`, newer ones `rope_type`. */
static int read_rope_type(const struct section *s, bool *yarn)
{
    const cJSON *type = json_get(s->object, "type"), *rope_type = json_get(s->object, "rope_type");
    if (type && rope_type && strcmp(json_show(type).s, json_show(rope_type).s) != 0)
        return error_set(s->err, -EINVAL, "%s: %stype is %s, but %srope_type is %s", s->file, s->prefix,
                         json_show(type).s, s->prefix, json_show(rope_type).s);
    struct json_text value = json_show(type ? type : rope_type);
    *yarn = strcmp(value.s, "\"yarn\"") == 0;
    if (*yarn || strcmp(value.s, "\"default\"") == 0) return 0;
    return error_set(s->err, -EINVAL, "%s: %s%s is %s, supported: \"yarn\"", s->file, s->prefix,
                     type ? "type" : "rope_type", value.s);
}

static int read_yarn(const struct section *s, struct model_config *c)
{
    if (!cJSON_IsObject(s->object))
        return error_set(s->err, -EINVAL, "%s: %.*s is %s, must be an object", s->file,
                         (int)strlen(s->prefix) - 1, s->prefix, json_show(s->object).s);
    int rc = read_rope_type(s, &c->yarn);
    if (rc || !c->yarn) return rc;
    if ((rc = check_fixed(s, yarn_fixed_keys, COUNT(yarn_fixed_keys)))) return rc;
    if ((rc = read_uints(s, c, yarn_uint_keys, COUNT(yarn_uint_keys)))) return rc;
    if ((rc = read_floats(s, c, yarn_float_keys, COUNT(yarn_float_keys)))) return rc;
    if (c->yarn_beta_fast <= c->yarn_beta_slow)
        return error_set(s->err, -EINVAL, "%s: %sbeta_fast is %g, must be above beta_slow, %g", s->file,
                         s->prefix, (double)c->yarn_beta_fast, (double)c->yarn_beta_slow);
    return 0;
}

static int read_rope(const struct section *root, struct model_config *c)
{
    const cJSON *old = json_get(root->object, "rope_scaling"),
                *new = json_get(root->object, "rope_parameters");
    struct section rope = *root, theta = *root;
    rope.object = new ? new : old;
    rope.prefix = new ? "rope_parameters." : "rope_scaling.";
    if (new &&json_get(new, "rope_theta")) theta = rope;
    int rc = read_floats(&theta, c, theta_keys, COUNT(theta_keys));
    if (rc || !rope.object) return rc;
    return read_yarn(&rope, c);
}

/* ---- special tokens ---- */

static int add_eos(const struct section *s, struct model_config *c, const cJSON *item)
{
    uint64_t id;
    if (!json_uint(item, &id) || id >= c->vocab_size)
        return error_set(s->err, -EINVAL, "%s: eos_token_id is %s, must be an id below vocab_size, %u",
                         s->file, json_show(item).s, c->vocab_size);
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_id[i] == (int32_t)id) return 0;
    if (c->eos_count == COUNT(c->eos_id))
        return error_set(s->err, -EINVAL, "%s: eos_token_id: %s is one more than the %zu ids allowed",
                         s->file, json_show(item).s, COUNT(c->eos_id));
    c->eos_id[c->eos_count++] = (int32_t)id;
    return 0;
}

/* Adds what this file says to what is known: the first bos wins, eos ids accumulate. */
static int read_special_tokens(const struct section *s, struct model_config *c)
{
    const cJSON *bos = json_get(s->object, "bos_token_id"), *eos = json_get(s->object, "eos_token_id");
    uint64_t id;
    if (bos && (!json_uint(bos, &id) || id >= c->vocab_size))
        return error_set(s->err, -EINVAL, "%s: bos_token_id is %s, must be an id below vocab_size, %u",
                         s->file, json_show(bos).s, c->vocab_size);
    if (bos && c->bos_id < 0) c->bos_id = (int32_t)id;
    if (!eos) return 0;
    if (!cJSON_IsArray(eos)) return add_eos(s, c, eos);
    for (const cJSON *i = eos->child; i; i = i->next) {
        int rc = add_eos(s, c, i);
        if (rc) return rc;
    }
    return 0;
}

/* ---- what depends on several keys ---- */

static int check_experts(const struct section *s, const struct model_config *c)
{
    if (c->first_dense_layers > c->layers)
        return error_set(s->err, -EINVAL, "%s: first_k_dense_replace is %u, more than num_hidden_layers, %u",
                         s->file, c->first_dense_layers, c->layers);
    if (c->experts % c->groups)
        return error_set(s->err, -EINVAL, "%s: n_routed_experts is %u, must be divisible by n_group, %u",
                         s->file, c->experts, c->groups);
    uint32_t group = c->experts / c->groups;
    if (c->groups > 1 && group < 2)
        return error_set(
            s->err, -EINVAL,
            "%s: n_routed_experts %u in n_group %u groups leaves %u in a group, must be at least 2", s->file,
            c->experts, c->groups, group);
    if (c->top_groups > c->groups)
        return error_set(s->err, -EINVAL, "%s: topk_group is %u, more than n_group, %u", s->file,
                         c->top_groups, c->groups);
    if (c->top_k > group * c->top_groups)
        return error_set(s->err, -EINVAL,
                         "%s: num_experts_per_tok is %u, but the %u groups kept have only %u experts",
                         s->file, c->top_k, c->top_groups, group * c->top_groups);
    return 0;
}

static int check_attention(const struct section *s, const struct model_config *c)
{
    const cJSON *kv = json_get(s->object, "num_key_value_heads");
    if (kv && !(cJSON_IsNumber(kv) && kv->valuedouble == (double)c->heads))
        return error_set(s->err, -EINVAL, "%s: num_key_value_heads is %s, must equal num_attention_heads, %u",
                         s->file, json_show(kv).s, c->heads);
    if (c->index_topk && c->index_head_dim < c->qk_rope_dim)
        return error_set(s->err, -EINVAL, "%s: index_head_dim is %u, must be at least qk_rope_head_dim, %u",
                         s->file, c->index_head_dim, c->qk_rope_dim);
    return 0;
}

/* Absent in an unquantised checkpoint. */
static int check_quantization(const struct section *root)
{
    struct section s = *root;
    s.object = json_get(root->object, "quantization_config");
    s.prefix = "quantization_config.";
    if (!s.object) return 0;
    if (!json_get(s.object, "quant_method"))
        return error_set(s.err, -EINVAL, "%s: key quantization_config.quant_method is missing", s.file);
    int rc = check_fixed(&s, quantization_keys, COUNT(quantization_keys));
    if (rc) return rc;
    const cJSON *block = json_get(s.object, "weight_block_size"), *rows = block ? block->child : NULL;
    uint64_t r = 0, c = 0;
    if (cJSON_GetArraySize(block) != 2 || !rows)
        return error_set(s.err, -EINVAL,
                         "%s: quantization_config.weight_block_size is %s, supported: [128, 128]", s.file,
                         json_show(block).s);
    if (json_uint(rows, &r) && json_uint(rows->next, &c) && r == 128 && c == 128) return 0;
    return error_set(s.err, -EINVAL,
                     "%s: quantization_config.weight_block_size is [%s, %s], supported: [128, 128]", s.file,
                     json_show(rows).s, json_show(rows->next).s);
}

static int read_norm_topk_prob(const struct section *s, struct model_config *c)
{
    const cJSON *item = json_get(s->object, "norm_topk_prob");
    if (item && !cJSON_IsBool(item))
        return error_set(s->err, -EINVAL, "%s: norm_topk_prob is %s, must be true or false", s->file,
                         json_show(item).s);
    c->norm_topk_prob = !item || cJSON_IsTrue(item);
    return 0;
}

static int read_config(const struct section *s, struct model_config *c)
{
    if (!cJSON_IsObject(s->object))
        return error_set(s->err, -EINVAL, "%s: is %s, must be an object", s->file, json_show(s->object).s);
    int rc;
    if ((rc = read_architecture(s, c))) return rc;
    if ((rc = check_fixed(s, fixed_keys, COUNT(fixed_keys)))) return rc;
    if ((rc = check_quantization(s))) return rc;
    if ((rc = read_uints(s, c, uint_keys, COUNT(uint_keys)))) return rc;
    if (c->arch == MODEL_DEEPSEEK_V32 && (rc = read_uints(s, c, indexer_keys, COUNT(indexer_keys))))
        return rc;
    if ((rc = read_floats(s, c, float_keys, COUNT(float_keys)))) return rc;
    if ((rc = read_norm_topk_prob(s, c))) return rc;
    if ((rc = read_rope(s, c))) return rc;
    if ((rc = check_experts(s, c))) return rc;
    if ((rc = check_attention(s, c))) return rc;
    return read_special_tokens(s, c);
}

int model_config_parse(struct model_config *out, const char *json, size_t length, const char *name,
                       struct error *err)
{
    *out = (struct model_config){.bos_id = -1};
    cJSON *root;
    int rc = json_parse(&root, json, length, name, err);
    if (rc) return rc;
    rc = read_config(
        &(struct section){.object = root, .file = json_path_tail(name), .prefix = "", .err = err}, out);
    cJSON_Delete(root);
    return rc;
}

/* generation_config.json may add to the special tokens; sampling defaults in it are not ours to take. */
static int read_generation_config(struct model_config *c, const char *path, struct error *err)
{
    cJSON *root;
    struct error why;
    int rc = json_read(&root, path, MAX_CONFIG_BYTES, &why);
    if (rc == -ENOENT) return 0;
    if (rc) return error_set(err, rc, "%s", why.text);
    rc = read_special_tokens(
        &(struct section){.object = root, .file = json_path_tail(path), .prefix = "", .err = err}, c);
    cJSON_Delete(root);
    return rc;
}

int model_config_read(struct model_config *out, const char *dir, struct error *err)
{
    *out = (struct model_config){.bos_id = -1};
    char path[4096 + 64];
    if (strlen(dir) > 4096)
        return error_set(err, -ENAMETOOLONG, "model directory: path of %zu bytes", strlen(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    cJSON *root;
    int rc = json_read(&root, path, MAX_CONFIG_BYTES, err);
    if (rc) return rc;
    rc = read_config(
        &(struct section){.object = root, .file = json_path_tail(path), .prefix = "", .err = err}, out);
    cJSON_Delete(root);
    if (rc) return rc;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    return read_generation_config(out, path, err);
}
