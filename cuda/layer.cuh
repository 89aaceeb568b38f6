/* layer.cuh: launches of everything in a layer that is not a plain product. All are asynchronous on `stream`;
 * `rows` is the number of rows of the job, row i is position job->position + i. Sums have a fixed order. */
#ifndef DUCKD_CUDA_LAYER_CUH
#define DUCKD_CUDA_LAYER_CUH

#include "cuda/matrix.cuh"
#include "cuda/shape.cuh"

/* The *_open() here and in matrix.cuh, once per device, are part of attention_open(). */

/* ---- rows.cu ---- */

cudaError_t rows_open();

/* Copies the job, makes cos/sin of every row: rope (rows, rope / 2) and, with embed, h = embed (rows,
 * hidden). */
cudaError_t launch_begin(const shape &s, const control *c, job *j, const float *inv_freq, float2 *rope,
                         const float *embed, float *h, uint32_t rows, cudaStream_t stream);

/* With y: waits until the results of step `step` are there, h += y. Then x = rmsnorm(h) x weight.
 * x_host: also stored there as plain fp32 rows; ring: also in the sequence's ring. */
struct norm_args {
    control *c;
    const job *j;
    uint32_t step;
    const float *y;
    float *h;
    const float *weight;
    float eps;
    vec x;
    float *x_host;
    bool ring;
    bool changed; // h is written by what runs while the step is answered, too
};
cudaError_t launch_norm(const shape &s, const norm_args &a, uint32_t rows, cudaStream_t stream);
/* The same for products, which finish the norm (x.squares is set): x = h x weight, many blocks a row. Neither
 * x_host nor ring. */
cudaError_t launch_weigh(const shape &s, const norm_args &a, uint32_t rows, cudaStream_t stream);

/* x = [rmsnorm(embed) x enorm, rmsnorm(ring's hidden state of the row) x hnorm]. */
cudaError_t launch_mtp_input(const shape &s, const job *j, const float *embed, const float *enorm,
                             const float *hnorm, vec x, uint32_t rows, cudaStream_t stream);

/* From the first products: a (rows, a_stride) = q latent, latent + roped key, index key, at these offsets.
 * Stores the normed q latent and, with kv, the layer's KV of every row. */
struct latent_args {
    const job *j;
    const float2 *rope;
    const float *a;
    uint32_t a_stride, kv_at, index_at, layer;
    const float *q_norm, *kv_norm, *k_norm, *k_bias; // k_norm NULL: no indexer
    vec q;
    enum kv_dtype dtype;
};
cudaError_t launch_latent(const shape &s, const latent_args &a, bool kv, uint32_t rows, cudaStream_t stream);

/* ---- queries.cu ---- */

/* Norm of the q latent, q_b, rope, absorbed keys and the layer's KV of every row in one launch: latent_args'
 * `a` -> qa (rows, heads, latent + rope). Serves full-size shapes in fp8; others take launch_latent(),
 * product() and launch_keys(). `q` of the latent_args is not used. */
cudaError_t queries_open();
bool queries_serve(const shape &s, const matrix &q_b, const matrix &keys);
cudaError_t launch_queries(const shape &s, const latent_args &a, const matrix &q_b, const matrix &keys,
                           float *qa, uint32_t rows, cudaStream_t stream);

/* From the second products: with `wide` q (rows, heads, nope + rope), its second part roped, as half floats
 * (rows, heads, wide_stride), zeros beyond; with `iq` (rows, index_heads, index_dim) that is roped in place
 * and iw scaled. */
struct query_args {
    const float2 *rope;
    const float *q;
    __half *wide; // or NULL
    uint32_t wide_stride;
    float *iq, *iw; // or NULL
};
cudaError_t launch_query(const shape &s, const query_args &a, uint32_t rows, cudaStream_t stream);

/* x (rows, n) fp32, rows `stride` apart -> vector. With up: silu(x) x up. */
cudaError_t launch_pack(const float *x, const float *up, uint32_t n, uint32_t stride, vec v, uint32_t rows,
                        cudaStream_t stream);

/* v = silu(x) x up as half floats, each row divided by a power of two, `scale` (rows), so that it fits. */
cudaError_t launch_pack_rows(const float *x, const float *up, uint32_t n, vec v, float *scale, uint32_t rows,
                             cudaStream_t stream);
/* h (rows, n) += y x scale of the row. */
cudaError_t launch_add_rows(float *h, const float *y, const float *scale, uint32_t n, uint32_t rows,
                            cudaStream_t stream);

/* ---- experts.cu ---- */

