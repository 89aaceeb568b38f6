/* cpu_memory.c: lanes and scratch, one block each so that an overrun is seen by the sanitizer. Large blocks
 * come from fresh mappings and cost nothing until a job is that large. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/cpu/cpu.h"

static int block(void *out, size_t count, size_t size, struct error *err)
{
    if (count == 0) return 0;
    size_t bytes = (count * size + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, bytes);
    if (!p) return error_set(err, -ENOMEM, "no memory for a buffer of %zu bytes", bytes);
    memcpy(out, &p, sizeof p);
    return 0;
}

static size_t up8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

/* `e` collects the first failure: `e = e ? e : block(...)`. */
#define BLOCK(pointer, count)                                                                                \
    do {                                                                                                     \
        if (!e) e = block(&(pointer), (count), sizeof *(pointer), err);                                      \
    } while (0)

static int allocate_lane(struct cpu_backend *b, struct cpu_lane *l, struct error *err)
{
    const struct model_config *c = b->c;
    size_t rows = b->max_tokens;
    int e = 0;
    BLOCK(l->ids, rows);
    BLOCK(l->h, rows * c->hidden_size);
    BLOCK(l->x, rows * c->hidden_size);
    BLOCK(l->y, rows * c->hidden_size);
    BLOCK(l->expert_ids, rows * c->top_k);
    BLOCK(l->expert_weights, rows * c->top_k);
    BLOCK(l->cosines, rows * b->rope.pairs);
    BLOCK(l->sines, rows * b->rope.pairs);
    BLOCK(l->logits, rows * up8(c->vocab_size));
    BLOCK(l->best, rows);
    return e;
}

static int allocate_indexer(struct cpu_backend *b, struct error *err)
{
    const struct model_config *c = b->c;
    struct cpu_scratch *s = &b->s;
    size_t rows = b->max_tokens;
    int e = 0;
    s->iw_stride = up8(c->index_heads);
    s->score_stride = ((size_t)c->max_positions + 15) & ~(size_t)15;
    BLOCK(s->ik, rows * c->index_head_dim);
    BLOCK(s->iw, rows * s->iw_stride);
    BLOCK(s->iq, rows * c->index_heads * c->index_head_dim);
    BLOCK(s->scores, INDEXER_ROWS * s->score_stride);
    BLOCK(s->selected, rows * c->index_topk);
    return e;
}

static int allocate_scratch(struct cpu_backend *b, struct error *err)
{
    const struct model_config *c = b->c;
    const struct attention_shape *a = &b->attention;
    struct cpu_scratch *s = &b->s;
    size_t rows = b->max_tokens;
    int e = 0;
    s->gate_stride = up8(c->experts);
    s->biased_stride = c->experts + c->groups;
    BLOCK(s->xs, rows * c->hidden_size);
    BLOCK(s->qa, rows * c->q_lora_rank);
    BLOCK(s->qas, rows * c->q_lora_rank);
    BLOCK(s->kva, rows * (a->latent + a->rope));
    BLOCK(s->q, rows * a->heads * (a->nope + a->rope));
    BLOCK(s->mixed, rows * a->heads * a->v);
    BLOCK(s->attended, rows * c->hidden_size);
    BLOCK(s->gate, rows * s->gate_stride);
    BLOCK(s->biased, rows * s->biased_stride);
    BLOCK(s->bad, rows);
    if (b->with_mtp) {
        BLOCK(s->pair, rows * 2 * c->hidden_size);
        BLOCK(s->pairs, rows * 2 * c->hidden_size);
    }
    if (!e && c->index_topk) e = allocate_indexer(b, err);
    if (e) return e;

    s->worker = calloc(b->threads, sizeof *s->worker);
    if (!s->worker) return error_set(err, -ENOMEM, "no memory for %u workers", b->threads);
    size_t floats = attention_scratch_floats(a), tiles = 2 * KV_TILE * (size_t)c->index_head_dim;
    for (uint32_t i = 0; i < b->threads; i++) BLOCK(s->worker[i], floats > tiles ? floats : tiles);
    return e;
}

int cpu_allocate(struct cpu_backend *b, struct error *err)
{
    b->lane = calloc(b->lanes, sizeof *b->lane);
    if (!b->lane) return error_set(err, -ENOMEM, "no memory for %u lanes", b->lanes);
    int e = 0;
    for (uint32_t i = 0; i < b->lanes && !e; i++) e = allocate_lane(b, &b->lane[i], err);
    return e ? e : allocate_scratch(b, err);
}

void cpu_release(struct cpu_backend *b)
{
    for (uint32_t i = 0; b->lane && i < b->lanes; i++) {
        struct cpu_lane *l = &b->lane[i];
        void *blocks[] = {l->ids,     l->h,     l->x,      l->y,   l->expert_ids, l->expert_weights,
                          l->cosines, l->sines, l->logits, l->best};
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) free(blocks[k]);
    }
    free(b->lane);
    struct cpu_scratch *s = &b->s;
    for (uint32_t i = 0; s->worker && i < b->threads; i++) free(s->worker[i]);
    void *blocks[] = {s->xs,   s->qa,    s->qas,    s->kva,      s->ik,   s->iw,
                      s->q,    s->iq,    s->mixed,  s->attended, s->gate, s->biased,
                      s->pair, s->pairs, s->scores, s->selected, s->bad,  s->worker};
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) free(blocks[k]);
}
