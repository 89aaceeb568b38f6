/* synth_model.c: writes a complete random checkpoint of any supported config, for tests and benches.
 *
 * usage: synth-model --config CONFIG.json --out DIR [--seed N] [--shards K] [--ue8m0] [--tokenizer DIR]
 *
 * Every element is a function of (seed, tensor name, index) alone (splitmix64), so neither the number of
 * shards nor the order of writing changes a value. Magnitudes keep activations near 1 and logits near a
 * standard deviation of 2. With quantization_config in the config linear layers are fp8 with fp32 block
 * scales (powers of two with --ue8m0), without it bf16; the rest has the dtypes of the published files. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/model/config.h"
#include "host/model/json.h"

#define CHUNK ((uint64_t)1 << 20) // elements made at a time
#define BYTES_STD 147.8f          // standard deviation of the sum of four random bytes

enum kind {
    KIND_FP8,   // codes of values with standard deviation BYTES_STD / 4
    KIND_SCALE, // what brings them to `std`
    KIND_BF16,  // mean + std x deviate
    KIND_F32,
};

struct out_tensor {
    char name[120];
    enum kind kind;
    uint32_t dims;
    uint64_t shape[2], count, bytes;
    float mean, std;
    uint32_t shard;
};

struct synth {
    struct model_config config;
    uint64_t seed;
    uint32_t shards;
    bool fp8, ue8m0;
    const char *out;
    struct out_tensor *tensors;
    size_t count, room;
    uint8_t code_of_sum[1021];
};

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("synth-model: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* ---- the list of tensors ---- */

static struct out_tensor *add(struct synth *s, enum kind kind, uint64_t rows, uint64_t cols, float mean,
                              float std, const char *format, va_list args)
{
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->tensors = realloc(s->tensors, s->room * sizeof *s->tensors);
        if (!s->tensors) die("no memory for %zu tensors", s->room);
    }
    struct out_tensor *t = &s->tensors[s->count++];
    *t = (struct out_tensor){
        .kind = kind, .dims = cols ? 2 : 1, .shape = {rows, cols}, .mean = mean, .std = std};
    t->count = cols ? rows * cols : rows;
    t->bytes = t->count * (kind == KIND_FP8 ? 1 : kind == KIND_BF16 ? 2 : 4);
    vsnprintf(t->name, sizeof t->name, format, args);
    return t;
}

static void vector(struct synth *s, enum kind kind, uint64_t n, float mean, float std, const char *format,
                   ...) __attribute__((format(printf, 6, 7)));
static void vector(struct synth *s, enum kind kind, uint64_t n, float mean, float std, const char *format,
                   ...)
{
    va_list args;
    va_start(args, format);
    add(s, kind, n, 0, mean, std, format, args);
    va_end(args);
}

