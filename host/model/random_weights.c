/* random_weights.c: the list of a model's tensors, then their values. */
#include "host/model/random_weights.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_STD 147.8f // standard deviation of the sum of four random bytes

/* ---- values ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Word n of a tensor's own stream. */
static uint64_t word(uint64_t stream, uint64_t n)
{
    return mix(stream + (n + 1) * 0x9e3779b97f4a7c15u);
}

static uint64_t stream_of(uint64_t seed, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; // FNV-1a
    for (const char *p = name; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    return mix(h ^ mix(seed + 0x9e3779b97f4a7c15u));
}

/* Sum of four bytes of element i, 0 .. 1020: nearly normal, bounded, and exact in every arithmetic. */
static uint32_t byte_sum(uint64_t stream, uint64_t i)
{
    uint32_t w = (uint32_t)(word(stream, i / 2) >> (32 * (i % 2)));
    w = (w & 0x00ff00ffu) + (w >> 8 & 0x00ff00ffu);
    return (w & 0xffffu) + (w >> 16);
}

static float e4m3_magnitude(unsigned code)
{
    float m = (float)(code & 7);
    unsigned e = code >> 3;
    return e ? ldexpf(8.0f + m, (int)e - 10) : ldexpf(m, -9);
}

/* The nearest code of (sum - 510) / 4; of two equally near ones the one with an even mantissa. */
static void fill_codes(struct random_model *m)
{
    for (int sum = 0; sum <= 1020; sum++) {
        float x = (float)abs(sum - 510) / 4.0f;
        unsigned best = 0;
        for (unsigned code = 1; code < 0x7f; code++) {
            float d = fabsf(e4m3_magnitude(code) - x), old = fabsf(e4m3_magnitude(best) - x);
            if (d < old || (d == old && code % 2 == 0)) best = code;
        }
        m->code_of_sum[sum] = (uint8_t)(best | (sum < 510 ? 0x80u : 0u));
    }
}

static void put_f32(uint8_t *out, float x)
{
    memcpy(out, &x, 4);
}

static void put_bf16(uint8_t *out, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    out[0] = (uint8_t)bits;
    out[1] = (uint8_t)(bits >> 8);
}

static float scale_value(const struct random_model *m, const struct random_tensor *t, uint64_t stream,
                         uint64_t i)
{
    float scale = t->std / (BYTES_STD / 4.0f);
    float u = (float)(word(stream, i) >> 40) * 0x1p-24f;
    if (!m->ue8m0) return scale * (0.75f + 0.5f * u);
    int e;
    return ldexpf(1.0f, frexpf(scale * (u < 0.5f ? 0.75f : 1.5f), &e) < 0.70710678f ? e - 1 : e);
}

void random_model_elements(const struct random_model *m, const struct random_tensor *t, uint64_t first,
                           uint64_t n, uint8_t *out)
{
    const uint64_t stream = stream_of(m->seed, t->name);
    for (uint64_t i = 0; i < n; i++) {
        if (t->kind == RANDOM_SCALE) {
            put_f32(out + 4 * i, scale_value(m, t, stream, first + i));
            continue;
        }
        const uint32_t sum = byte_sum(stream, first + i);
        const float x = t->mean + t->std * (((float)sum - 510.0f) / BYTES_STD);
        if (t->kind == RANDOM_FP8)
            out[i] = m->code_of_sum[sum];
        else if (t->kind == RANDOM_BF16)
            put_bf16(out + 2 * i, x);
        else
            put_f32(out + 4 * i, x);
    }
}

/* ---- the list of tensors ---- */

static struct random_tensor *add(struct random_model *m, enum random_kind kind, uint64_t rows, uint64_t cols,
                                 float mean, float std, const char *format, va_list args)
{
    struct random_tensor *t = &m->tensors[m->count++];
    *t = (struct random_tensor){
        .kind = kind, .dims = cols ? 2 : 1, .shape = {rows, cols}, .mean = mean, .std = std};
    t->count = cols ? rows * cols : rows;
    t->bytes = t->count * (kind == RANDOM_FP8 ? 1 : kind == RANDOM_BF16 ? 2 : 4);
    vsnprintf(t->name, sizeof t->name, format, args);
    return t;
}

static void vector(struct random_model *m, enum random_kind kind, uint64_t n, float mean, float std,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
static void vector(struct random_model *m, enum random_kind kind, uint64_t n, float mean, float std,
                   const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(m, kind, n, 0, mean, std, format, args);
    va_end(args);
}

/* A matrix that is never fp8. */
static void plain(struct random_model *m, uint64_t rows, uint64_t cols, float std, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void plain(struct random_model *m, uint64_t rows, uint64_t cols, float std, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(m, RANDOM_BF16, rows, cols, 0.0f, std, format, args);
    va_end(args);
}

/* A linear layer: std = gain / sqrt(inputs) keeps the size of what passes. */
static void linear(struct random_model *m, uint64_t rows, uint64_t cols, float gain, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void linear(struct random_model *m, uint64_t rows, uint64_t cols, float gain, const char *format, ...)
{
    const float std = gain / sqrtf((float)cols);
    va_list args;
    va_start(args, format);
    const struct random_tensor *t =
        add(m, m->fp8 ? RANDOM_FP8 : RANDOM_BF16, rows, cols, 0.0f, std, format, args);
    va_end(args);
    char name[sizeof t->name];
    memcpy(name, t->name, sizeof name);
    if (m->fp8) {
        vector(m, RANDOM_SCALE, (rows + 127) / 128, 0.0f, std, "%.100s_scale_inv", name);
        struct random_tensor *scale = &m->tensors[m->count - 1];
        scale->dims = 2;
        scale->shape[1] = (cols + 127) / 128;
        scale->count *= scale->shape[1];
        scale->bytes = 4 * scale->count;
    }
}

static void list_attention(struct random_model *m, uint32_t l)
{
    const struct model_config *c = m->config;
    const uint64_t hidden = c->hidden_size;
    vector(m, RANDOM_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.input_layernorm.weight", l);
    vector(m, RANDOM_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.post_attention_layernorm.weight", l);
    linear(m, c->q_lora_rank, hidden, 1.0f, "model.layers.%u.self_attn.q_a_proj.weight", l);
    vector(m, RANDOM_BF16, c->q_lora_rank, 1.0f, 0.1f, "model.layers.%u.self_attn.q_a_layernorm.weight", l);
    linear(m, (uint64_t)c->heads * (c->qk_nope_dim + c->qk_rope_dim), c->q_lora_rank, 1.0f,
           "model.layers.%u.self_attn.q_b_proj.weight", l);
    linear(m, c->kv_lora_rank + c->qk_rope_dim, hidden, 1.0f,
           "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", l);
    vector(m, RANDOM_BF16, c->kv_lora_rank, 1.0f, 0.1f, "model.layers.%u.self_attn.kv_a_layernorm.weight", l);
    linear(m, (uint64_t)c->heads * (c->qk_nope_dim + c->v_dim), c->kv_lora_rank, 1.0f,
           "model.layers.%u.self_attn.kv_b_proj.weight", l);
    linear(m, hidden, (uint64_t)c->heads * c->v_dim, 1.0f, "model.layers.%u.self_attn.o_proj.weight", l);
    if (c->arch != MODEL_DEEPSEEK_V32) return;
    linear(m, (uint64_t)c->index_heads * c->index_head_dim, c->q_lora_rank, 1.0f,
           "model.layers.%u.self_attn.indexer.wq_b.weight", l);
    linear(m, c->index_head_dim, hidden, 1.0f, "model.layers.%u.self_attn.indexer.wk.weight", l);
    vector(m, RANDOM_F32, c->index_head_dim, 1.0f, 0.1f, "model.layers.%u.self_attn.indexer.k_norm.weight",
           l);
    vector(m, RANDOM_F32, c->index_head_dim, 0.0f, 0.1f, "model.layers.%u.self_attn.indexer.k_norm.bias", l);
    plain(m, c->index_heads, hidden, 1.0f / sqrtf((float)hidden),
          "model.layers.%u.self_attn.indexer.weights_proj.weight", l);
}

static void list_mlp(struct random_model *m, uint64_t width, float gain, const char *prefix)
{
    const uint64_t hidden = m->config->hidden_size;
    linear(m, width, hidden, 1.0f, "%s.gate_proj.weight", prefix);
    linear(m, width, hidden, 1.0f, "%s.up_proj.weight", prefix);
    linear(m, hidden, width, gain, "%s.down_proj.weight", prefix);
}

static void list_feed_forward(struct random_model *m, uint32_t l)
{
    const struct model_config *c = m->config;
    char prefix[80];
    if (model_layer_is_dense(c, l)) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp", l);
        list_mlp(m, c->dense_width, 1.5f, prefix);
        return;
    }
    plain(m, c->experts, c->hidden_size, 2.0f / sqrtf((float)c->hidden_size),
          "model.layers.%u.mlp.gate.weight", l);
    vector(m, RANDOM_F32, c->experts, 0.0f, 0.1f, "model.layers.%u.mlp.gate.e_score_correction_bias", l);
    for (uint32_t e = 0; e < c->experts; e++) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u", l, e);
        list_mlp(m, c->expert_width, 1.0f, prefix);
    }
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.shared_experts", l);
    if (c->shared_experts) list_mlp(m, (uint64_t)c->shared_experts * c->expert_width, 1.0f, prefix);
}

/* The MTP layer shares the main embedding and head, so it has no copies of them. */
static void list_mtp(struct random_model *m, uint32_t l)
{
    const uint64_t hidden = m->config->hidden_size;
    vector(m, RANDOM_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.enorm.weight", l);
    vector(m, RANDOM_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.hnorm.weight", l);
    plain(m, hidden, 2 * hidden, 1.0f / sqrtf(2.0f * (float)hidden), "model.layers.%u.eh_proj.weight", l);
    vector(m, RANDOM_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.shared_head.norm.weight", l);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct random_tensor *)a)->name, ((const struct random_tensor *)b)->name);
}

/* At most, of a layer: attention and norms, the MTP layer's own, feed-forward. */
static size_t most_tensors(const struct model_config *c)
{
    return 8 + (size_t)(c->layers + c->mtp_layers) * (32 + 6 * ((size_t)c->experts + 2));
}

int random_model_list(struct random_model *m)
{
    const struct model_config *c = m->config;
    m->count = 0;
    m->tensors = calloc(most_tensors(c), sizeof *m->tensors);
    if (!m->tensors) return -ENOMEM;
    fill_codes(m);
    plain(m, c->vocab_size, c->hidden_size, 1.0f, "model.embed_tokens.weight");
    plain(m, c->vocab_size, c->hidden_size, 2.0f / sqrtf((float)c->hidden_size), "lm_head.weight");
    vector(m, RANDOM_BF16, c->hidden_size, 1.0f, 0.1f, "model.norm.weight");
    for (uint32_t l = 0; l < c->layers + c->mtp_layers; l++) {
        list_attention(m, l);
        list_feed_forward(m, l);
        if (l >= c->layers) list_mtp(m, l);
    }
    qsort(m->tensors, m->count, sizeof *m->tensors, compare_names);
    return 0;
}

void random_model_free(struct random_model *m)
{
    free(m->tensors);
    m->tensors = NULL;
}
