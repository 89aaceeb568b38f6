/* cpu_backend.c: backend.h's operations: sequences, lanes and the state of a job. A job computes inside poll
 * up to the next feed-forward, so poll never says BACKEND_BUSY. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/cpu/cpu.h"
#include "host/backend/largest.h"

static struct cpu_backend *self(struct backend *b)
{
    return (struct cpu_backend *)b;
}

static struct cpu_lane *lane_of(struct backend *b, uint32_t lane)
{
    assert(lane < self(b)->lanes);
    return &self(b)->lane[lane];
}

static void cpu_close(struct backend *base)
{
    struct cpu_backend *b = self(base);
    if (!b) return;
    for (uint32_t i = 0; i < b->seq_count; i++) {
        if (!b->seq[i]) continue;
        kv_close(b->seq[i]);
        free(b->seq[i]);
    }
    free(b->seq);
    cpu_release(b);
    cpu_unload(b);
    free(b);
}

/* The kernels run over vectors of 8. */
static int check_shape(const struct model *m, struct error *err)
{
    const struct model_config *c = &m->config;
    const struct {
        const char *key;
        uint32_t value;
    } dims[] = {{"hidden_size", c->hidden_size},
                {"q_lora_rank", c->q_lora_rank},
                {"kv_lora_rank", c->kv_lora_rank},
                {"qk_nope_head_dim", c->qk_nope_dim},
                {"qk_rope_head_dim", c->qk_rope_dim},
                {"v_head_dim", c->v_dim},
                {"index_head_dim", c->index_topk ? c->index_head_dim : 0}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i].value % 8)
            return error_set(err, -EINVAL, "%s/config.json: %s is %u, the CPU backend wants a multiple of 8",
                             m->dir, dims[i].key, dims[i].value);
    return 0;
}

static void set_shapes(struct cpu_backend *b, const struct backend_options *o)
{
    const struct model_config *c = b->c;
    rope_init(&b->rope, c);
    b->attention = (struct attention_shape){.heads = c->heads,
                                            .nope = c->qk_nope_dim,
                                            .rope = c->qk_rope_dim,
                                            .v = c->v_dim,
                                            .latent = c->kv_lora_rank,
                                            .scale = rope_softmax_scale(c)};
    b->layer_count = c->layers + (b->with_mtp ? 1 : 0);
    /* Two chunks of prefill may be under way before the MTP layer sees the first. */
    b->kv_shape = (struct kv_shape){.dtype = o->kv_dtype_set ? o->kv_dtype : KV_F32,
                                    .layers = b->layer_count,
                                    .latent = c->kv_lora_rank,
                                    .rope = c->qk_rope_dim,
                                    .index_dim = c->index_topk ? c->index_head_dim : 0,
                                    .hidden = b->with_mtp ? c->hidden_size : 0,
                                    .recent = 2 * o->max_tokens + 16};
}

static int cpu_open(struct backend **out, const struct backend_options *o, struct error *err)
{
    const char *missing = fp9_cpu_missing();
    if (missing) return error_set(err, -ENOTSUP, "this CPU has no %s, which the CPU backend needs", missing);
    int e = check_shape(o->model, err);
    if (e) return e;
    if (o->lanes == 0 || o->max_tokens == 0)
        return error_set(err, -EINVAL, "backend: %u lanes of %u tokens, must be at least 1 of 1", o->lanes,
                         o->max_tokens);
    if (o->mtp && o->model->config.mtp_layers == 0)
        return error_set(err, -EINVAL, "%s: MTP is wanted, but num_nextn_predict_layers is 0", o->model->dir);
    struct cpu_backend *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, -ENOMEM, "no memory for the CPU backend");
    b->base.ops = &backend_cpu;
    b->model = o->model;
    b->c = &o->model->config;
    b->pool = o->pool;
    b->threads = pool_threads(o->pool);
    b->fp9 = fp9_select(NULL);
    b->lanes = o->lanes;
    b->max_tokens = o->max_tokens;
    b->with_mtp = o->mtp;
    set_shapes(b, o);
    e = cpu_load(b, err);
    if (!e) e = cpu_allocate(b, err);
    if (e) {
        cpu_close(&b->base);
        return e;
    }
    *out = &b->base;
    return 0;
}

/* ---- sequences ---- */

static int cpu_seq_open(struct backend *base, backend_seq *out, uint32_t capacity, struct error *err)
{
    struct cpu_backend *b = self(base);
    if (capacity > b->c->max_positions)
        return error_set(err, -EINVAL, "a sequence of %u positions is beyond the model's %u", capacity,
                         b->c->max_positions);
    uint32_t i = 0;
    while (i < b->seq_count && b->seq[i]) i++;
    if (i == b->seq_count) {
        struct kv **grown = realloc(b->seq, (b->seq_count + 1) * sizeof *grown);
        if (!grown) return error_set(err, -ENOMEM, "no memory for sequence %u", i);
        b->seq = grown;
        b->seq[b->seq_count++] = NULL;
    }
    struct kv *kv = malloc(sizeof *kv);
    if (!kv) return error_set(err, -ENOMEM, "no memory for sequence %u", i);
    int e = kv_open(kv, &b->kv_shape, capacity, err);
    if (e) {
        free(kv);
        return e;
    }
    b->seq[i] = kv;
    *out = i;
    return 0;
}