/* A matrix that is never fp8. */
static void plain(struct synth *s, uint64_t rows, uint64_t cols, float std, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void plain(struct synth *s, uint64_t rows, uint64_t cols, float std, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(s, KIND_BF16, rows, cols, 0.0f, std, format, args);
    va_end(args);
}

/* A linear layer: std = gain / sqrt(inputs) keeps the size of what passes. */
static void linear(struct synth *s, uint64_t rows, uint64_t cols, float gain, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void linear(struct synth *s, uint64_t rows, uint64_t cols, float gain, const char *format, ...)
{
    const float std = gain / sqrtf((float)cols);
    va_list args;
    va_start(args, format);
    const struct out_tensor *t = add(s, s->fp8 ? KIND_FP8 : KIND_BF16, rows, cols, 0.0f, std, format, args);
    va_end(args);
    char name[sizeof t->name];
    memcpy(name, t->name, sizeof name);
    if (s->fp8) {
        vector(s, KIND_SCALE, (rows + 127) / 128, 0.0f, std, "%.100s_scale_inv", name);
        struct out_tensor *scale = &s->tensors[s->count - 1];
        scale->dims = 2;
        scale->shape[1] = (cols + 127) / 128;
        scale->count *= scale->shape[1];
        scale->bytes = 4 * scale->count;
    }
}

static void list_attention(struct synth *s, uint32_t l)
{
    const struct model_config *c = &s->config;
    const uint64_t hidden = c->hidden_size;
    vector(s, KIND_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.input_layernorm.weight", l);
    vector(s, KIND_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.post_attention_layernorm.weight", l);
    linear(s, c->q_lora_rank, hidden, 1.0f, "model.layers.%u.self_attn.q_a_proj.weight", l);
    vector(s, KIND_BF16, c->q_lora_rank, 1.0f, 0.1f, "model.layers.%u.self_attn.q_a_layernorm.weight", l);
    linear(s, (uint64_t)c->heads * (c->qk_nope_dim + c->qk_rope_dim), c->q_lora_rank, 1.0f,
           "model.layers.%u.self_attn.q_b_proj.weight", l);
    linear(s, c->kv_lora_rank + c->qk_rope_dim, hidden, 1.0f,
           "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", l);
    vector(s, KIND_BF16, c->kv_lora_rank, 1.0f, 0.1f, "model.layers.%u.self_attn.kv_a_layernorm.weight", l);
    linear(s, (uint64_t)c->heads * (c->qk_nope_dim + c->v_dim), c->kv_lora_rank, 1.0f,
           "model.layers.%u.self_attn.kv_b_proj.weight", l);
    linear(s, hidden, (uint64_t)c->heads * c->v_dim, 1.0f, "model.layers.%u.self_attn.o_proj.weight", l);
    if (c->arch != MODEL_DEEPSEEK_V32) return;
    linear(s, (uint64_t)c->index_heads * c->index_head_dim, c->q_lora_rank, 1.0f,
           "model.layers.%u.self_attn.indexer.wq_b.weight", l);
    linear(s, c->index_head_dim, hidden, 1.0f, "model.layers.%u.self_attn.indexer.wk.weight", l);
    vector(s, KIND_F32, c->index_head_dim, 1.0f, 0.1f, "model.layers.%u.self_attn.indexer.k_norm.weight", l);
    vector(s, KIND_F32, c->index_head_dim, 0.0f, 0.1f, "model.layers.%u.self_attn.indexer.k_norm.bias", l);
    plain(s, c->index_heads, hidden, 1.0f / sqrtf((float)hidden),
          "model.layers.%u.self_attn.indexer.weights_proj.weight", l);
}

static void list_mlp(struct synth *s, uint64_t width, float gain, const char *prefix)
{
    const uint64_t hidden = s->config.hidden_size;
    linear(s, width, hidden, 1.0f, "%s.gate_proj.weight", prefix);
    linear(s, width, hidden, 1.0f, "%s.up_proj.weight", prefix);
    linear(s, hidden, width, gain, "%s.down_proj.weight", prefix);
}

static void list_feed_forward(struct synth *s, uint32_t l)
{
    const struct model_config *c = &s->config;
    char prefix[80];
    if (model_layer_is_dense(c, l)) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp", l);
        list_mlp(s, c->dense_width, 1.5f, prefix);
        return;
    }
    plain(s, c->experts, c->hidden_size, 2.0f / sqrtf((float)c->hidden_size),
          "model.layers.%u.mlp.gate.weight", l);
    vector(s, KIND_F32, c->experts, 0.0f, 0.1f, "model.layers.%u.mlp.gate.e_score_correction_bias", l);
    for (uint32_t e = 0; e < c->experts; e++) {
        snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u", l, e);
        list_mlp(s, c->expert_width, 1.0f, prefix);
    }
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.shared_experts", l);
    if (c->shared_experts) list_mlp(s, (uint64_t)c->shared_experts * c->expert_width, 1.0f, prefix);
}

/* The MTP layer shares the main embedding and head, so it has no copies of them. */
static void list_mtp(struct synth *s, uint32_t l)
{
    const uint64_t hidden = s->config.hidden_size;
    vector(s, KIND_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.enorm.weight", l);
    vector(s, KIND_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.hnorm.weight", l);
    plain(s, hidden, 2 * hidden, 1.0f / sqrtf(2.0f * (float)hidden), "model.layers.%u.eh_proj.weight", l);
    vector(s, KIND_BF16, hidden, 1.0f, 0.1f, "model.layers.%u.shared_head.norm.weight", l);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct out_tensor *)a)->name, ((const struct out_tensor *)b)->name);
}

static void list_tensors(struct synth *s)
{
    const struct model_config *c = &s->config;
    plain(s, c->vocab_size, c->hidden_size, 1.0f, "model.embed_tokens.weight");
    plain(s, c->vocab_size, c->hidden_size, 2.0f / sqrtf((float)c->hidden_size), "lm_head.weight");
    vector(s, KIND_BF16, c->hidden_size, 1.0f, 0.1f, "model.norm.weight");
    for (uint32_t l = 0; l < c->layers + c->mtp_layers; l++) {
        list_attention(s, l);
        list_feed_forward(s, l);
        if (l >= c->layers) list_mtp(s, l);
    }
    qsort(s->tensors, s->count, sizeof *s->tensors, compare_names);
}

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
static void fill_codes(struct synth *s)
{
    for (int sum = 0; sum <= 1020; sum++) {
        float x = (float)abs(sum - 510) / 4.0f;
        unsigned best = 0;
        for (unsigned code = 1; code < 0x7f; code++) {
            float d = fabsf(e4m3_magnitude(code) - x), old = fabsf(e4m3_magnitude(best) - x);
            if (d < old || (d == old && code % 2 == 0)) best = code;
        }
        s->code_of_sum[sum] = (uint8_t)(best | (sum < 510 ? 0x80u : 0u));
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

static float scale_value(const struct synth *s, const struct out_tensor *t, uint64_t stream, uint64_t i)
{
    float scale = t->std / (BYTES_STD / 4.0f);
    float u = (float)(word(stream, i) >> 40) * 0x1p-24f;
    if (!s->ue8m0) return scale * (0.75f + 0.5f * u);
    int e;
    return ldexpf(1.0f, frexpf(scale * (u < 0.5f ? 0.75f : 1.5f), &e) < 0.70710678f ? e - 1 : e);
}

/* Elements [first, first + n) in the file's format. */
static void make_elements(const struct synth *s, const struct out_tensor *t, uint64_t first, uint64_t n,
                          uint8_t *out)
{
    const uint64_t stream = stream_of(s->seed, t->name);
    for (uint64_t i = 0; i < n; i++) {
        if (t->kind == KIND_SCALE) {
            put_f32(out + 4 * i, scale_value(s, t, stream, first + i));
            continue;
        }
        const uint32_t sum = byte_sum(stream, first + i);
        const float x = t->mean + t->std * (((float)sum - 510.0f) / BYTES_STD);
        if (t->kind == KIND_FP8)
            out[i] = s->code_of_sum[sum];
        else if (t->kind == KIND_BF16)
            put_bf16(out + 2 * i, x);
        else
            put_f32(out + 4 * i, x);
    }
}

/* ---- files ---- */

static FILE *create(const struct synth *s, const char *file)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", s->out, file);
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: %s", path, strerror(errno));
    return f;
}

static void finish(const struct synth *s, FILE *f, const char *file)
{
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) die("%s/%s: writing failed: %s", s->out, file, strerror(errno));
}

static void shard_name(const struct synth *s, uint32_t shard, char name[64])
{
    if (s->shards == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, s->shards);
}

static const char *dtype_name(enum kind k)
{
    return k == KIND_FP8 ? "F8_E4M3" : k == KIND_BF16 ? "BF16" : "F32";
}

static char *make_header(const struct synth *s, uint32_t shard, size_t *length)
{
    char *text;
    FILE *f = open_memstream(&text, length);
    if (!f) die("no memory for a header");
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    uint64_t at = 0;
    for (const struct out_tensor *t = s->tensors; t < s->tensors + s->count; t++) {
        if (t->shard != shard) continue;
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64, t->name, dtype_name(t->kind),
                t->shape[0]);
        if (t->dims == 2) fprintf(f, ",%" PRIu64, t->shape[1]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    fputc('}', f);
    fflush(f);
    while (*length % 8) {
        fputc(' ', f);
        fflush(f);
    }
    fclose(f);
    return text;
}

static void write_shard(const struct synth *s, uint32_t shard, uint8_t *buffer)
{
    char file[64];
    shard_name(s, shard, file);
    FILE *f = create(s, file);
    size_t length;
    char *header = make_header(s, shard, &length);
    const uint64_t n = length; // little-endian hosts only, like the rest of duckd
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, length, f);
    free(header);
    for (const struct out_tensor *t = s->tensors; t < s->tensors + s->count; t++) {
        if (t->shard != shard) continue;
        for (uint64_t first = 0; first < t->count; first += CHUNK) {
            uint64_t part = t->count - first < CHUNK ? t->count - first : CHUNK;
            make_elements(s, t, first, part, buffer);
            fwrite(buffer, t->bytes / t->count, part, f);
        }
    }
    finish(s, f, file);
}

static void write_index(const struct synth *s, uint64_t bytes)
{
    const char *file = "model.safetensors.index.json";
    FILE *f = create(s, file);
    fprintf(f, "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{", bytes);
    for (size_t i = 0; i < s->count; i++) {
        char shard[64];
        shard_name(s, s->tensors[i].shard, shard);
        fprintf(f, "%s\n\"%s\":\"%s\"", i ? "," : "", s->tensors[i].name, shard);
    }
    fputs("}}\n", f);
    finish(s, f, file);
}

/* What an earlier run with another number of shards left would be opened instead of ours. */
static void remove_other_layout(const struct synth *s)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", s->out,
             s->shards == 1 ? "model.safetensors.index.json" : "model.safetensors");
    if (remove(path) != 0 && errno != ENOENT) die("%s: cannot remove: %s", path, strerror(errno));
}

