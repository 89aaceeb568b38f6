/* prefill.cu: the launches of a layer for a job of many rows. */
#include "cuda/prefill.cuh"

#include <errno.h>

#include "cuda/lane.cuh"
#include "cuda/widen.cuh"

#define STAGING_BYTES ((size_t)128 << 20) // of widened weights at most
#define EXPANDED 2048u // positions whose keys and values of all heads lie in memory at once

/* ---- memory ---- */

static uint32_t blocks_of(uint32_t n)
{
    return (n + 127) / 128;
}

static void largest(size_t *bytes, const matrix *m)
{
    const size_t n = (size_t)(m->rows + 15) / 16 * 16 * widened_stride(m, m->type == MATRIX_BF16) * 2;
    if (n > *bytes) *bytes = n;
}

/* Enough for the largest matrix or STAGING_BYTES, but always for one layer's keys and values. */
static size_t staging_bytes(const struct gpu_model *m)
{
    size_t most = 0, least = 0;
    largest(&most, &m->mtp_proj);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct layer *y = &m->layers[i];
        const matrix *const all[] = {&y->q_a,    &y->kv_a, &y->index_k, &y->index_w, &y->q_b,    &y->o,
                                     &y->router, &y->gate, &y->up,      &y->down,    &y->index_q};
        for (const matrix *a : all) largest(&most, a);
        size_t keys = 0, values = 0;
        largest(&keys, &y->keys);
        largest(&values, &y->values);
        least = keys + values > least ? keys + values : least;
    }
    if (most > STAGING_BYTES) most = STAGING_BYTES;
    return most > least ? most : least;
}

static vec take_wide(carve *c, vec like, size_t rows, uint32_t blocks)
{
    like.h = nullptr;
    like.hs = nullptr;
    like.squares = nullptr;
    like.blocks = blocks;
    like.w = take<__half>(c, rows * blocks * 128);
    return like;
}

void prefill_layout(struct lane *l, carve *c)
{
    struct prefill *p = &l->big;
    if (!p->on) return;
    const shape &s = l->s;
    const size_t rows = l->z.rows;
    // Positions of dense rows.
    const uint32_t n = s.index_topk && s.index_topk < l->z.positions ? s.index_topk : l->z.positions;
    const size_t wide = s.nope + s.v, all = (size_t)(n < EXPANDED ? n : EXPANDED) * s.heads * wide;
    p->kv_elements = all > n * wide ? all : n * wide;
    p->staging_elements = staging_bytes(l->m) / 2;
    p->workspace = take<uint8_t>(c, BLAS_WORKSPACE);
    p->staging = take<__half>(c, p->staging_elements);
    p->q = take<__half>(c, rows * s.heads * FLASH_QK);
    p->kv = take<__half>(c, p->kv_elements);
    p->latents = take<__half>(c, (size_t)n * (s.latent + s.rope));
    p->x = take_wide(c, l->x, rows, l->x.blocks);
    p->ql = take_wide(c, l->ql, rows, l->ql.blocks);
    p->mtp_in = take_wide(c, l->mtp_in, l->m->mtp ? rows : 0, l->mtp_in.blocks);
    p->ov = take_wide(c, vec{}, rows, blocks_of(s.heads * s.v));
    p->dv = take_wide(c, vec{}, rows, l->dv.blocks);
    p->scale = take<float>(c, rows);
    p->sum = take<float>(c, l->dv.blocks ? rows * s.hidden : 0);
}

/* ---- products ---- */

/* bf16 weights meet all 24 bits where the vector has its three parts. */
static bool in_parts(const matrix *m, const vec &x)
{
    return m->type == MATRIX_BF16 && x.b && m->cols % 128 == 0;
}

static int multiply(struct lane *l, const vec &x, bool parts, uint32_t cols, uint32_t rows, uint32_t n,
                    const product_out &out, float *y, struct error *err)
{
    blas_product p = {};
    p.type = parts ? CUDA_R_16BF : CUDA_R_16F;
    p.x = parts ? (const void *)x.b : x.w;
    p.w = l->big.staging;
    p.y = y;
    p.x_stride = (size_t)x.blocks * (parts ? 384 : 128);
    p.w_stride = (size_t)blocks_of(cols) * (parts ? 384 : 128);
    p.y_stride = out.stride;
    p.rows = rows;
    p.n = n;
    p.k = parts ? 3 * cols : cols;
    p.alpha = parts ? 1.0f : 1.0f / WIDEN_UP;
    p.add = out.add;
    return blas_multiply(&l->big.blas, &p, err);
}

/* How many of the matrices can be one: fp8, their outputs beside each other. */
static uint32_t joined(const struct prefill *p, const matrix *const m[], const product_out out[],
                       uint32_t count)
{
    size_t rows = m[0]->rows;
    uint32_t i = 1;
    for (; i < count; i++) {
        if (m[i - 1]->type != MATRIX_FP8 || m[i]->type != MATRIX_FP8 ||
            out[i].y != out[i - 1].y + m[i - 1]->rows || out[i].stride != out[0].stride)
            break;
        rows += m[i]->rows;
        if (rows * widened_stride(m[0], false) > p->staging_elements) break;
    }
    return i;
}