static void cpu_seq_close(struct backend *base, backend_seq seq)
{
    struct cpu_backend *b = self(base);
    assert(seq < b->seq_count && b->seq[seq]);
    kv_close(b->seq[seq]);
    free(b->seq[seq]);
    b->seq[seq] = NULL;
}

static uint64_t cpu_kv_bytes(const struct backend *base, uint32_t positions)
{
    const struct cpu_backend *b = (const struct cpu_backend *)base;
    return kv_image_bytes(&b->kv_shape, positions);
}

static int cpu_kv_save(struct backend *base, backend_seq seq, uint32_t positions, void *image,
                       struct error *err)
{
    (void)err;
    kv_to_image(self(base)->seq[seq], positions, image);
    return 0;
}

static int cpu_kv_load(struct backend *base, backend_seq seq, uint32_t positions, const void *image,
                       struct error *err)
{
    (void)err;
    kv_from_image(self(base)->seq[seq], positions, image);
    return 0;
}

static int cpu_seq_fork(struct backend *base, backend_seq *out, backend_seq from, uint32_t positions,
                        uint32_t capacity, struct error *err)
{
    struct cpu_backend *b = self(base);
    assert(from < b->seq_count && b->seq[from] && positions > 0);
    assert(positions <= b->seq[from]->used && positions <= capacity);
    int e = cpu_seq_open(base, out, capacity, err);
    if (!e) kv_copy(b->seq[*out], b->seq[from], positions);
    return e;
}

/* ---- jobs ---- */

static int check_job(struct cpu_backend *b, const struct backend_job *job, struct error *err)
{
    if (job->seq >= b->seq_count || !b->seq[job->seq])
        return error_set(err, -EINVAL, "job: sequence %u is not open", job->seq);
    const struct kv *kv = b->seq[job->seq];
    if (job->tokens == 0 || job->tokens > b->max_tokens)
        return error_set(err, -EINVAL, "job: %u tokens, must be 1 to %u", job->tokens, b->max_tokens);
    if (job->position >= kv->capacity || job->tokens > kv->capacity - job->position)
        return error_set(err, -ERANGE, "job: positions %u to %u are beyond the sequence's capacity, %u",
                         job->position, job->position + job->tokens - 1, kv->capacity);
    if (job->logits_from > job->tokens)
        return error_set(err, -EINVAL, "job: logits from row %u of %u", job->logits_from, job->tokens);
    for (uint32_t i = 0; i < job->tokens; i++)
        if (job->ids[i] < 0 || (uint32_t)job->ids[i] >= b->c->vocab_size)
            return error_set(err, -EINVAL, "job: token %d at position %u, must be 0 to %u", job->ids[i],
                             job->position + i, b->c->vocab_size - 1);
    if (job->kind == BACKEND_MAIN) return 0;
    if (!b->with_mtp) return error_set(err, -EINVAL, "job: the MTP layer was not loaded");
    if (job->first_key % KV_TILE || job->first_key > job->position)
        return error_set(err, -EINVAL, "job: keys from position %u on, must be a multiple of %u up to %u",
                         job->first_key, KV_TILE, job->position);
    for (uint32_t i = 0; i < job->tokens; i++)
        if (!kv_hidden(kv, job->position + i))
            return error_set(err, -EINVAL, "job: MTP at position %u, whose hidden state is not there",
                             job->position + i);
    return 0;
}

static int cpu_start(struct backend *base, uint32_t lane, const struct backend_job *job, struct error *err)
{
    struct cpu_backend *b = self(base);
    struct cpu_lane *l = lane_of(base, lane);
    if (l->state == LANE_READY || l->state == LANE_PUBLISHED)
        return error_set(err, -EBUSY, "lane %u has a job", lane);
    int e = check_job(b, job, err);
    if (e) return e;
    l->job = *job;
    memcpy(l->ids, job->ids, job->tokens * sizeof *l->ids);
    l->job.ids = l->ids;
    l->kv = b->seq[job->seq];
    if (l->kv->used < job->position + job->tokens) l->kv->used = job->position + job->tokens;
    l->layer = job->kind == BACKEND_MAIN ? 0 : b->c->layers;
    l->last_layer = job->kind == BACKEND_MAIN ? b->c->layers : b->c->layers + 1;
    l->first = 0;
    l->begun = l->answered = false;
    l->state = LANE_READY;
    return 0;
}

