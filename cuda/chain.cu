/* chain.cu: the launches of a job, in order. */
#include "cuda/lane.cuh"

#include <errno.h>
#include <stdlib.h>

chain chain_begin(const struct lane *l, enum backend_job_kind kind, uint32_t position, uint32_t rows,
                  uint32_t logits_from)
{
    chain k = {};
    k.kind = kind;
    k.rows = rows;
    k.logits_from = logits_from;
    k.position = position;
    k.sparse = l->s.index_topk && position + rows > l->s.index_topk;
    k.big = l->big.on && rows > PREFILL_ROWS && !l->probe;
    k.at = kind == BACKEND_MAIN ? 0 : l->m->main_layers;
    k.end = kind == BACKEND_MAIN ? l->m->main_layers : l->m->main_layers + 1;
    return k;
}

/* ---- probes: the chain stops, values are copied and shown ---- */

static int show(struct lane *l, const char *name, uint32_t layer, uint32_t position, const void *device,
                size_t n, bool integers, struct error *err)
{
    GPU_TRY(cudaStreamSynchronize(l->stream));
    void *host = malloc(n * 4);
    if (!host) return gpu_host->error_set(err, -ENOMEM, "no memory for a probe of %zu values", n);
    int rc = gpu_check(cudaMemcpy(host, device, n * 4, cudaMemcpyDefault), err, "cudaMemcpy");
    if (!rc)
        l->probe->row(l->probe->ctx, name, layer, position, integers ? nullptr : (const float *)host,
                      integers ? (const int32_t *)host : nullptr, n);
    free(host);
    return rc;
}

static int show_rows(struct lane *l, const chain *k, const char *name, uint32_t layer, const float *device,
                     struct error *err)
{
    if (!l->probe) return 0;
    for (uint32_t r = 0; r < k->rows; r++) {
        int rc =
            show(l, name, layer, k->position + r, device + (size_t)r * l->s.hidden, l->s.hidden, false, err);
        if (rc) return rc;
    }
    return 0;
}

static int show_router(struct lane *l, const chain *k, uint32_t layer, struct error *err)
{
    if (!l->probe) return 0;
    const size_t n = l->s.top_k;
    const bool mtp = k->kind == BACKEND_MTP;
    for (uint32_t r = 0; r < k->rows; r++) {
        int rc = show(l, mtp ? "mtp_router_ids" : "router_ids", layer, k->position + r, l->ids_host + r * n,
                      n, true, err);
        if (!rc)
            rc = show(l, mtp ? "mtp_router_weights" : "router_weights", layer, k->position + r,
                      l->weights_host + r * n, n, false, err);
        if (rc) return rc;
    }
    return 0;
}

static int show_index(struct lane *l, const chain *k, uint32_t layer, uint32_t row0, uint32_t rows,
                      struct error *err)
{
    if (!l->probe || k->kind == BACKEND_MTP) return 0;
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t position = k->position + row0 + r, n = position + 1;
        int rc =
            show(l, "index_scores", layer, position, l->scores + (size_t)r * l->z.positions, n, false, err);
        if (!rc)
            rc = show(l, "index_topk", layer, position, l->topk + (size_t)r * l->s.index_topk,
                      n < l->s.index_topk ? n : l->s.index_topk, true, err);
        if (rc) return rc;
    }
    return 0;
}

/* ---- the parts of a layer ---- */

static norm_args norm_of(struct lane *l, chain *k, const float *weight, const vec &x)
{
    norm_args a = {};
    a.c = l->c;
    a.j = l->j;
    a.step = k->step;
    a.y = k->pending ? l->y_host : nullptr;
    a.h = l->h;
    a.weight = weight;
    a.eps = l->s.eps;
    a.x = x;
    a.changed = l->m->shared;
    k->pending = false;
    return a;
}

/* h += y of the step before, if there is one; x = norm(h), in decode still to be finished by the products. */
static int norm(struct lane *l, chain *k, const float *weight, struct error *err)
{
    const norm_args a = norm_of(l, k, weight, k->big ? l->big.x : l->x);
    if (k->big)
        GPU_TRY(launch_norm(l->s, a, k->rows, l->stream));
    else
        GPU_TRY(launch_weigh(l->s, a, k->rows, l->stream));
    return 0;
}

