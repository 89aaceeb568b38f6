/* model.cu: planning and loading of the weights: mapped checkpoint -> pinned staging -> device -> tiles. */
#include "cuda/model.cuh"

#include "cuda/layer.cuh"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE_BYTES ((size_t)32 << 20)

/* One walk: with memory == NULL it counts, else it loads. */
struct walk {
    struct gpu_model *m;
    const struct model *model;
    struct error *err;
    uint8_t *memory;
    size_t used, shared; // shared: by shared experts
    uint8_t *pinned[2], *staged[2];
    float *scales; // device copy of one scale grid
    size_t scales_size;
    cudaEvent_t free_again[2];
    cudaStream_t stream;
    unsigned turn;
    struct progress progress;
    double loaded;
};

static void *take(struct walk *w, size_t bytes)
{
    uint8_t *p = w->memory ? w->memory + w->used : nullptr;
    w->used += (bytes + 255) / 256 * 256;
    return p;
}

static int upload_scales(struct walk *w, const struct weight *src)
{
    struct error *err = w->err;
    size_t n = (size_t)((src->rows + 127) / 128) * ((src->cols + 127) / 128) * sizeof(float);
    if (n > w->scales_size)
        return gpu_host->error_set(err, -E2BIG, "%s: scale grid of %zu bytes, staging has %zu", src->name, n,
                                   w->scales_size);
    GPU_TRY(cudaStreamSynchronize(w->stream)); // earlier repacks still read the grid before
    GPU_TRY(cudaMemcpy(w->scales, src->scales, n, cudaMemcpyHostToDevice));
    return 0;
}

static int upload(struct walk *w, matrix *m, const struct weight *src, const matrix_source *view)
{
    struct error *err = w->err;
    const size_t element = src->dtype == DTYPE_F8_E4M3 ? 1 : src->dtype == DTYPE_BF16 ? 2 : 4;
    const size_t row = src->cols * element;
    const uint64_t unit = view->view == VIEW_PLAIN ? 16 : view->nope + view->v;
    const uint64_t chunk = STAGE_BYTES / row / unit * unit;
    if (chunk == 0)
        return gpu_host->error_set(err, -E2BIG,
                                   "%s: %llu rows of %zu bytes do not fit into %zu bytes of staging",
                                   src->name, (unsigned long long)unit, row, STAGE_BYTES);
    if (src->dtype == DTYPE_F8_E4M3) {
        int rc = upload_scales(w, src);
        if (rc) return rc;
    }
    for (uint64_t r = 0; r < src->rows; r += chunk) {
        const uint64_t n = src->rows - r < chunk ? src->rows - r : chunk;
        const unsigned b = w->turn++ & 1;
        GPU_TRY(cudaEventSynchronize(w->free_again[b]));
        memcpy(w->pinned[b], src->data + r * row, n * row);
        GPU_TRY(cudaMemcpyAsync(w->staged[b], w->pinned[b], n * row, cudaMemcpyHostToDevice, w->stream));
        GPU_TRY(matrix_repack(m, view, src->dtype, w->staged[b], (uint32_t)r, (uint32_t)n,
                              (uint32_t)src->cols, w->scales, w->stream));
        GPU_TRY(cudaEventRecord(w->free_again[b], w->stream));
        w->loaded += (double)(n * row);
        gpu_host->progress_update(&w->progress, w->loaded);
    }
    return 0;
}

static int add_matrix(struct walk *w, matrix *m, const struct weight *src, const matrix_source *view,
                      uint32_t rows, uint32_t cols, uint32_t group_rows)
{
    enum matrix_type type = src->dtype == DTYPE_F8_E4M3 ? MATRIX_FP8
                            : src->dtype == DTYPE_BF16  ? MATRIX_BF16
                                                        : MATRIX_F32;
    // A transposed tile must lie in one scale block; a strip in one group.
    if (view->view == VIEW_KEYS && type == MATRIX_FP8 && (view->nope % 128 || view->v % 128))
        type = MATRIX_F32;
    if (view->view != VIEW_PLAIN && (group_rows % 16 || view->nope % 16)) type = MATRIX_F32;
    matrix_shape(m, type, rows, cols, group_rows);
    m->data = (const uint8_t *)take(w, matrix_bytes(m));
    if (type == MATRIX_FP8) m->scales = (const float *)take(w, matrix_scale_bytes(m));
    return w->memory ? upload(w, m, src, view) : 0;
}

