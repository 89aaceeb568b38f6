/* shape.cuh: the model's shape and the layout of the KV cache as device code needs them; passed by value. */
#ifndef DUCKD_CUDA_SHAPE_CUH
#define DUCKD_CUDA_SHAPE_CUH

#include "cuda/vector.cuh"

#define KV_PAGE 64u          // positions in a page
#define ATTENTION_SPLITS 16u // parts of the context that are attended to beside each other
#define HIDDEN_MAX 16384u
#define LATENT_MAX 512u

/* A page holds KV_PAGE positions of every layer: [layer][position][latent, roped key], then
 * [layer][position][index key]. fp32 and bf16 are plain; fp8 is e4m3 with one power-of-two scale per 128
 * values (latent, index key), the roped key stays bf16. */
struct kv_layout {
    uint8_t *base;
    size_t page_bytes;
    uint32_t row_bytes, rope_at, scale_at; // of a latent row
    uint32_t index_bytes, index_scale_at;  // of an index key
    size_t index_at;                       // of the page's index keys
};

struct shape {
    uint32_t hidden, heads, q_rank, latent, nope, rope, v;
    uint32_t index_heads, index_dim, index_topk; // 0: no indexer
    uint32_t experts, groups, top_groups, top_k;
    float eps, softmax_scale, routed_scale;
    float index_scale; // heads^-0.5 x dim^-0.5
    float rope_factor; // of cos and sin
    bool norm_topk;
    kv_layout kv;
};

/* What of a row's logits goes to the host: all of them, the largest one's id, or the largest ones. */
enum want { WANT_ALL, WANT_BEST, WANT_CANDIDATES };

/* What one job is about; the host writes it into mapped memory, the job's first kernel copies it to the
 * device. Counters run through the life of a lane and are compared modulo 2^32. */
struct job {
    uint32_t position, rows;
    const uint32_t *pages; // of the sequence
    float *ring;           // (ring_mask + 1, hidden) its recent final-norm hidden states
    uint32_t ring_mask;
    uint32_t resume_base, publish_base; // value of the flags before this job's first step
    uint32_t deadline_s;
    uint32_t want; // of logits: enum want
    double scale;  // 1 / temperature of candidates
};

/* Mapped, pinned: where a lane's GPU work and the host meet. Each word on its own cache line. */
struct control {
    alignas(64) uint32_t resume;    // host: results of so many steps are in y
    alignas(64) uint32_t abort;     // host: do not wait any more
    alignas(64) uint32_t published; // device: so many steps are published
    alignas(64) uint32_t fault;     // device: 1 + step at which the wait ran out
    alignas(64) job next;           // host, before a start
};

/* A job's fields past the first-level cache, for kernels that look before they have waited for the kernel
 * before: a job is as old as its first kernel. */
__device__ static inline uint32_t early_position(const job *j)
{
    return __ldcg(&j->position);
}

__device__ static inline const uint32_t *early_pages(const job *j)
{
    return reinterpret_cast<const uint32_t *>(
        __ldcg(reinterpret_cast<const unsigned long long *>(&j->pages)));
}

__device__ static inline uint8_t *kv_row(const shape &s, const uint32_t *pages, uint32_t layer,
                                         uint32_t position)
{
    return s.kv.base + (size_t)pages[position / KV_PAGE] * s.kv.page_bytes +
           ((size_t)layer * KV_PAGE + position % KV_PAGE) * s.kv.row_bytes;
}

__device__ static inline uint8_t *kv_index(const shape &s, const uint32_t *pages, uint32_t layer,
                                           uint32_t position)
{
    return s.kv.base + (size_t)pages[position / KV_PAGE] * s.kv.page_bytes + s.kv.index_at +
           ((size_t)layer * KV_PAGE + position % KV_PAGE) * s.kv.index_bytes;
}

#endif
