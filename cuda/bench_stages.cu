/* bench_stages.cu: a decode step's stages, each over all layers so that weights come from memory, and the
 * step as one graph. */
#include "cuda/bench.cuh"

#include <stdio.h>

/* A step being measured. */
struct step {
    rig *t;
    uint32_t rows, layers, dense, seen; // dense: layers; seen: positions a row attends to
    bool sparse;
    double us, bytes; // so far
};

/* launch(layer, index) for each of n layers; bytes: of one layer. */
template <class F>
static void stage(step *p, const char *name, uint32_t first, uint32_t n, double bytes, F launch)
{
    const double us = time_launches(p->t->l.stream, [&] {
        for (uint32_t i = first; i < first + n; i++) launch(p->t->m.layers[i], i);
    });
    p->us += us;
    p->bytes += bytes * n;
    printf("  %-24s %4u x %8.2f us %9.2f MB %7.0f GB/s %5.1f %%\n", name, n, us / n, bytes / 1e6,
           bytes * n / us / 1e3, 100 * bytes * n / us / copy_bandwidth);
}

static latent_args latents(const struct lane *l, const struct layer &y, uint32_t index)
{
    const shape &s = l->s;
    return {l->j,      l->rope,  l->a,      l->a_stride,  s.q_rank,     s.q_rank + s.latent + s.rope,
            index,     y.q_norm, y.kv_norm, y.index_norm, y.index_bias, l->ql,
            l->z.dtype};
}

static void first_stages(step *p)
{
    struct lane *l = &p->t->l;
    const shape &s = l->s;
    const struct layer &y0 = p->t->m.layers[p->layers - 1];
    stage(p, "answer, weigh", 0, p->layers, 0, [&](struct layer &y, uint32_t) {
        const norm_args a = {l->c, l->j, 0, l->y_host, l->h, y.in_norm, s.eps, l->x, nullptr, false};
        ok(launch_weigh(s, a, p->rows, l->stream), "weigh");
    });
    stage(p, "q_a kv_a wk (weights)", 0, p->layers,
          weight_bytes(y0.q_a) + weight_bytes(y0.kv_a) + weight_bytes(y0.index_k) +
              (p->sparse ? weight_bytes(y0.index_w) : 0),
          [&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.q_a, &y.kv_a, &y.index_k, &y.index_w};
              const product_out o[] = {{l->a, l->a_stride, false},
                                       {l->a + s.q_rank, l->a_stride, false},
                                       {l->a + s.q_rank + s.latent + s.rope, l->a_stride, false},
                                       {p->sparse ? l->iw : nullptr, s.index_heads, false}};
              ok(product(m, o, 4, l->x, p->rows, l->stream), "product");
          });
    stage(p, "q norm, q_b, keys, KV", 0, p->layers, weight_bytes(y0.q_b) + weight_bytes(y0.keys),
          [&](struct layer &y, uint32_t i) {
              ok(launch_queries(s, latents(l, y, i), y.q_b, y.keys, l->qa, p->rows, l->stream), "queries");
          });
}

/* The matrices of the first product one by one: what a launch takes that reads next to nothing. */
static void floor_stages(step *p)
{
    struct lane *l = &p->t->l;
    const step before = *p;
    const matrix layer::*const parts[] = {&layer::index_k, &layer::kv_a, &layer::q_a};
    const char *const names[] = {"(wk alone)", "(kv_a alone)", "(q_a alone)"};
    for (uint32_t i = l->s.index_heads > 0 ? 0 : 1; i < 3; i++)
        stage(p, names[i], 0, p->layers, weight_bytes(p->t->m.layers[0].*parts[i]),
              [&](struct layer &y, uint32_t) {
                  const matrix *const m[] = {&(y.*parts[i])};
                  const product_out o[] = {{l->a, l->a_stride, false}};
                  ok(product(m, o, 1, l->x, p->rows, l->stream), "product");
              });
    *p = before; // no part of a step
}