static uint64_t assign_shards(struct synth *s)
{
    uint64_t total = 0, at = 0;
    for (size_t i = 0; i < s->count; i++) total += s->tensors[i].bytes;
    for (size_t i = 0; i < s->count; i++) {
        s->tensors[i].shard = (uint32_t)((double)at / (double)total * s->shards);
        at += s->tensors[i].bytes;
    }
    return total;
}

static char *read_text(const char *path, size_t *length)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) die("%s: %s", path, strerror(errno));
    char *text = malloc((size_t)st.st_size + 1);
    if (!text) die("%s: no memory for %lld bytes", path, (long long)st.st_size);
    *length = fread(text, 1, (size_t)st.st_size, f);
    if (*length != (size_t)st.st_size)
        die("%s: %zu of %lld bytes read", path, *length, (long long)st.st_size);
    fclose(f);
    return text;
}

static void write_text(const struct synth *s, const char *file, const char *text, size_t length)
{
    FILE *f = create(s, file);
    fwrite(text, 1, length, f);
    finish(s, f, file);
}

static void copy_tokenizer(const struct synth *s, const char *from)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char path[4400];
        snprintf(path, sizeof path, "%s/%s", from, files[i]);
        size_t length;
        char *text = read_text(path, &length);
        write_text(s, files[i], text, length);
        free(text);
    }
}