static int plain(struct walk *w, matrix *m, uint32_t rows, uint32_t cols, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static int plain(struct walk *w, matrix *m, uint32_t rows, uint32_t cols, const char *format, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    struct weight src;
    int rc = gpu_host->checkpoint_matrix(w->model->checkpoint, &src, rows, cols, w->err, "%s", name);
    if (rc) return rc;
    const matrix_source view = {VIEW_PLAIN, 0, 0, 0};
    return add_matrix(w, m, &src, &view, rows, cols, rows);
}

static int vector(struct walk *w, float **out, uint32_t n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int vector(struct walk *w, float **out, uint32_t n, const char *format, ...)
{
    struct error *err = w->err;
    char name[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    *out = (float *)take(w, n * sizeof(float));
    float *host = (float *)malloc(n * sizeof(float));
    if (!host) return gpu_host->error_set(err, -ENOMEM, "no memory for %s", name);
    int rc = gpu_host->checkpoint_vector(w->model->checkpoint, host, n, err, "%s", name);
    if (!rc && w->memory)
        rc = gpu_check(cudaMemcpy(*out, host, n * sizeof(float), cudaMemcpyHostToDevice), err, "cudaMemcpy");
    free(host);
    return rc;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        int try_rc = (call);                                                                                 \
        if (try_rc) return try_rc;                                                                           \
    } while (0)

static int add_attention(struct walk *w, struct layer *l, uint32_t i)
{
    const shape &s = w->m->s;
    TRY(vector(w, &l->in_norm, s.hidden, "model.layers.%u.input_layernorm.weight", i));
    TRY(vector(w, &l->post_norm, s.hidden, "model.layers.%u.post_attention_layernorm.weight", i));
    TRY(vector(w, &l->q_norm, s.q_rank, "model.layers.%u.self_attn.q_a_layernorm.weight", i));
    TRY(vector(w, &l->kv_norm, s.latent, "model.layers.%u.self_attn.kv_a_layernorm.weight", i));
    TRY(plain(w, &l->q_a, s.q_rank, s.hidden, "model.layers.%u.self_attn.q_a_proj.weight", i));
    TRY(plain(w, &l->kv_a, s.latent + s.rope, s.hidden, "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight",
              i));
    TRY(plain(w, &l->q_b, s.heads * (s.nope + s.rope), s.q_rank, "model.layers.%u.self_attn.q_b_proj.weight",
              i));
    struct weight kv_b;
    TRY(gpu_host->checkpoint_matrix(w->model->checkpoint, &kv_b, (uint64_t)s.heads * (s.nope + s.v), s.latent,
                                    w->err, "model.layers.%u.self_attn.kv_b_proj.weight", i));
    const matrix_source keys = {VIEW_KEYS, s.nope, s.v, s.latent},
                        values = {VIEW_VALUES, s.nope, s.v, s.latent};
    TRY(add_matrix(w, &l->keys, &kv_b, &keys, s.heads * s.latent, s.nope, s.latent));
    TRY(add_matrix(w, &l->values, &kv_b, &values, s.heads * s.v, s.latent, s.v));
    TRY(plain(w, &l->o, s.hidden, s.heads * s.v, "model.layers.%u.self_attn.o_proj.weight", i));
    if (s.index_topk == 0) return 0;
    TRY(plain(w, &l->index_k, s.index_dim, s.hidden, "model.layers.%u.self_attn.indexer.wk.weight", i));
    TRY(plain(w, &l->index_w, s.index_heads, s.hidden,
              "model.layers.%u.self_attn.indexer.weights_proj.weight", i));
    TRY(plain(w, &l->index_q, s.index_heads * s.index_dim, s.q_rank,
              "model.layers.%u.self_attn.indexer.wq_b.weight", i));
    TRY(vector(w, &l->index_norm, s.index_dim, "model.layers.%u.self_attn.indexer.k_norm.weight", i));
    return vector(w, &l->index_bias, s.index_dim, "model.layers.%u.self_attn.indexer.k_norm.bias", i);
}

static int add_feed_forward(struct walk *w, struct layer *l, uint32_t i, uint32_t width, const char *of)
{
    const uint32_t hidden = w->m->s.hidden;
    TRY(plain(w, &l->gate, width, hidden, "model.layers.%u.mlp.%sgate_proj.weight", i, of));
    TRY(plain(w, &l->up, width, hidden, "model.layers.%u.mlp.%sup_proj.weight", i, of));
    return plain(w, &l->down, hidden, width, "model.layers.%u.mlp.%sdown_proj.weight", i, of);
}

static int add_layer(struct walk *w, struct layer *l, uint32_t i)
{
    const shape &s = w->m->s;
    const struct model_config *c = &w->model->config;
    TRY(add_attention(w, l, i));
    l->dense = model_layer_is_dense(c, i);
    if (l->dense) return add_feed_forward(w, l, i, c->dense_width, "");
    if (w->m->shared) {
        const size_t before = w->used;
        TRY(add_feed_forward(w, l, i, c->shared_experts * c->expert_width, "shared_experts."));
        w->shared += w->used - before;
    }
    TRY(plain(w, &l->router, s.experts, s.hidden, "model.layers.%u.mlp.gate.weight", i));
    return vector(w, &l->router_bias, s.experts, "model.layers.%u.mlp.gate.e_score_correction_bias", i);
}

static int add_mtp(struct walk *w)
{
    struct gpu_model *m = w->m;
    const uint32_t i = m->main_layers, vocab = w->model->config.vocab_size;
    char name[128];
    TRY(vector(w, &m->mtp_embed_norm, m->s.hidden, "model.layers.%u.enorm.weight", i));
    TRY(vector(w, &m->mtp_hidden_norm, m->s.hidden, "model.layers.%u.hnorm.weight", i));
    TRY(plain(w, &m->mtp_proj, m->s.hidden, 2 * m->s.hidden, "model.layers.%u.eh_proj.weight", i));
    TRY(vector(w, &m->mtp_final_norm, m->s.hidden, "model.layers.%u.shared_head.norm.weight", i));
    TRY(add_layer(w, &m->layers[i], i));
    snprintf(name, sizeof name, "model.layers.%u.shared_head.head.weight", i);
    const struct tensor *own = gpu_host->checkpoint_find(w->model->checkpoint, name);
    const struct tensor *main = gpu_host->checkpoint_find(w->model->checkpoint, "lm_head.weight");
    if (own && main && (own->bytes != main->bytes || memcmp(own->data, main->data, own->bytes)))
        return plain(w, &m->mtp_head, vocab, m->s.hidden, "%s", name);
    m->mtp_head = m->head; // a copy of the main head, or none: one on the device is enough
    return 0;
}

static int walk_model(struct walk *w)
{
    struct gpu_model *m = w->m;
    const struct model_config *c = &w->model->config;
    struct error *err = w->err;
    m->inv_freq = (float *)take(w, m->s.rope / 2 * sizeof(float));
    TRY(vector(w, &m->final_norm, m->s.hidden, "model.norm.weight"));
    TRY(plain(w, &m->head, c->vocab_size, m->s.hidden, "lm_head.weight"));
    for (uint32_t i = 0; i < m->main_layers; i++) TRY(add_layer(w, &m->layers[i], i));
    if (m->mtp) TRY(add_mtp(w));
    if (w->memory) GPU_TRY(cudaStreamSynchronize(w->stream));
    return 0;
}

static int check_shape(const struct model_config *c, struct error *err)
{
    const struct {
        const char *what;
        uint32_t value, most, multiple;
    } limits[] = {{"hidden_size", c->hidden_size, HIDDEN_MAX, 4},
                  {"kv_lora_rank", c->kv_lora_rank, LATENT_MAX, 4},
                  {"q_lora_rank", c->q_lora_rank, 1u << 20, 4},
                  {"qk_nope_head_dim", c->qk_nope_dim, 1024, 4},
                  {"qk_rope_head_dim", c->qk_rope_dim, 256, 4},
                  {"v_head_dim", c->v_dim, 128, 32},
                  {"n_routed_experts", c->experts, 1024, 1},
                  {"n_group", c->groups, 64, 1},
                  {"index_head_dim", c->index_topk ? c->index_head_dim : 4, 256, 4}};
    for (const auto &l : limits)
        if (l.value > l.most || l.value % l.multiple)
            return gpu_host->error_set(err, -ENOTSUP,
                                       "CUDA backend: %s is %u; it serves multiples of %u up to %u", l.what,
                                       l.value, l.multiple, l.most);
    if (128 % c->v_dim || 128 / c->v_dim * div_up(c->kv_lora_rank, 128) > VALUE_BLOCKS)
        return gpu_host->error_set(
            err, -ENOTSUP,
            "CUDA backend: v_head_dim is %u with kv_lora_rank %u; it serves 128, 64, and "
            "32 up to kv_lora_rank %u",
            c->v_dim, c->kv_lora_rank, VALUE_BLOCKS / 4 * 128);
    return 0;
}

int gpu_model_plan(struct gpu_model *m, const struct model *model, bool mtp, bool shared, struct error *err)
{
    const struct model_config *c = &model->config;
    *m = {};
    TRY(check_shape(c, err));
    shape &s = m->s;
    s.hidden = c->hidden_size;
    s.heads = c->heads;
    s.q_rank = c->q_lora_rank;
    s.latent = c->kv_lora_rank;
    s.nope = c->qk_nope_dim;
    s.rope = c->qk_rope_dim;
    s.v = c->v_dim;
    s.index_heads = c->index_topk ? c->index_heads : 0;
    s.index_dim = c->index_topk ? c->index_head_dim : 0;
    s.index_topk = c->index_topk;
    s.experts = c->experts;
    s.groups = c->groups;
    s.top_groups = c->top_groups;
    s.top_k = c->top_k;
    s.eps = c->rms_norm_eps;
    s.norm_topk = c->norm_topk_prob;
    s.routed_scale = c->routed_scale;
    struct rope rope;
    gpu_host->rope_init(&rope, c);
    s.softmax_scale = gpu_host->rope_softmax_scale(c);
    s.rope_factor = rope.amplitude;
    if (s.index_topk) s.index_scale = 1.0f / sqrtf((float)s.index_heads) / sqrtf((float)s.index_dim);
    m->main_layers = c->layers;
    m->mtp = mtp && c->mtp_layers;
    m->shared = shared && c->shared_experts;
    m->count = c->layers + (m->mtp ? 1 : 0);
    m->layers = (struct layer *)calloc(m->count, sizeof *m->layers);
    if (!m->layers) return gpu_host->error_set(err, -ENOMEM, "no memory for %u layers", m->count);
    TRY(gpu_host->checkpoint_matrix(model->checkpoint, &m->embed, c->vocab_size, s.hidden, err,
                                    "model.embed_tokens.weight"));
    struct walk w = {};
    w.m = m;
    w.model = model;
    w.err = err;
    TRY(walk_model(&w));
    m->bytes = w.used;
    m->shared_bytes = w.shared;
    return 0;
}

static int open_staging(struct walk *w)
{
    struct error *err = w->err;
    GPU_TRY(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        GPU_TRY(cudaHostAlloc((void **)&w->pinned[i], STAGE_BYTES, cudaHostAllocDefault));
        GPU_TRY(cudaMalloc((void **)&w->staged[i], STAGE_BYTES));
        GPU_TRY(cudaEventCreateWithFlags(&w->free_again[i], cudaEventDisableTiming));
    }
    w->scales_size = (size_t)4 << 20;
    GPU_TRY(cudaMalloc((void **)&w->scales, w->scales_size));
    return 0;
}

static void close_staging(struct walk *w)
{
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(w->pinned[i]);
        cudaFree(w->staged[i]);
        if (w->free_again[i]) cudaEventDestroy(w->free_again[i]);
    }
    cudaFree(w->scales);
    if (w->stream) cudaStreamDestroy(w->stream);
}

int gpu_model_load(struct gpu_model *m, const struct model *model, struct error *err)
{
    GPU_TRY(cudaMalloc((void **)&m->memory, m->bytes));
    struct walk w = {};
    w.m = m;
    w.model = model;
    w.err = err;
    w.memory = m->memory;
    gpu_host->progress_begin(&w.progress, "loading to the GPU", "MB", (double)m->bytes, 1e6);
    int rc = open_staging(&w);
    if (!rc) rc = walk_model(&w);
    gpu_host->progress_end(&w.progress);
    close_staging(&w);
    if (rc) return rc;
    struct rope rope;
    gpu_host->rope_init(&rope, &model->config);
    GPU_TRY(cudaMemcpy(m->inv_freq, rope.inverse_frequency, m->s.rope / 2 * sizeof(float), cudaMemcpyHostToDevice));
    return 0;
}

void gpu_model_close(struct gpu_model *m)
{
    cudaFree(m->memory);
    free(m->layers);
    *m = {};
}

kv_layout kv_layout_make(const shape &s, uint32_t layers, enum kv_dtype dtype)
{
    auto round16 = [](size_t n) { return (uint32_t)((n + 15) / 16 * 16); };
    kv_layout l = {};
    const uint32_t element = dtype == KV_F32 ? 4 : dtype == KV_BF16 ? 2 : 1;
    l.rope_at = dtype == KV_FP8 ? round16(s.latent) : s.latent * element;
    const uint32_t rope_end = l.rope_at + s.rope * (dtype == KV_F32 ? 4 : 2);
    l.scale_at = round16(rope_end);
    l.row_bytes = dtype == KV_FP8 ? round16(l.scale_at + (s.latent + 127) / 128 * 4) : round16(rope_end);
    l.index_scale_at = round16(s.index_dim * element);
    l.index_bytes =
        dtype == KV_FP8 ? round16(l.index_scale_at + (s.index_dim + 127) / 128 * 4) : l.index_scale_at;
    if (s.index_topk == 0) l.index_bytes = 0;
    l.index_at = (size_t)layers * KV_PAGE * l.row_bytes;
    l.page_bytes = ((size_t)layers * KV_PAGE * (l.row_bytes + l.index_bytes) + 255) / 256 * 256;
    return l;
}
