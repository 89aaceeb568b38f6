/* cpu.h: the inside of the CPU backend: weights, lanes, scratch. Included by host/backend/cpu only.
 *
 * Owned by the engine thread; the pool's threads see it read-only but for the rows and panels of their task.
 * Everything is allocated by open and seq_open; a job allocates nothing. */
#ifndef DUCKD_HOST_BACKEND_CPU_CPU_H
#define DUCKD_HOST_BACKEND_CPU_CPU_H

#include "host/backend/backend.h"
#include "host/backend/cpu/attention.h"
#include "host/backend/cpu/draft_head.h"
#include "host/backend/cpu/indexer.h"
#include "host/backend/cpu/kv.h"
#include "host/backend/cpu/linear.h"
#include "host/backend/rope.h"

struct cpu_layer {
    float *input_norm, *post_norm; // (hidden)
    float *q_a_norm, *kv_a_norm;   // (q_lora), (latent)
    struct linear q_a, q_b, kv_a, o;
    struct linear *key_up, *value_up; // (heads) the halves of kv_b: nope -> latent, latent -> v
    struct linear wq_b, wk, index_weights;
    float *k_norm, *k_norm_bias; // (index_head_dim)
    bool dense;                  // no router
    bool borrowed;               // everything belongs to an earlier layer (model_weights_layer())
    struct linear gate;
    float *gate_bias; // (experts)
};

struct cpu_mtp {
    float *enorm, *hnorm, *head_norm; // (hidden)
    struct linear eh_proj;            // (hidden, 2 hidden): embedding half first
    struct weight embed;
    struct linear own_head;
    const struct linear *head; // own_head, or the main one
    struct draft_head draft;   // the same, rounded
};

enum lane_state { LANE_FREE, LANE_READY, LANE_PUBLISHED, LANE_DONE, LANE_FAILED };

struct cpu_lane {
    enum lane_state state;
    struct backend_job job; // ids point to `ids`
    struct kv *kv;
    uint32_t layer, last_layer; // next to compute, end of the job's layers
    uint32_t first;             // rows before it have left their keys behind and are not wanted any more
    bool begun, answered;       // embedded; y holds an answer not yet added
    int32_t *ids;               // (max_tokens)
    float *h, *x, *y;           // (max_tokens, hidden) residual, normed, the flock's answer
    int32_t *expert_ids;        // (max_tokens, top_k)
    float *expert_weights;
    float *cosines, *sines; // (max_tokens, rope / 2)
    float *logits;          // (max_tokens, vocab rounded up to 8), from row logits_from
    int32_t *best;          // (max_tokens) of MTP jobs with best_only, from row logits_from
    struct error error;
};

/* Used within one call of poll; shared by all lanes because only one is computed at a time. */
struct cpu_scratch {
    float *xs;               // (rows, hidden) prepared
    float *qa, *qas;         // (rows, q_lora) normed; prepared
    float *kva;              // (rows, latent + rope)
    float *ik, *iw;          // (rows, index_dim), (rows, index_heads rounded up)
    float *q, *iq;           // (rows, heads, nope + rope), (rows, index_heads, index_dim)
    float *mixed, *attended; // (rows, heads, v), (rows, hidden)
    float *gate, *biased;    // (rows, experts rounded up), (rows, experts + groups)
    float *pair, *pairs;     // (rows, 2 hidden) MTP input; prepared
    float *scores;           // (INDEXER_ROWS, score_stride)
    int32_t *selected;       // (rows, index_topk)
    bool *bad;               // (rows) a norm met something that is not finite
    float **worker;          // (threads) attention or index tiles
    size_t score_stride, gate_stride, biased_stride, iw_stride;
};

struct cpu_backend {
    struct backend base;
    const struct model *model;
    const struct model_config *c;
    struct pool *pool;
    const struct fp9_kernels *fp9;
    uint32_t lanes, max_tokens, threads;
    struct kv_shape kv_shape;
    struct rope rope;
    struct attention_shape attention;

    struct weight embed; // rows are read in place
    struct cpu_layer *layers;
    uint32_t layer_count; // MTP included
    float *final_norm;
    struct linear head;
    bool with_mtp;
    struct cpu_mtp mtp;
    uint64_t weight_bytes;

    struct cpu_lane *lane; // (lanes)
    struct cpu_scratch s;
    struct kv **seq; // (seq_count) NULL: free
    uint32_t seq_count;
    struct backend_probe probe; // row NULL: none
};

/* cpu_load.c */
int cpu_load(struct cpu_backend *b, struct error *err);
void cpu_unload(struct cpu_backend *b);

/* cpu_memory.c: lanes and scratch */
int cpu_allocate(struct cpu_backend *b, struct error *err);
void cpu_release(struct cpu_backend *b);

/* cpu_layer.c: norm, attention and residual, norm, router of lane->layer; then lane's step can be published,
 * unless no row is wanted any more (lane->first). */
int cpu_layer_run(struct cpu_backend *b, struct cpu_lane *l, struct error *err);

/* cpu_ends.c: what comes before the first layer and after the last one. */
int cpu_embed(struct cpu_backend *b, struct cpu_lane *l, struct error *err);
int cpu_finish(struct cpu_backend *b, struct cpu_lane *l, struct error *err);

/* Shared by the two: adds the flock's answer to the residual if there is one. */
void cpu_add_answer(struct cpu_backend *b, struct cpu_lane *l, size_t row);
void cpu_probe_rows(struct cpu_backend *b, struct cpu_lane *l, const char *name, uint32_t layer,
                    const float *f, const int32_t *i, size_t stride, size_t n);
/* Rows of a job, a few to a task; `work` is what one row costs, in multiply-adds. */
typedef void cpu_row_fn(struct cpu_backend *b, struct cpu_lane *l, size_t row);
void cpu_rows(struct cpu_backend *b, struct cpu_lane *l, cpu_row_fn *fn, size_t first, size_t rows,
              double work);
/* First row in [first, end) of scratch.bad that is set, or -1. */
int cpu_bad_row(const struct cpu_backend *b, size_t first, size_t end);

static inline const float *cpu_input(const struct linear *l, const float *x, const float *prepared)
{
    return linear_prepared(l) ? prepared : x;
}

#endif
