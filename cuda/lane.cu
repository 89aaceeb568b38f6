/* lane.cu: a lane's memory and graphs. */
#include "cuda/lane.cuh"

#include <errno.h>
#include <string.h>

static vec take_vec(carve *c, size_t rows, size_t blocks)
{
    vec v = {};
    v.blocks = (uint32_t)blocks;
    v.f32 = take<float>(c, rows * blocks * 128);
    v.h = take<__half>(c, rows * blocks * 256);
    v.hs = take<float>(c, rows * blocks);
    v.b = take<__nv_bfloat16>(c, rows * blocks * 384);
    return v;
}

/* Only the forms that `by` reads are written; `f32` keeps the plain one. */
static void trim(vec *v, uint32_t forms, bool f32)
{
    if (!f32 && !(forms & 1u << MATRIX_F32)) v->f32 = nullptr;
    if (!(forms & 1u << MATRIX_FP8)) v->h = nullptr, v->hs = nullptr;
    if (!(forms & 1u << MATRIX_BF16)) v->b = nullptr;
}

static uint32_t blocks_of(uint32_t n)
{
    return (n + 127) / 128;
}

/* Of the widest feed-forward that is computed here. */
static uint32_t inner_width(const struct gpu_model *m)
{
    uint32_t widest = 0;
    for (uint32_t i = 0; i < m->count; i++)
        if (m->layers[i].gate.rows > widest) widest = m->layers[i].gate.rows;
    return widest;
}

static void trim_all(struct lane *l)
{
    uint32_t x = 1u << l->m->head.type | 1u << l->m->mtp_head.type, ql = 0, ov = 0, dv = 0;
    for (uint32_t i = 0; i < l->m->count; i++) {
        const struct layer *y = &l->m->layers[i];
        x |= 1u << y->q_a.type | 1u << y->kv_a.type;
        if (!y->dense) x |= 1u << y->router.type;
        if (y->gate.rows) x |= 1u << y->gate.type | 1u << y->up.type, dv |= 1u << y->down.type;
        ql |= 1u << y->q_b.type;
        if (l->s.index_topk) x |= 1u << y->index_k.type | 1u << y->index_w.type, ql |= 1u << y->index_q.type;
        ov |= 1u << y->o.type;
    }
    trim(&l->x, x, false);
    trim(&l->ql, ql, false);
    trim(&l->ov, ov, false);
    trim(&l->dv, dv, false);
    trim(&l->mtp_in, 1u << l->m->mtp_proj.type, true);
}

size_t lane_layout(struct lane *l, uint8_t *memory)
{
    carve c = {memory, 0};
    const shape &s = l->s;
    const size_t rows = l->z.rows, parts = rows < PART_ROWS ? rows : PART_ROWS;
    l->j = take<struct job>(&c, 1);
    l->arrived = take<uint32_t>(&c, 1);
    l->best_arrived = take<uint32_t>(&c, PART_ROWS);
    l->best_part = take<unsigned long long>(&c, PART_ROWS * BEST_BLOCKS * BACKEND_CANDIDATES);
    l->best_mass = take<double2>(&c, PART_ROWS * BEST_BLOCKS);
    l->logits = take<float>(&c, parts * l->z.vocab);
    l->rope = take<float2>(&c, rows * (s.rope / 2));
    l->h = take<float>(&c, rows * s.hidden);
    l->a_stride = s.q_rank + s.latent + s.rope + s.index_dim;
    l->a = take<float>(&c, rows * l->a_stride);
    l->q = take<float>(&c, rows * s.heads * (s.nope + s.rope));
    l->iq = take<float>(&c, rows * s.index_heads * s.index_dim);
    l->iw = take<float>(&c, rows * s.index_heads);
    l->qa = take<float>(&c, rows * s.heads * (s.latent + s.rope));
    l->part = take<float>(&c, parts * s.heads * ATTENTION_SPLITS * s.latent);
    l->part_ml = take<float>(&c, parts * s.heads * ATTENTION_SPLITS * 2);
    const size_t scored = l->big.on ? (rows < SCORED_ROWS ? rows : SCORED_ROWS) : parts;
    l->scores = take<float>(&c, s.index_topk ? scored * l->z.positions : 0);
    l->topk = take<int32_t>(&c, scored * s.index_topk);
    const size_t slices = parts * blocks_of(s.hidden);
    l->squares = take<float>(&c, slices);
    l->router = take<float>(&c, (rows > slices ? rows : slices) * s.experts);
    const uint32_t wide = inner_width(l->m);
    l->gate = take<float>(&c, rows * wide);
    l->up = take<float>(&c, rows * wide);
    l->x = take_vec(&c, rows, blocks_of(s.hidden));
    l->x.squares = take<float>(&c, rows * blocks_of(s.hidden));
    l->x.n = (float)s.hidden;
    l->x.eps = s.eps;
    l->ql = take_vec(&c, rows, blocks_of(s.q_rank));
    l->ov = take_vec(&c, rows, blocks_of(s.heads * s.v));
    l->dv = take_vec(&c, rows, blocks_of(wide));
    l->mtp_in = take_vec(&c, l->m->mtp ? rows : 0, blocks_of(2 * s.hidden));
    if (memory) trim_all(l);
    prefill_layout(l, &c);
    return c.used;
}