/* A feed-forward of fp8 matrices as narrow as the shared experts', x normed: h (rows, down's rows) += down x
 * (silu(gate x) x (up x)); inner (rows, gate's rows) lies between. */
cudaError_t experts_open(size_t shared_limit); // bytes that a block may have
bool experts_serve(const matrix &gate, const matrix &up, const matrix &down);
cudaError_t launch_experts(const matrix &gate, const matrix &up, const matrix &down, const vec &x,
                           float *inner, float *h, uint32_t rows, cudaStream_t stream);

/* ---- absorb.cu ---- */

/* q (rows, heads, nope + rope) -> qa (rows, heads, latent + rope): per head keys x first part, second part
 * roped. */
struct keys_args {
    const matrix *keys;
    const float2 *rope;
    const float *q;
    float *qa;
};
cudaError_t absorb_open();
cudaError_t launch_keys(const shape &s, const keys_args &a, uint32_t rows, cudaStream_t stream);

/* ---- attention.cu ---- */

struct attention_args {
    const job *j;
    uint32_t layer, row0;  // row0: of this launch within the job
    const float *qa;       // (rows, heads, latent + rope), of the job
    const int32_t *topk;   // (launch rows, index_topk) or NULL: attend to everything
    float *part, *part_ml; // (launch rows, heads, splits, latent), (.., 2)
};
/* Bytes of shared memory the attention kernels may use; chooses the variant once per device. */
cudaError_t attention_open(const shape &s, enum kv_dtype dtype, size_t shared_limit);
/* Sums of every split. */
cudaError_t launch_attention(const shape &s, enum kv_dtype dtype, const attention_args &a, uint32_t rows,
                             cudaStream_t stream);
#define VALUE_BLOCKS 8u // of 128 latents: of the heads that make 128 values together
/* Joins the splits and multiplies each head with its part of `values`; out: of the job, (rows, heads x v).
 * absorb.cu. */
cudaError_t launch_values(const shape &s, const matrix *values, const attention_args &a, const vec &out,
                          uint32_t rows, cudaStream_t stream);

/* ---- indexer.cu ---- */

struct index_args {
    const job *j;
    uint32_t layer, row0;
    const float *iq, *iw; // of the job
    float *scores;        // (launch rows, stride)
    uint32_t stride;
    int32_t *topk; // (launch rows, index_topk)
    bool all;      // score rows below index_topk, too (nobody needs them but a probe)
};
cudaError_t launch_scores(const shape &s, enum kv_dtype dtype, const index_args &a, uint32_t rows,
                          uint32_t positions, cudaStream_t stream);
cudaError_t launch_topk(const shape &s, const index_args &a, uint32_t rows, cudaStream_t stream);

/* ---- router.cu ---- */

cudaError_t router_open();

/* The router's product without a norm before it: logits (slices, rows, experts) are sums over blocks of 128
 * of h x weight, squares (rows, slices) those of h x h. For bf16 matrices. */
struct slice_args {
    const float *h, *weight;
    const matrix *router;
    float *logits, *squares;
};
cudaError_t launch_slices(const shape &s, const slice_args &a, uint32_t rows, cudaStream_t stream);

/* logits (slices, rows, experts) -> ids ascending and weights, in mapped memory; the last row's block
 * publishes step `step`. logits NULL: publishes only. x.squares set: the norm of h is finished here, x_host =
 * h x weight x factor is published, too, and `kept`, if it has blocks, is that activation for products
 * behind. */
struct router_args {
    control *c;
    const job *j;
    uint32_t step;
    const float *logits, *bias;
    uint32_t slices;
    vec x; // squares, blocks, n, eps only
    const float *h, *weight;
    float *x_host;
    vec kept;
    int32_t *ids;
    float *weights;
    uint32_t *arrived; // zero between launches
};
cudaError_t launch_router(const shape &s, const router_args &a, uint32_t rows, cudaStream_t stream);

/* ---- best.cu ---- */

#define BEST_BLOCKS 64u // of a row

/* logits (rows, vocab) -> mapped memory: what the job wants of them. */
struct best_args {
    const job *j;
    const float *logits;
    uint32_t vocab;
    float *logits_host;
    int32_t *ids_host;
    struct backend_candidates *candidates_host;
    unsigned long long *part; // (rows, BEST_BLOCKS, BACKEND_CANDIDATES)
    double2 *mass;            // (rows, BEST_BLOCKS)
    uint32_t *arrived;        // (rows) zero between launches
};
cudaError_t launch_best(const best_args &a, uint32_t rows, cudaStream_t stream);

#endif
