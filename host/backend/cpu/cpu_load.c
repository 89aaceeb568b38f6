/* cpu_load.c: checkpoint tensors to the weights of cpu.h, by their published names. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/cpu/cpu.h"

static int load_vector(struct cpu_backend *b, float **out, size_t n, const char *prefix, const char *name,
                       struct error *err)
{
    *out = aligned_alloc(64, (n * sizeof(float) + 63) & ~(size_t)63);
    if (!*out) return error_set(err, -ENOMEM, "%s%s: no memory for %zu values", prefix, name, n);
    int e = checkpoint_vector(b->model->checkpoint, *out, n, err, "%s%s", prefix, name);
    if (e) return e;
    for (size_t i = 0; i < n; i++)
        if (!isfinite((*out)[i]))
            return error_set(err, -EINVAL, "%s%s: element %zu is not a finite number", prefix, name, i);
    b->weight_bytes += n * sizeof(float);
    return 0;
}

static int load_matrix(struct cpu_backend *b, struct linear *out, size_t rows, size_t cols,
                       const char *prefix, const char *name, struct error *err)
{
    struct weight w;
    int e = checkpoint_matrix(b->model->checkpoint, &w, rows, cols, err, "%s%s", prefix, name);
    if (!e) e = linear_load(out, &w, b->fp9, b->pool, err);
    if (!e) b->weight_bytes += linear_bytes(out);
    return e;
}

/* kv_b's rows of a head: nope rows that fold into the query (so the product runs over them: transposed),
 * then v rows that apply after attention. */
static int load_kv_b(struct cpu_backend *b, struct cpu_layer *l, const char *prefix, struct error *err)
{
    const struct attention_shape *a = &b->attention;
    struct weight w;
    size_t per_head = a->nope + a->v;
    int e = checkpoint_matrix(b->model->checkpoint, &w, a->heads * per_head, a->latent, err,
                              "%sself_attn.kv_b_proj.weight", prefix);
    if (e) return e;
    l->key_up = calloc(a->heads, sizeof *l->key_up);
    l->value_up = calloc(a->heads, sizeof *l->value_up);
    float *rows = malloc(per_head * a->latent * sizeof(float));
    if (!l->key_up || !l->value_up || !rows) e = error_set(err, -ENOMEM, "%s: no memory", w.name);
    for (size_t h = 0; h < a->heads && !e; h++) {
        for (size_t r = 0; r < per_head; r++) weight_row(&w, h * per_head + r, rows + r * a->latent);
        for (size_t i = 0; i < per_head * a->latent && !e; i++)
            if (!isfinite(rows[i]))
                e = error_set(err, -EINVAL, "%s: weight (%zu, %zu) is not a finite number", w.name,
                              h * per_head + i / a->latent, i % a->latent);
        if (!e) e = linear_pack(&l->key_up[h], a->latent, a->nope, rows, 1, a->latent, err);
        if (!e)
            e = linear_pack(&l->value_up[h], a->v, a->latent, rows + a->nope * a->latent, a->latent, 1, err);
        if (!e) b->weight_bytes += linear_bytes(&l->key_up[h]) + linear_bytes(&l->value_up[h]);
    }
    free(rows);
    return e;
}

static int load_attention(struct cpu_backend *b, struct cpu_layer *l, const char *p, struct error *err)
{
    const struct model_config *c = b->c;
    const struct attention_shape *a = &b->attention;
    size_t hidden = c->hidden_size, q_lora = c->q_lora_rank;
    int e = load_vector(b, &l->input_norm, hidden, p, "input_layernorm.weight", err);
    if (!e) e = load_matrix(b, &l->q_a, q_lora, hidden, p, "self_attn.q_a_proj.weight", err);
    if (!e) e = load_vector(b, &l->q_a_norm, q_lora, p, "self_attn.q_a_layernorm.weight", err);
    if (!e)
        e = load_matrix(b, &l->q_b, a->heads * (a->nope + a->rope), q_lora, p, "self_attn.q_b_proj.weight",
                        err);
    if (!e)
        e = load_matrix(b, &l->kv_a, a->latent + a->rope, hidden, p, "self_attn.kv_a_proj_with_mqa.weight",
                        err);
    if (!e) e = load_vector(b, &l->kv_a_norm, a->latent, p, "self_attn.kv_a_layernorm.weight", err);
    if (!e) e = load_kv_b(b, l, p, err);
    if (!e) e = load_matrix(b, &l->o, hidden, a->heads * a->v, p, "self_attn.o_proj.weight", err);
    if (e || !c->index_topk) return e;

    size_t dim = c->index_head_dim;
    e = load_matrix(b, &l->wq_b, c->index_heads * dim, q_lora, p, "self_attn.indexer.wq_b.weight", err);
    if (!e) e = load_matrix(b, &l->wk, dim, hidden, p, "self_attn.indexer.wk.weight", err);
    if (!e) e = load_vector(b, &l->k_norm, dim, p, "self_attn.indexer.k_norm.weight", err);
    if (!e) e = load_vector(b, &l->k_norm_bias, dim, p, "self_attn.indexer.k_norm.bias", err);
    if (!e)
        e = load_matrix(b, &l->index_weights, c->index_heads, hidden, p,
                        "self_attn.indexer.weights_proj.weight", err);
    return e;
}

