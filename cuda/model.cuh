/* model.cuh: the weights on the device.
 *
 * Everything but the routed experts and the embeddings (which stay on the host): attention, indexer, dense
 * feed-forward layers, router, norms, head, the MTP layer; shared experts where they are wanted here. One
 * walk over the model names every tensor; it runs twice, first to count bytes (nothing is allocated before
 * the plan is known to fit), then to load. */
#ifndef DUCKD_CUDA_MODEL_CUH
#define DUCKD_CUDA_MODEL_CUH

#include "cuda/matrix.cuh"
#include "cuda/shape.cuh"

struct layer {
    matrix q_a, kv_a, index_k, index_w, q_b, index_q, keys, values, o, router;
    matrix gate, up, down; // of a dense layer, or of the shared experts; no rows: there are none here
    float *in_norm, *q_norm, *kv_norm, *index_norm, *index_bias, *post_norm, *router_bias;
    bool dense;
};

struct gpu_model {
    shape s;
    struct layer *layers; // (count): main layers, then the MTP layer if loaded
    uint32_t count, main_layers;
    bool mtp, shared;
    size_t shared_bytes; // of the shared experts
    matrix head, mtp_head, mtp_proj;
    float *final_norm, *mtp_embed_norm, *mtp_hidden_norm, *mtp_final_norm;
    float *inv_freq;  // (rope / 2)
    uint32_t forms_x; // forms of vec that products read, bit 1 << matrix_type
    struct weight embed;
    uint8_t *memory;
    size_t bytes;
};

/* Shape and byte count; reads no weights. */
int gpu_model_plan(struct gpu_model *m, const struct model *model, bool mtp, bool shared, struct error *err);
/* Allocates m->bytes and loads. */
int gpu_model_load(struct gpu_model *m, const struct model *model, struct error *err);
void gpu_model_close(struct gpu_model *m);
/* The KV layout of a storage type; base stays NULL. */
kv_layout kv_layout_make(const shape &s, uint32_t layers, enum kv_dtype dtype);

#endif