template <class T> static int mapped(T **out, size_t n, struct error *err)
{
    GPU_TRY(cudaHostAlloc((void **)out, n * sizeof(T) + 64, cudaHostAllocMapped | cudaHostAllocPortable));
    memset((void *)*out, 0, n * sizeof(T));
    return 0;
}

static int capture(struct lane *l, enum backend_job_kind kind, bool sparse, uint32_t rows, struct error *err)
{
    chain k = chain_begin(l, kind, 0, rows, 0);
    k.sparse = sparse;
    cudaGraph_t graph;
    bool done = false;
    GPU_TRY(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeThreadLocal));
    int rc = 0;
    while (!done && !rc) rc = chain_step(l, &k, &done, err);
    cudaError_t e = cudaStreamEndCapture(l->stream, &graph);
    if (rc) return rc;
    GPU_TRY(e);
    e = cudaGraphInstantiate(&l->graphs[kind][sparse][rows - 1], graph, 0);
    cudaGraphDestroy(graph);
    GPU_TRY(e);
    GPU_TRY(cudaGraphUpload(l->graphs[kind][sparse][rows - 1], l->stream));
    return 0;
}

int lane_open(struct lane *l, uint32_t graph_rows, struct error *err)
{
    const size_t rows = l->z.rows, hidden = l->s.hidden;
    GPU_TRY(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    int rc = mapped(&l->c, 1, err);
    if (!rc) rc = mapped(&l->x_host, rows * hidden, err);
    if (!rc) rc = mapped(&l->y_host, rows * hidden, err);
    if (!rc) rc = mapped(&l->embed_host, rows * hidden, err);
    if (!rc) rc = mapped(&l->ids_host, rows * l->s.top_k, err);
    if (!rc) rc = mapped(&l->weights_host, rows * l->s.top_k, err);
    if (!rc) rc = mapped(&l->best_host, rows, err);
    if (!rc) rc = mapped(&l->candidates_host, PART_ROWS, err);
    if (!rc) rc = mapped(&l->logits_host, rows * l->z.vocab, err);
    if (rc) return rc;
    if (l->big.on) rc = blas_open(&l->big.blas, l->stream, l->big.workspace, err);
    if (rc) return rc;
    GPU_TRY(cudaMemsetAsync(l->arrived, 0, sizeof *l->arrived, l->stream));
    GPU_TRY(cudaMemsetAsync(l->best_arrived, 0, PART_ROWS * sizeof *l->best_arrived, l->stream));
    for (uint32_t r = 1; r <= graph_rows && r <= l->z.rows && !rc; r++)
        for (int kind = BACKEND_MAIN; kind <= (l->m->mtp ? BACKEND_MTP : BACKEND_MAIN) && !rc; kind++)
            for (int sparse = 0; sparse <= (l->s.index_topk ? 1 : 0) && !rc; sparse++)
                rc = capture(l, (enum backend_job_kind)kind, sparse, r, err);
    if (rc) return rc;
    GPU_TRY(cudaStreamSynchronize(l->stream));
    return 0;
}

void lane_close(struct lane *l)
{
    for (auto &kind : l->graphs)
        for (auto &sparse : kind)
            for (auto &g : sparse)
                if (g) cudaGraphExecDestroy(g);
    blas_close(&l->big.blas);
    void *const pinned[] = {l->c,           l->x_host,    l->y_host,
                            l->embed_host,  l->ids_host,  l->weights_host,
                            l->logits_host, l->best_host, l->candidates_host};
    for (void *p : pinned) cudaFreeHost(p);
    if (l->stream) cudaStreamDestroy(l->stream);
}

cudaGraphExec_t lane_graph(const struct lane *l, const chain *k)
{
    if (k->rows > GRAPH_ROWS || l->probe) return nullptr;
    return l->graphs[k->kind][k->sparse][k->rows - 1];
}
