/* layer_weights.cu: the weights of one layer of DeepSeek-V3.2 at full size, made by the generator that
 * tests/goldens/v32-layer-full/README.md describes, as the backend's own loader sees them. The layer is
 * called index 0 here and 3 there. */
#include "tests/cuda/layer_full.cuh"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "host/util/log.h"
}

/* ---- generator ---- */

static uint64_t seed_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h;
}

uint64_t word(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint8_t byte_at(uint64_t seed, uint64_t i)
{
    return (uint8_t)(word(seed, i / 8) >> 8 * (i % 8));
}

static int exponent_of(uint64_t cols)
{
    return cols == 7168 ? -13 : cols == 1536 || cols == 2048 ? -12 : cols == 512 ? -11 : -14;
}

/* Tensors live until the program ends. */
static uint8_t *fp8(const char *name, uint64_t rows, uint64_t cols, const uint8_t **scales)
{
    uint8_t *w = (uint8_t *)malloc(rows * cols);
    const uint64_t seed = seed_of(name);
    for (uint64_t i = 0; i < rows * cols / 8; i++) {
        uint64_t v = word(seed, i);
        memcpy(w + 8 * i, &v, 8);
    }
    for (uint64_t i = 0; i < rows * cols; i++)
        if ((w[i] & 0x7f) == 0x7f) w[i] ^= 1;
    char scale_name[256];
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    const uint64_t n = ((rows + 127) / 128) * ((cols + 127) / 128), s = seed_of(scale_name);
    float *f = (float *)malloc(n * sizeof *f);
    for (uint64_t i = 0; i < n; i++)
        f[i] = ldexpf(0.5f + (float)(word(s, i) >> 41) * 0x1p-23f, exponent_of(cols));
    *scales = (const uint8_t *)f;
    return w;
}

static uint8_t *bf16(const char *name, uint64_t n)
{
    uint16_t *w = (uint16_t *)malloc(n * 2);
    const uint64_t seed = seed_of(name);
    for (uint64_t i = 0; i < n; i++) {
        const float v = (float)(int8_t)byte_at(seed, i) * 0x1p-13f;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        w[i] = (uint16_t)(bits >> 16);
    }
    return (uint8_t *)w;
}

void plain(const char *name, float *out, uint64_t n)
{
    const uint64_t seed = seed_of(name);
    for (uint64_t i = 0; i < n; i++) out[i] = (float)(int8_t)byte_at(seed, i) * 0x1p-6f;
}

/* ---- the checkpoint as the loader sees it ---- */

static void golden_name(char *out, size_t size, const char *name)
{
    const char *layer = strstr(name, "layers.0.");
    if (layer)
        snprintf(out, size, "model.layers.3.%s", layer + strlen("layers.0."));
    else
        snprintf(out, size, "%s", name);
}

static int fake_matrix(const struct checkpoint *, struct weight *out, uint64_t rows, uint64_t cols,
                       struct error *, const char *format, ...)
{
    char name[256], golden[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    golden_name(golden, sizeof golden, name);
    *out = {};
    out->rows = rows;
    out->cols = cols;
    out->name = "generated";
    const bool small = strstr(name, "mlp.gate") || strstr(name, "weights_proj");
    if (strstr(name, "layers.") && !small) {
        out->dtype = DTYPE_F8_E4M3;
        out->data = fp8(golden, rows, cols, &out->scales);
    } else {
        out->dtype = DTYPE_BF16;
        out->data = bf16(golden, rows * cols);
    }
    return 0;
}

static int fake_vector(const struct checkpoint *, float *out, uint64_t n, struct error *, const char *format,
                       ...)
{
    char name[256], golden[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    golden_name(golden, sizeof golden, name);
    const uint64_t seed = seed_of(golden);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t b = byte_at(seed, i);
        out[i] = strstr(name, "bias") ? (float)(int8_t)b * (strstr(name, "k_norm") ? 0x1p-8f : 0x1p-10f)
                                      : (float)(96 + (b & 63)) / 128.0f;
    }
    return 0;
}

static const struct tensor *fake_find(const struct checkpoint *, const char *)
{
    return nullptr;
}

const struct cuda_host layer_host = {
    CUDA_HOST_ABI, error_set,   log_notice,  log_detail, progress_begin, progress_update,   progress_end,
    fake_find,     fake_matrix, fake_vector, nullptr,    rope_init,      rope_softmax_scale};

struct model make_model()
{
    struct model m = {};
    struct model_config &c = m.config;
    c.arch = MODEL_DEEPSEEK_V32;
    c.vocab_size = VOCAB, c.hidden_size = 7168, c.layers = 1, c.max_positions = POSITIONS;
    c.rms_norm_eps = 1e-6f;
    c.heads = 128, c.q_lora_rank = 1536, c.kv_lora_rank = 512, c.qk_nope_dim = 128, c.qk_rope_dim = 64,
    c.v_dim = 128;
    c.rope_theta = 10000;
    c.yarn = true, c.yarn_factor = 40, c.yarn_beta_fast = 32, c.yarn_beta_slow = 1, c.yarn_mscale = 1;
    c.yarn_mscale_all_dim = 1, c.yarn_original_positions = 4096;
    c.index_heads = 64, c.index_head_dim = 128, c.index_topk = 2048;
    c.expert_width = 2048, c.experts = 256, c.shared_experts = 1, c.top_k = 8, c.groups = 8, c.top_groups = 4;
    c.norm_topk_prob = true, c.routed_scale = 2.5f;
    return m;
}