static int sliced(struct lane *l, const matrix *m, const product_out &out, const vec &x, bool parts,
                  uint32_t rows, struct error *err)
{
    const uint32_t most = (uint32_t)(l->big.staging_elements / widened_stride(m, parts)) / 16 * 16;
    const uint32_t slices = div_up(m->rows, most), slice = div_up(div_up(m->rows, slices), 16) * 16;
    for (uint32_t r = 0; r < m->rows; r += slice) {
        const uint32_t n = m->rows - r < slice ? m->rows - r : slice;
        GPU_TRY(widen(m, r, n, parts, l->big.staging, l->stream));
        int rc = multiply(l, x, parts, m->cols, rows, n, out, out.y + r, err);
        if (rc) return rc;
    }
    return 0;
}

int prefill_product(struct lane *l, const matrix *const m[], const product_out out[], uint32_t count,
                    const vec &x, uint32_t rows, struct error *err)
{
    for (uint32_t i = 0; i < count;) {
        const bool parts = in_parts(m[i], x);
        const uint32_t n = joined(&l->big, m + i, out + i, count - i);
        int rc = 0;
        if (m[i]->type == MATRIX_F32 && x.f32) {
            GPU_TRY(product(m + i, out + i, 1, x, rows, l->stream));
        } else if (n == 1) {
            rc = sliced(l, m[i], out[i], x, parts, rows, err);
        } else {
            uint32_t total = 0;
            for (uint32_t k = i; k < i + n; total += m[k++]->rows)
                GPU_TRY(widen(m[k], 0, m[k]->rows, false,
                              l->big.staging + total * widened_stride(m[k], false), l->stream));
            rc = multiply(l, x, false, m[i]->cols, rows, total, out[i], out[i].y, err);
        }
        if (rc) return rc;
        i += n;
    }
    return 0;
}

/* ---- attention ---- */

/* Keys and values of positions 0 .. n - 1, heads head0 .. head0 + heads - 1. */
static int expand(struct lane *l, const struct layer *y, uint32_t n, uint32_t head0, uint32_t heads,
                  struct error *err)
{
    const shape &s = l->s;
    const struct prefill *p = &l->big;
    const size_t key_stride = widened_stride(&y->keys, false),
                 value_stride = widened_stride(&y->values, false), wide = s.nope + s.v;
    const __half *keys = p->staging, *values = keys + y->keys.rows * key_stride;
    blas_heads h = {};
    h.x = p->latents;
    h.x_stride = s.latent + s.rope;
    h.y_stride = heads * wide;
    h.y_head = wide;
    h.rows = n;
    h.k = s.latent;
    h.count = heads;
    h.alpha = 1.0f / WIDEN_UP;
    h.y = p->kv;
    h.w = keys + head0 * s.latent * key_stride; // (latent, nope) each
    h.w_stride = key_stride;
    h.w_head = s.latent * key_stride;
    h.n = s.nope;
    int rc = blas_multiply_heads(&p->blas, &h, err);
    if (rc) return rc;
    h.y = p->kv + s.nope;
    h.w = values + head0 * s.v * value_stride; // (v, latent) each
    h.w_stride = value_stride;
    h.w_head = s.v * value_stride;
    h.n = s.v;
    h.transposed = true;
    return blas_multiply_heads(&p->blas, &h, err);
}

/* The job's first `rows` rows, which see everything before them. */
static int attend_dense(struct lane *l, const chain *k, uint32_t index, uint32_t rows, struct error *err)
{
    const shape &s = l->s;
    const struct layer *y = &l->m->layers[index];
    const struct prefill *p = &l->big;
    const uint32_t n = k->position + rows;
    GPU_TRY(launch_gather(s, l->z.dtype, l->j, index, p->latents, n, l->stream));
    GPU_TRY(widen(&y->keys, 0, y->keys.rows, false, p->staging, l->stream));
    GPU_TRY(widen(&y->values, 0, y->values.rows, false,
                  p->staging + y->keys.rows * widened_stride(&y->keys, false), l->stream));
    const uint32_t most = (uint32_t)(p->kv_elements / ((size_t)n * (s.nope + s.v)));
    for (uint32_t head = 0; head < s.heads; head += most) {
        const uint32_t heads = s.heads - head < most ? s.heads - head : most;
        int rc = expand(l, y, n, head, heads, err);
        if (rc) return rc;
        const flash_args a = {p->q, p->kv, p->latents,  p->ov.w, (size_t)p->ov.blocks * 128,
                              head, heads, k->position, rows};
        GPU_TRY(launch_flash(s, a, l->stream));
    }
    return 0;
}