static void index_stages(step *p, uint32_t n)
{
    struct lane *l = &p->t->l;
    const shape &s = l->s;
    const struct layer &y0 = p->t->m.layers[p->layers - 1];
    stage(p, "q norm", 0, p->layers, 0, [&](struct layer &y, uint32_t i) {
        ok(launch_latent(s, latents(l, y, i), false, p->rows, l->stream), "latent");
    });
    stage(p, "wq_b", 0, p->layers, weight_bytes(y0.index_q), [&](struct layer &y, uint32_t) {
        const matrix *const m[] = {&y.q_b, &y.index_q};
        const product_out o[] = {{nullptr, 0, false}, {l->iq, s.index_heads * s.index_dim, false}};
        ok(product(m, o, 2, l->ql, p->rows, l->stream), "product");
    });
    stage(p, "index query rope", 0, p->layers, 0, [&](struct layer &, uint32_t) {
        const query_args a = {l->rope, nullptr, nullptr, 0, l->iq, l->iw};
        ok(launch_query(s, a, p->rows, l->stream), "query");
    });
    index_args a = {l->j, 0, 0, l->iq, l->iw, l->scores, l->z.positions, l->topk, false};
    stage(p, "index scores", 0, p->layers, (double)n * s.kv.index_bytes, [&](struct layer &, uint32_t i) {
        a.layer = i;
        ok(launch_scores(s, l->z.dtype, a, p->rows, l->z.positions, l->stream), "scores");
    });
    stage(p, "top-k", 0, p->layers, (double)p->rows * n * sizeof(float),
          [&](struct layer &, uint32_t) { ok(launch_topk(s, a, p->rows, l->stream), "top-k"); });
}

static void attention_stages(step *p)
{
    struct lane *l = &p->t->l;
    const shape &s = l->s;
    const struct layer &y0 = p->t->m.layers[p->layers - 1];
    attention_args a = {l->j, 0, 0, l->qa, p->sparse ? l->topk : nullptr, l->part, l->part_ml};
    stage(p, "attention", 0, p->layers, (double)p->seen * s.kv.row_bytes, [&](struct layer &, uint32_t i) {
        a.layer = i;
        ok(launch_attention(s, l->z.dtype, a, p->rows, l->stream), "attention");
    });
    stage(p, "joined splits, values", 0, p->layers, weight_bytes(y0.values), [&](struct layer &y, uint32_t) {
        ok(launch_values(s, &y.values, a, l->ov, p->rows, l->stream), "values");
    });
    stage(p, "o_proj", 0, p->layers, weight_bytes(y0.o), [&](struct layer &y, uint32_t) {
        const matrix *const m[] = {&y.o};
        const product_out o[] = {{l->h, s.hidden, true}};
        ok(product(m, o, 1, l->ov, p->rows, l->stream), "product");
    });
}

/* Dense layers' or shared experts', from layer `first`, of ordinary x: extreme ones take a division's slow
 * way.
 */
static void inner_stage(step *p, const char *name, uint32_t first, uint32_t n)
{
    struct lane *l = &p->t->l;
    norm_args a = {};
    a.c = l->c, a.j = l->j, a.h = l->h, a.weight = p->t->m.layers[first].post_norm, a.eps = l->s.eps,
    a.x = l->x;
    ok(cudaMemsetAsync(l->h, 0x3f, (size_t)p->rows * l->s.hidden * sizeof(float), l->stream), "h");
    ok(launch_weigh(l->s, a, p->rows, l->stream), "weigh");
    const struct layer &y0 = p->t->m.layers[first];
    stage(p, name, first, n, weight_bytes(y0.gate) + weight_bytes(y0.up) + weight_bytes(y0.down),
          [&](struct layer &y, uint32_t) {
              vec x = l->x;
              if (!y.dense) x.squares = nullptr;
              if (!y.dense && experts_serve(y.gate, y.up, y.down)) {
                  ok(launch_experts(y.gate, y.up, y.down, x, l->gate, l->h, p->rows, l->stream), "experts");
                  return;
              }
              const vec inner = vec_of(l->dv, y.gate.rows);
              const matrix *const m[] = {&y.gate, &y.up}, *const down[] = {&y.down};
              const product_out o[] = {{l->gate, y.gate.rows, false}, {l->up, y.gate.rows, false}};
              const product_out h[] = {{l->h, l->s.hidden, true}};
              ok(product(m, o, 2, x, p->rows, l->stream), "product");
              ok(launch_pack(l->gate, l->up, y.gate.rows, y.gate.rows, inner, p->rows, l->stream), "pack");
              ok(product(down, h, 1, inner, p->rows, l->stream), "product");
          });
}

