/* prefill.cuh: jobs of many rows: products through cuBLAS, attention over expanded keys and values.
 *
 * Another arithmetic than decode's. fp8 weights are widened, a slice at a time, into half floats (11 bits of
 * code x scale) and multiplied with activations in half floats, sums in fp32; bf16 weights (router, indexer
 * weights) meet activations in three bf16 parts and stay as good as fp32. Half floats and not bf16, because
 * they keep three bits more at the same speed. Rows that see more than index_topk positions choose theirs one
 * by one and attend as in decode. */
#ifndef DUCKD_CUDA_PREFILL_CUH
#define DUCKD_CUDA_PREFILL_CUH

#include "cuda/blas.cuh"
#include "cuda/carve.cuh"
#include "cuda/flash.cuh"
#include "cuda/model.cuh"

#define PREFILL_ROWS 16u // jobs beyond this size go this way

struct lane;
struct chain;

struct prefill {
    bool on; // cuBLAS is there and the shape fits; set before the layout
    struct blas blas;
    uint8_t *workspace;
    __half *staging; // widened weights
    size_t staging_elements, kv_elements;
    __half *q, *kv, *latents;
    vec x, ql, ov, dv, mtp_in; // as the lane's own, but for half floats instead of fp8's pairs
    float *scale, *sum;        // of feed-forward layers: (rows), (rows, hidden)
};

/* Part of lane_layout(). */
void prefill_layout(struct lane *l, carve *c);
/* Products of `count` matrices with x, as product(). */
int prefill_product(struct lane *l, const matrix *const m[], const product_out out[], uint32_t count,
                    const vec &x, uint32_t rows, struct error *err);
int prefill_attend(struct lane *l, const chain *k, uint32_t index, struct error *err);
/* h += the feed-forward of the layer behind its norm, big.x. */
int prefill_feed_forward(struct lane *l, const chain *k, const struct layer *y, struct error *err);

#endif