int lane_attend(struct lane *l, const chain *k, uint32_t index, struct error *err)
{
    if (k->big) return prefill_attend(l, k, index, err);
    const shape &s = l->s;
    const struct layer *y = &l->m->layers[index];
    const bool indexed = s.index_topk != 0, choosing = indexed && (k->sparse || l->probe);
    const uint32_t kv_at = s.q_rank, index_at = s.q_rank + s.latent + s.rope;
    const matrix *const first[] = {&y->q_a, &y->kv_a, &y->index_k, &y->index_w};
    const product_out first_out[] = {{l->a, l->a_stride, false},
                                     {l->a + kv_at, l->a_stride, false},
                                     {l->a + index_at, l->a_stride, false},
                                     {choosing ? l->iw : nullptr, s.index_heads, false}};
    GPU_TRY(product(first, first_out, indexed ? 4 : 2, l->x, k->rows, l->stream));
    latent_args la = {l->j,      l->rope,    l->a,          l->a_stride,   kv_at, index_at,  index,
                      y->q_norm, y->kv_norm, y->index_norm, y->index_bias, l->ql, l->z.dtype};
    const bool together = queries_serve(s, y->q_b, y->keys);
    if (together) GPU_TRY(launch_queries(s, la, y->q_b, y->keys, l->qa, k->rows, l->stream));
    if (!together || choosing) GPU_TRY(launch_latent(s, la, !together, k->rows, l->stream));
    const matrix *const second[] = {&y->q_b, &y->index_q};
    const product_out second_out[] = {{together ? nullptr : l->q, s.heads * (s.nope + s.rope), false},
                                      {choosing ? l->iq : nullptr, s.index_heads * s.index_dim, false}};
    GPU_TRY(product(second, second_out, indexed ? 2 : 1, l->ql, k->rows, l->stream));
    if (choosing) {
        const query_args qa = {l->rope, nullptr, nullptr, 0, l->iq, l->iw};
        GPU_TRY(launch_query(s, qa, k->rows, l->stream));
    }
    const keys_args ka = {&y->keys, l->rope, l->q, l->qa};
    if (!together) GPU_TRY(launch_keys(s, ka, k->rows, l->stream));
    for (uint32_t r = 0; r < k->rows; r += PART_ROWS) {
        const uint32_t n = k->rows - r < PART_ROWS ? k->rows - r : PART_ROWS;
        if (choosing) {
            index_args ia = {
                l->j, index, r, l->iq, l->iw, l->scores, l->z.positions, l->topk, l->probe != nullptr};
            GPU_TRY(launch_scores(s, l->z.dtype, ia, n, l->z.positions, l->stream));
            GPU_TRY(launch_topk(s, ia, n, l->stream));
            int rc = show_index(l, k, index, r, n, err);
            if (rc) return rc;
        }
        const attention_args aa = {l->j, index, r, l->qa, k->sparse ? l->topk : nullptr, l->part, l->part_ml};
        GPU_TRY(launch_attention(s, l->z.dtype, aa, n, l->stream));
        GPU_TRY(launch_values(s, &y->values, aa, l->ov, n, l->stream));
    }
    const matrix *const o = &y->o;
    const product_out o_out = {l->h, s.hidden, true};
    GPU_TRY(product(&o, &o_out, 1, l->ov, k->rows, l->stream));
    return 0;
}

/* h += the layer's own feed-forward of x: a dense layer's, or that of the shared experts. */
static int feed_forward(struct lane *l, const chain *k, const struct layer *y, const vec &x,
                        struct error *err)
{
    if (k->big) return prefill_feed_forward(l, k, y, err);
    if (!x.squares && experts_serve(y->gate, y->up, y->down)) {
        GPU_TRY(launch_experts(y->gate, y->up, y->down, x, l->gate, l->h, k->rows, l->stream));
        return 0;
    }
    const uint32_t wide = y->gate.rows;
    const vec inner = vec_of(l->dv, wide);
    const matrix *const both[] = {&y->gate, &y->up};
    const product_out both_out[] = {{l->gate, wide, false}, {l->up, wide, false}};
    GPU_TRY(product(both, both_out, 2, x, k->rows, l->stream));
    GPU_TRY(launch_pack(l->gate, l->up, wide, wide, inner, k->rows, l->stream));
    const matrix *const down = &y->down;
    const product_out down_out = {l->h, l->s.hidden, true};
    GPU_TRY(product(&down, &down_out, 1, inner, k->rows, l->stream));
    return 0;
}

/* Norm behind the attention, router, publication; then the shared experts, while ducks compute the routed
 * ones. In decode the router's product starts from h, as only the choice needs the whole norm; elsewhere
 * (large jobs, routers that are not bf16) the three come one by one. */