static void last_stages(step *p)
{
    struct lane *l = &p->t->l;
    const shape &s = l->s;
    const struct gpu_model *m = &p->t->m;
    const uint32_t moe = p->layers - p->dense;
    stage(p, "norm, router, publish", p->dense, moe, weight_bytes(m->layers[p->dense].router),
          [&](struct layer &y, uint32_t) {
              const slice_args sa = {l->h, y.post_norm, &y.router, l->router, l->squares};
              ok(launch_slices(s, sa, p->rows, l->stream), "slices");
              router_args a = {};
              a.c = l->c, a.j = l->j, a.step = 1;
              a.logits = l->router, a.bias = y.router_bias, a.slices = l->x.blocks;
              a.x = l->x, a.x.squares = l->squares;
              a.h = l->h, a.weight = y.post_norm, a.x_host = l->x_host;
              if (m->shared) a.kept = l->x;
              a.ids = l->ids_host, a.weights = l->weights_host, a.arrived = l->arrived;
              ok(launch_router(s, a, p->rows, l->stream), "router");
          });
    if (m->shared) inner_stage(p, "shared experts", p->dense, moe);
    if (p->dense) inner_stage(p, "dense feed-forward", 0, p->dense);
    stage(p, "head", 0, 1, weight_bytes(m->head), [&](struct layer &, uint32_t) {
        const matrix *const head[] = {&m->head};
        const product_out o[] = {{l->logits, l->z.vocab, false}};
        vec x = l->x;
        x.squares = nullptr;
        ok(product(head, o, 1, x, p->rows, l->stream), "product");
    });
    const char *const names[] = {"all logits to the host", "largest logit", "256 largest logits"};
    for (uint32_t want = WANT_ALL; want <= WANT_CANDIDATES; want++) {
        l->c->next.want = want;
        ok(launch_begin(s, l->c, l->j, m->inv_freq, l->rope, nullptr, l->h, p->rows, l->stream), "begin");
        const double us = p->us;
        stage(p, names[want], 0, 1, 0, [&](struct layer &, uint32_t) {
            const best_args a = {l->j,           l->logits,    l->z.vocab,
                                 l->logits_host, l->best_host, l->candidates_host,
                                 l->best_part,   l->best_mass, l->best_arrived};
            ok(launch_best(a, p->rows, l->stream), "best");
        });
        if (want != WANT_BEST) p->us = us; // a step has one of them
    }
}

void stages(rig *t, uint32_t position, uint32_t rows)
{
    struct lane *l = &t->l;
    const shape &s = l->s;
    const uint32_t n = position + rows;
    const bool sparse = s.index_topk > 0 && n > s.index_topk;
    step p = {t, rows, t->m.main_layers, 0, sparse ? s.index_topk : n, sparse, 0, 0};
    while (t->m.layers[p.dense].dense) p.dense++;
    place(t, position, rows);
    printf("context %u, %u row%s: stage, layers x time each, bytes each, rate, share of the copy bandwidth\n",
           n, rows, rows > 1 ? "s" : "");
    first_stages(&p);
    if (rows == 1 && !p.sparse) floor_stages(&p);
    if (p.sparse) index_stages(&p, n);
    attention_stages(&p);
    last_stages(&p);
    place(t, position, rows);
    l->c->next.want = WANT_BEST;
    const double us = time_graph(l->graphs[BACKEND_MAIN][p.sparse][rows - 1], l->stream);
    printf("  sum of stages %.0f us; the step as one graph %.0f us, %.2f GB, %.0f GB/s = %.1f %% of the copy "
           "bandwidth\n",
           p.us, us, p.bytes / 1e9, p.bytes / us / 1e3, 100 * p.bytes / us / copy_bandwidth);
}