static void publish(struct cpu_backend *b, struct cpu_lane *l, struct mlp_step *step)
{
    bool dense = b->layers[l->layer].dense;
    size_t first = l->first, n = b->c->hidden_size, k = b->c->top_k;
    *step = (struct mlp_step){.layer = l->layer,
                              .tokens = l->job.tokens - l->first,
                              .top_k = dense ? 0 : b->c->top_k,
                              .x = l->x + first * n,
                              .ids = l->expert_ids + first * k,
                              .weights = l->expert_weights + first * k,
                              .y = l->y + first * n};
}

static enum backend_event advance(struct cpu_backend *b, struct cpu_lane *l, struct mlp_step *step)
{
    int e = l->begun ? 0 : cpu_embed(b, l, &l->error);
    l->begun = true;
    bool over = l->layer == l->last_layer;
    if (!e) e = over ? cpu_finish(b, l, &l->error) : cpu_layer_run(b, l, &l->error);
    if (e) {
        l->state = LANE_FAILED;
        return BACKEND_FAILED;
    }
    if (over || l->first == l->job.tokens) {
        l->state = LANE_DONE;
        return BACKEND_DONE;
    }
    publish(b, l, step);
    l->state = LANE_PUBLISHED;
    return BACKEND_MLP;
}

static enum backend_event cpu_poll(struct backend *base, uint32_t lane, struct mlp_step *step,
                                   struct error *err)
{
    struct cpu_backend *b = self(base);
    struct cpu_lane *l = lane_of(base, lane);
    enum backend_event event = BACKEND_FAILED;
    switch (l->state) {
    case LANE_FREE:
        error_set(err, -EINVAL, "lane %u has no job", lane);
        return BACKEND_FAILED;
    case LANE_READY:
        event = advance(b, l, step);
        break;
    case LANE_PUBLISHED:
        publish(b, l, step);
        return BACKEND_MLP;
    case LANE_DONE:
        return BACKEND_DONE;
    case LANE_FAILED:
        break;
    }
    if (event == BACKEND_FAILED && err) *err = l->error;
    return event;
}

static void cpu_resume(struct backend *base, uint32_t lane)
{
    struct cpu_lane *l = lane_of(base, lane);
    assert(l->state == LANE_PUBLISHED);
    l->layer++;
    l->answered = true;
    l->state = LANE_READY;
}

static const float *logits_of(const struct cpu_backend *b, const struct cpu_lane *l, uint32_t row)
{
    assert(l->state == LANE_DONE && row >= l->job.logits_from && row < l->job.tokens);
    return l->logits + (size_t)(row - l->job.logits_from) * 8 * b->head.panels;
}

static const float *cpu_logits(struct backend *base, uint32_t lane, uint32_t row)
{
    const struct cpu_lane *l = lane_of(base, lane);
    assert(!l->job.best_only);
    return logits_of(self(base), l, row);
}

static int32_t cpu_best(struct backend *base, uint32_t lane, uint32_t row)
{
    const struct cpu_backend *b = self(base);
    const struct cpu_lane *l = lane_of(base, lane);
    assert(l->job.best_only);
    if (l->job.kind == BACKEND_MAIN) return largest_logit(logits_of(b, l, row), b->c->vocab_size);
    assert(l->state == LANE_DONE && row >= l->job.logits_from && row < l->job.tokens);
    return l->best[row - l->job.logits_from];
}

static void cpu_cancel(struct backend *base, uint32_t lane)
{
    lane_of(base, lane)->state = LANE_FREE;
}

static void cpu_set_probe(struct backend *base, const struct backend_probe *probe)
{
    self(base)->probe = probe ? *probe : (struct backend_probe){0};
}

/* Embeddings are read in place from the checkpoint's mapping and are not counted. */
static uint64_t cpu_memory_bytes(const struct backend *base)
{
    const struct cpu_backend *b = (const struct cpu_backend *)base;
    uint64_t bytes = b->weight_bytes;
    for (uint32_t i = 0; i < b->seq_count; i++)
        if (b->seq[i]) bytes += kv_resident_bytes(b->seq[i]);
    return bytes;
}

const struct backend_ops backend_cpu = {.name = "cpu",
                                        .open = cpu_open,
                                        .close = cpu_close,
                                        .seq_open = cpu_seq_open,
                                        .seq_fork = cpu_seq_fork,
                                        .seq_close = cpu_seq_close,
                                        .start = cpu_start,
                                        .poll = cpu_poll,
                                        .resume = cpu_resume,
                                        .logits = cpu_logits,
                                        .best = cpu_best,
                                        .cancel = cpu_cancel,
                                        .set_probe = cpu_set_probe,
                                        .memory_bytes = cpu_memory_bytes,
                                        .kv_bytes = cpu_kv_bytes,
                                        .kv_save = cpu_kv_save,
                                        .kv_load = cpu_kv_load,
                                        .mtp_window = true};