/* Rows from `first` on, each with its own choice of positions: the kernels of decode, many rows a launch. */
static int attend_sparse(struct lane *l, const chain *k, uint32_t index, uint32_t first, struct error *err)
{
    const shape &s = l->s;
    const struct layer *y = &l->m->layers[index];
    const uint32_t rows = k->rows - first, width = s.heads * (s.latent + s.rope);
    const keys_args ka = {&y->keys, l->rope + (size_t)first * (s.rope / 2),
                          l->q + (size_t)first * s.heads * (s.nope + s.rope), l->qa + (size_t)first * width};
    GPU_TRY(launch_keys(s, ka, rows, l->stream));
    for (uint32_t r = first; r < k->rows; r += SCORED_ROWS) {
        const uint32_t n = k->rows - r < SCORED_ROWS ? k->rows - r : SCORED_ROWS;
        const index_args ia = {l->j, index, r, l->iq, l->iw, l->scores, l->z.positions, l->topk, false};
        GPU_TRY(launch_scores(s, l->z.dtype, ia, n, k->position + k->rows, l->stream));
        GPU_TRY(launch_topk(s, ia, n, l->stream));
        for (uint32_t i = 0; i < n; i += PART_ROWS) {
            const uint32_t part = n - i < PART_ROWS ? n - i : PART_ROWS;
            const attention_args aa = {l->j,    index,     r + i, l->qa, l->topk + (size_t)i * s.index_topk,
                                       l->part, l->part_ml};
            GPU_TRY(launch_attention(s, l->z.dtype, aa, part, l->stream));
            GPU_TRY(launch_values(s, &y->values, aa, l->big.ov, part, l->stream));
        }
    }
    return 0;
}

int prefill_attend(struct lane *l, const chain *k, uint32_t index, struct error *err)
{
    const shape &s = l->s;
    const struct layer *y = &l->m->layers[index];
    const struct prefill *p = &l->big;
    const bool indexed = s.index_topk != 0;
    uint32_t dense = k->rows; // rows that see at most index_topk positions
    if (k->sparse) dense = k->position < s.index_topk ? s.index_topk - k->position : 0;
    const uint32_t kv_at = s.q_rank, index_at = s.q_rank + s.latent + s.rope;
    const matrix *const first[] = {&y->q_a, &y->kv_a, &y->index_k, &y->index_w};
    const product_out first_out[] = {{l->a, l->a_stride, false},
                                     {l->a + kv_at, l->a_stride, false},
                                     {l->a + index_at, l->a_stride, false},
                                     {l->iw, s.index_heads, false}};
    // Only rows that choose have a use for the indexer's queries and weights.
    int rc = prefill_product(l, first, first_out, k->sparse ? 4 : indexed ? 3 : 2, p->x, k->rows, err);
    if (rc) return rc;
    latent_args la = {l->j,      l->rope,    l->a,          l->a_stride,   kv_at, index_at,  index,
                      y->q_norm, y->kv_norm, y->index_norm, y->index_bias, p->ql, l->z.dtype};
    GPU_TRY(launch_latent(s, la, true, k->rows, l->stream));
    const matrix *const second[] = {&y->q_b, &y->index_q};
    const product_out second_out[] = {{l->q, s.heads * (s.nope + s.rope), false},
                                      {l->iq, s.index_heads * s.index_dim, false}};
    rc = prefill_product(l, second, second_out, k->sparse ? 2 : 1, p->ql, k->rows, err);
    if (rc) return rc;
    const query_args qa = {l->rope, l->q, p->q, FLASH_QK, k->sparse ? l->iq : nullptr, l->iw};
    GPU_TRY(launch_query(s, qa, k->rows, l->stream));
    if (dense) rc = attend_dense(l, k, index, dense, err);
    if (!rc && dense < k->rows) rc = attend_sparse(l, k, index, dense, err);
    if (rc) return rc;
    const matrix *const o = &y->o;
    const product_out o_out = {l->h, s.hidden, true};
    return prefill_product(l, &o, &o_out, 1, p->ov, k->rows, err);
}

int prefill_feed_forward(struct lane *l, const chain *k, const struct layer *y, struct error *err)
{
    const struct prefill *p = &l->big;
    const uint32_t wide = y->gate.rows;
    const vec inner = vec_of(p->dv, wide);
    const matrix *const both[] = {&y->gate, &y->up}, *const down = &y->down;
    const product_out both_out[] = {{l->gate, wide, false}, {l->up, wide, false}};
    const product_out down_out = {p->sum, l->s.hidden, false};
    int rc = prefill_product(l, both, both_out, 2, p->x, k->rows, err);
    if (rc) return rc;
    GPU_TRY(launch_pack_rows(l->gate, l->up, wide, inner, p->scale, k->rows, l->stream));
    rc = prefill_product(l, &down, &down_out, 1, inner, k->rows, err);
    if (rc) return rc;
    GPU_TRY(launch_add_rows(l->h, p->sum, p->scale, l->s.hidden, k->rows, l->stream));
    return 0;
}