static int load_layer(struct cpu_backend *b, uint32_t index, struct error *err)
{
    const struct model_config *c = b->c;
    struct cpu_layer *l = &b->layers[index];
    uint32_t source = model_weights_layer(b->model, index);
    if (source != index) {
        *l = b->layers[source];
        l->borrowed = true;
        return 0;
    }
    char p[64];
    snprintf(p, sizeof p, "model.layers.%u.", index);
    int e = load_attention(b, l, p, err);
    if (!e) e = load_vector(b, &l->post_norm, c->hidden_size, p, "post_attention_layernorm.weight", err);
    l->dense = model_layer_is_dense(c, index);
    if (e || l->dense) return e;
    e = load_matrix(b, &l->gate, c->experts, c->hidden_size, p, "mlp.gate.weight", err);
    if (!e) e = load_vector(b, &l->gate_bias, c->experts, p, "mlp.gate.e_score_correction_bias", err);
    return e;
}

/* The MTP layer may leave out its copies of embedding and head. */
static int load_mtp(struct cpu_backend *b, struct error *err)
{
    const struct model_config *c = b->c;
    struct cpu_mtp *m = &b->mtp;
    struct checkpoint *ck = b->model->checkpoint;
    size_t hidden = c->hidden_size;
    char p[64], name[128];
    snprintf(p, sizeof p, "model.layers.%u.", c->layers);
    int e = load_vector(b, &m->enorm, hidden, p, "enorm.weight", err);
    if (!e) e = load_vector(b, &m->hnorm, hidden, p, "hnorm.weight", err);
    if (!e) e = load_vector(b, &m->head_norm, hidden, p, "shared_head.norm.weight", err);
    if (!e) e = load_matrix(b, &m->eh_proj, hidden, 2 * hidden, p, "eh_proj.weight", err);
    if (e) return e;
    m->embed = b->embed;
    snprintf(name, sizeof name, "%sembed_tokens.weight", p);
    if (checkpoint_find(ck, name))
        e = checkpoint_matrix(ck, &m->embed, c->vocab_size, hidden, err, "%s", name);
    m->head = &b->head;
    struct weight head;
    snprintf(name, sizeof name, "%sshared_head.head.weight", p);
    if (!e && checkpoint_find(ck, name)) {
        e = load_matrix(b, &m->own_head, c->vocab_size, hidden, "", name, err);
        m->head = &m->own_head;
    } else {
        snprintf(name, sizeof name, "lm_head.weight");
    }
    if (!e) e = checkpoint_matrix(ck, &head, c->vocab_size, hidden, err, "%s", name);
    if (!e) e = draft_head_load(&m->draft, &head, b->pool, err);
    if (!e) b->weight_bytes += draft_head_bytes(&m->draft);
    return e;
}

int cpu_load(struct cpu_backend *b, struct error *err)
{
    const struct model_config *c = b->c;
    b->layers = calloc(b->layer_count, sizeof *b->layers);
    if (!b->layers) return error_set(err, -ENOMEM, "no memory for %u layers", b->layer_count);
    int e = checkpoint_matrix(b->model->checkpoint, &b->embed, c->vocab_size, c->hidden_size, err,
                              "model.embed_tokens.weight");
    if (!e) e = load_vector(b, &b->final_norm, c->hidden_size, "", "model.norm.weight", err);
    if (!e) e = load_matrix(b, &b->head, c->vocab_size, c->hidden_size, "", "lm_head.weight", err);
    for (uint32_t i = 0; i < b->layer_count && !e; i++) e = load_layer(b, i, err);
    if (!e && b->with_mtp) e = load_mtp(b, err);
    return e;
}

static void unload_layer(struct cpu_backend *b, struct cpu_layer *l)
{
    if (l->borrowed) return;
    float *vectors[] = {l->input_norm, l->post_norm,   l->q_a_norm, l->kv_a_norm,
                        l->k_norm,     l->k_norm_bias, l->gate_bias};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) free(vectors[i]);
    struct linear *matrices[] = {&l->q_a,  &l->q_b, &l->kv_a,          &l->o,
                                 &l->wq_b, &l->wk,  &l->index_weights, &l->gate};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) linear_free(matrices[i]);
    for (size_t h = 0; l->key_up && h < b->attention.heads; h++) linear_free(&l->key_up[h]);
    for (size_t h = 0; l->value_up && h < b->attention.heads; h++) linear_free(&l->value_up[h]);
    free(l->key_up);
    free(l->value_up);
}

void cpu_unload(struct cpu_backend *b)
{
    for (uint32_t i = 0; b->layers && i < b->layer_count; i++) unload_layer(b, &b->layers[i]);
    free(b->layers);
    float *vectors[] = {b->final_norm, b->mtp.enorm, b->mtp.hnorm, b->mtp.head_norm};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) free(vectors[i]);
    linear_free(&b->head);
    linear_free(&b->mtp.eh_proj);
    linear_free(&b->mtp.own_head);
    draft_head_free(&b->mtp.draft);
}