static int route(struct lane *l, chain *k, const struct layer *y, struct error *err)
{
    const matrix *const router = &y->router;
    router_args a = {};
    a.c = l->c;
    a.j = l->j;
    a.step = ++k->step;
    a.logits = l->router;
    a.slices = 1;
    a.bias = y->router_bias;
    a.ids = l->ids_host;
    a.weights = l->weights_host;
    a.arrived = l->arrived;
    vec x = l->x; // the whole norm's outcome
    x.squares = nullptr;
    if (!k->big && k->rows <= PART_ROWS && router->type == MATRIX_BF16) {
        const slice_args sa = {l->h, y->post_norm, router, l->router, l->squares};
        GPU_TRY(launch_slices(l->s, sa, k->rows, l->stream));
        a.slices = l->x.blocks;
        a.x = l->x;
        a.x.squares = l->squares;
        a.h = l->h;
        a.weight = y->post_norm;
        a.x_host = l->x_host;
        if (y->gate.rows) a.kept = x;
    } else {
        norm_args n = norm_of(l, k, y->post_norm, k->big ? l->big.x : l->x);
        n.x.squares = nullptr;
        n.x_host = l->x_host;
        GPU_TRY(launch_norm(l->s, n, k->rows, l->stream));
        const product_out out = {l->router, l->s.experts, false};
        int rc = 0;
        if (k->big)
            rc = prefill_product(l, &router, &out, 1, n.x, k->rows, err);
        else
            GPU_TRY(product(&router, &out, 1, n.x, k->rows, l->stream));
        if (rc) return rc;
    }
    GPU_TRY(launch_router(l->s, a, k->rows, l->stream));
    return y->gate.rows ? feed_forward(l, k, y, x, err) : 0;
}

static int enter(struct lane *l, chain *k, struct error *err)
{
    const bool main = k->kind == BACKEND_MAIN;
    GPU_TRY(launch_begin(l->s, l->c, l->j, l->m->inv_freq, l->rope, main ? l->embed_host : nullptr, l->h,
                         k->rows, l->stream));
    if (main) return 0;
    GPU_TRY(launch_mtp_input(l->s, l->j, l->embed_host, l->m->mtp_embed_norm, l->m->mtp_hidden_norm,
                             k->big ? l->big.mtp_in : l->mtp_in, k->rows, l->stream));
    const matrix *const proj = &l->m->mtp_proj;
    const product_out out = {l->h, l->s.hidden, false};
    if (k->big) return prefill_product(l, &proj, &out, 1, l->big.mtp_in, k->rows, err);
    GPU_TRY(product(&proj, &out, 1, l->mtp_in, k->rows, l->stream));
    return 0;
}

/* Logits of the rows that want them, PART_ROWS at a time, and what of them goes to the host. */
static int head(struct lane *l, const chain *k, const vec &x, struct error *err)
{
    const matrix *const m = k->kind == BACKEND_MAIN ? &l->m->head : &l->m->mtp_head;
    const product_out out = {l->logits, l->z.vocab, false};
    for (uint32_t r = k->logits_from; r < k->rows; r += PART_ROWS) {
        const uint32_t n = k->rows - r < PART_ROWS ? k->rows - r : PART_ROWS;
        const best_args a = {l->j,
                             l->logits,
                             l->z.vocab,
                             l->logits_host + (size_t)r * l->z.vocab,
                             l->best_host + r,
                             l->candidates_host + (r - k->logits_from) % PART_ROWS,
                             l->best_part,
                             l->best_mass,
                             l->best_arrived};
        GPU_TRY(product(&m, &out, 1, vec_from(x, r), n, l->stream));
        GPU_TRY(launch_best(a, n, l->stream));
    }
    return 0;
}

/* Final norm, finished here because others than products read it, and head. */
static int leave(struct lane *l, chain *k, struct error *err)
{
    const bool main = k->kind == BACKEND_MAIN;
    norm_args a = norm_of(l, k, main ? l->m->final_norm : l->m->mtp_final_norm, l->x);
    a.x.squares = nullptr;
    a.x_host = l->probe ? l->x_host : nullptr;
    a.ring = main && l->m->mtp;
    GPU_TRY(launch_norm(l->s, a, k->rows, l->stream));
    int rc = show_rows(l, k, main ? "hidden" : "mtp_hidden", k->at, l->h, err);
    if (!rc && main) rc = show_rows(l, k, "final_norm", 0, l->x_host, err);
    if (!rc) rc = head(l, k, a.x, err);
    if (rc) return rc;
    router_args done = {};
    done.c = l->c;
    done.j = l->j;
    done.step = ++k->step;
    GPU_TRY(launch_router(l->s, done, k->rows, l->stream));
    return 0;
}

int chain_step(struct lane *l, chain *k, bool *done, struct error *err)
{
    int rc = 0;
    if (k->step == 0) rc = enter(l, k, err);
    for (; !rc && k->at < k->end; k->at++) {
        const struct layer *y = &l->m->layers[k->at];
        rc = norm(l, k, y->in_norm, err);
        if (!rc && k->kind == BACKEND_MAIN) rc = show_rows(l, k, "hidden", k->at, l->h, err);
        if (!rc) rc = lane_attend(l, k, k->at, err);
        if (rc) return rc;
        if (y->dense) {
            rc = norm(l, k, y->post_norm, err);
            if (!rc) rc = feed_forward(l, k, y, l->x, err);
            continue;
        }
        rc = route(l, k, y, err);
        if (!rc) rc = show_router(l, k, k->at, err);
        k->at++;
        k->pending = true;
        return rc;
    }
    if (rc) return rc;
    *done = true;
    return leave(l, k, err);
}