static bool wants_fp8(const char *text, size_t length, const char *name)
{
    cJSON *root;
    struct error err;
    if (json_parse(&root, text, length, name, &err)) die("%s", err.text);
    bool fp8 = json_get(root, "quantization_config") != NULL;
    cJSON_Delete(root);
    return fp8;
}

static uint64_t number(const char *option, const char *text, uint64_t max)
{
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || v > max)
        die("--%s %s: must be an integer 0 to %" PRIu64, option, text, max);
    return v;
}

static void generate(struct synth *s, const char *config, const char *tokenizer)
{
    size_t length;
    char *text = read_text(config, &length);
    struct error err;
    if (model_config_parse(&s->config, text, length, config, &err)) die("%s", err.text);
    s->fp8 = wants_fp8(text, length, config);
    if (mkdir(s->out, 0777) != 0 && errno != EEXIST) die("%s: %s", s->out, strerror(errno));
    write_text(s, "config.json", text, length);
    free(text);
    if (tokenizer) copy_tokenizer(s, tokenizer);
    fill_codes(s);
    list_tensors(s);
    uint64_t bytes = assign_shards(s);
    uint8_t *buffer = malloc(4 * CHUNK);
    if (!buffer) die("no memory for %" PRIu64 " bytes", 4 * CHUNK);
    for (uint32_t i = 0; i < s->shards; i++) write_shard(s, i, buffer);
    if (s->shards > 1) write_index(s, bytes);
    remove_other_layout(s);
    free(buffer);
    free(s->tensors);
    fprintf(stderr, "synth-model: %s: %zu tensors, %.1f MB, %u file%s\n", s->out, s->count,
            (double)bytes / 1e6, s->shards, s->shards == 1 ? "" : "s");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'},
        {"out", required_argument, NULL, 'o'},
        {"seed", required_argument, NULL, 's'},
        {"shards", required_argument, NULL, 'k'},
        {"ue8m0", no_argument, NULL, 'u'},
        {"tokenizer", required_argument, NULL, 't'},
        {NULL, 0, NULL, 0},
    };
    struct synth s = {.seed = 1, .shards = 1};
    const char *config = NULL, *tokenizer = NULL;
    bool usage = false;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'c')
            config = optarg;
        else if (o == 'o')
            s.out = optarg;
        else if (o == 's')
            s.seed = number("seed", optarg, UINT64_MAX);
        else if (o == 'k')
            s.shards = (uint32_t)number("shards", optarg, 1000);
        else if (o == 'u')
            s.ue8m0 = true;
        else if (o == 't')
            tokenizer = optarg;
        else
            usage = true;
    }
    if (usage || !config || !s.out || !s.shards || optind != argc) {
        fputs("usage: synth-model --config CONFIG.json --out DIR [--seed N] [--shards K] [--ue8m0] "
              "[--tokenizer DIR]\n",
              stderr);
        return 2;
    }
    generate(&s, config, tokenizer);
    return 0;
}
