/* bench_prefill.cu: prompts in large jobs. */
#include "cuda/bench.cuh"

#include <stdio.h>
#include <stdlib.h>

/* Chunks of a prompt with answers that are always there; only launches and the device. */
void prefill(rig *t, uint32_t chunk, uint32_t prompt)
{
    struct lane *l = &t->l;
    struct error err;
    double best = 1e30;
    for (int repeat = 0; repeat < 2; repeat++) {
        const uint64_t start = clock_ns();
        for (uint32_t p = 0; p < prompt; p += chunk) {
            place(t, p, chunk);
            chain k = chain_begin(l, BACKEND_MAIN, p, chunk, p + chunk < prompt ? chunk : chunk - 1);
            for (bool done = false; !done;) must(chain_step(l, &k, &done, &err), &err);
            ok(cudaStreamSynchronize(l->stream), "prefill");
        }
        const double us = (double)(clock_ns() - start) / 1e3;
        best = us < best ? us : best;
    }
    double weights = 0;
    for (uint32_t i = 0; i < t->m.main_layers; i++) {
        const struct layer &y = t->m.layers[i];
        const matrix *const all[] = {&y.q_a,     &y.kv_a, &y.index_k, &y.index_w, &y.q_b,
                                     &y.index_q, &y.keys, &y.values,  &y.o};
        for (const matrix *m : all) weights += (double)m->rows * m->cols;
        if (y.dense) weights += 3.0 * y.gate.rows * y.gate.cols;
    }
    printf("prefill of %u tokens in chunks of %u: %.1f ms, %.0f tokens/s, %.1f TFLOP/s in the weight "
           "products alone\n",
           prompt, chunk, best / 1e3, prompt / best * 1e6, 2 * weights * prompt / best / 1e6);
}

static float elapsed(cudaEvent_t a, cudaEvent_t b)
{
    float ms;
    ok(cudaEventSynchronize(b), "event");
    ok(cudaEventElapsedTime(&ms, a, b), "event");
    return ms;
}

#define PREFILL_REPEATS 5

/* Median milliseconds of a few runs of f. */
template <class F> static double time_runs(cudaStream_t s, F f)
{
    cudaEvent_t a, b;
    float ms[PREFILL_REPEATS];
    ok(cudaEventCreate(&a), "event");
    ok(cudaEventCreate(&b), "event");
    for (int i = -1; i < PREFILL_REPEATS; i++) {
        ok(cudaEventRecord(a, s), "event");
        f();
        ok(cudaEventRecord(b, s), "event");
        const float t = elapsed(a, b);
        if (i >= 0) ms[i] = t;
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    qsort(ms, PREFILL_REPEATS, sizeof *ms, by_value);
    return ms[PREFILL_REPEATS / 2];
}

struct plain_buffers {
    __nv_bfloat16 *x, *w;
    float *y;
};

/* rows x cols times cols x n in bf16, plainly; returns the operations. */
static double plain_product(rig *t, const plain_buffers &p, uint32_t rows, uint32_t n, uint32_t cols)
{
    struct error err;
    blas_product b = {CUDA_R_16BF, p.x, p.w, p.y, cols, cols, n, rows, n, cols, 1.0f, false};
    must(blas_multiply(&t->l.big.blas, &b, &err), &err);
    return 2.0 * rows * n * cols;
}

/* The attention part (norm, attention block) of all layers for a prompt in chunks, beside cuBLAS bf16
 * products of the same shapes. Of attention itself only what lies below the diagonal counts as work. */
void attention_part(rig *t, uint32_t chunk, uint32_t prompt)
{
    struct lane *l = &t->l;
    const shape &s = l->s;
    struct error err;
    plain_buffers p;
    const size_t x = (size_t)prompt * (s.heads * s.v > s.hidden ? s.heads * s.v : s.hidden),
                 w = (size_t)s.hidden * s.heads * s.v,
                 y = (size_t)prompt * s.heads * (s.nope + (s.rope > s.v ? s.rope : s.v));
    ok(cudaMalloc((void **)&p.x, x * 2), "malloc");
    ok(cudaMalloc((void **)&p.w, w * 2), "malloc");
    ok(cudaMalloc((void **)&p.y, y * 4), "malloc");
    fill(p.x, x / 2, l->stream);
    fill(p.w, w / 2, l->stream);
    double ms = 0, plain_ms = 0, products = 0, attention = 0;
    for (uint32_t at = 0; at < prompt; at += chunk) {
        place(t, at, chunk);
        const chain k = chain_begin(l, BACKEND_MAIN, at, chunk, chunk);
        ms += time_runs(l->stream, [&] {
            for (uint32_t i = 0; i < t->m.main_layers; i++) {
                const norm_args a = {l->c,  l->j,     0,       nullptr, l->h, t->m.layers[i].in_norm,
                                     s.eps, l->big.x, nullptr, false};
                ok(launch_norm(s, a, chunk, l->stream), "norm");
                must(lane_attend(l, &k, i, &err), &err);
            }
        });
        const uint32_t n = at + chunk;
        double work = 0;
        plain_ms += time_runs(l->stream, [&] {
            work = 0;
            for (uint32_t i = 0; i < t->m.main_layers; i++)
                work += plain_product(t, p, chunk, s.q_rank + s.latent + s.rope + s.index_dim, s.hidden) +
                        plain_product(t, p, chunk, s.heads * (s.nope + s.rope), s.q_rank) +
                        plain_product(t, p, n, s.heads * (s.nope + s.v), s.latent) +
                        plain_product(t, p, chunk, s.hidden, s.heads * s.v);
        });
        products += work;
        attention +=
            2.0 * t->m.main_layers * s.heads * (s.nope + s.rope + s.v) * chunk * (at + (chunk + 1) / 2.0);
    }
    cudaFree(p.x);
    cudaFree(p.w);
    cudaFree(p.y);
    const double rate = (products + attention) / ms / 1e9, plain = products / plain_ms / 1e9;
    printf("attention part of %u tokens in chunks of %u: %.1f ms, %.1f + %.1f TFLOP, %.0f TFLOP/s; plain "
           "cuBLAS bf16 "
           "products of the same shapes %.1f ms, %.0f TFLOP/s: %.1f %%\n",
           prompt, chunk, ms, products / 1e12, attention / 1e12, rate, plain_ms, plain, 100 * rate / plain);
}

static void timed(rig *t, const char *name, double work, const char *unit, double ms)
{
    printf("  %-34s %8.1f us a layer %8.1f %s\n", name, ms * 1e3 / t->m.main_layers,
           work * t->m.main_layers / ms / 1e9, unit);
}

/* What the attention part of one chunk at position 0 consists of. */
void prefill_stages(rig *t, uint32_t rows)
{
    struct lane *l = &t->l;
    const shape &s = l->s;
    struct error err;
    place(t, 0, rows);
    const chain k = chain_begin(l, BACKEND_MAIN, 0, rows, rows);
    printf("prefill of %u rows at position 0\n", rows);
    const uint32_t first_rows = s.q_rank + s.latent + s.rope + s.index_dim,
                   wide = s.heads * (s.nope + s.rope);
    auto layers = [&](auto f) {
        return time_runs(l->stream, [&] {
            for (uint32_t i = 0; i < t->m.main_layers; i++) f(t->m.layers[i], i);
        });
    };
    timed(t, "q_a kv_a wk", 2.0 * rows * first_rows * s.hidden, "TFLOP/s",
          layers([&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.q_a, &y.kv_a, &y.index_k};
              const product_out o[] = {{l->a, l->a_stride, false},
                                       {l->a + s.q_rank, l->a_stride, false},
                                       {l->a + s.q_rank + s.latent + s.rope, l->a_stride, false}};
              must(prefill_product(l, m, o, s.index_topk > 0 ? 3 : 2, l->big.x, rows, &err), &err);
          }));
    timed(t, "q_b", 2.0 * rows * wide * s.q_rank, "TFLOP/s", layers([&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.q_b};
              const product_out o[] = {{l->q, wide, false}};
              must(prefill_product(l, m, o, 1, l->big.ql, rows, &err), &err);
          }));
    timed(t, "query rope", 10.0 * rows * wide * 1e-3, "TB/s", layers([&](struct layer &, uint32_t) {
              const query_args a = {l->rope, l->q, l->big.q, FLASH_QK, nullptr, nullptr};
              ok(launch_query(s, a, rows, l->stream), "query");
          }));
    timed(
        t, "attention kernel", (double)rows * rows * s.heads * (s.nope + s.rope + s.v), "TFLOP/s",
        layers([&](struct layer &, uint32_t) {
            const flash_args a = {
                l->big.q, l->big.kv, l->big.latents, l->big.ov.w, (size_t)l->big.ov.blocks * 128, 0, s.heads,
                0,        rows};
            ok(launch_flash(s, a, l->stream), "flash");
        }));
    timed(t, "o_proj", 2.0 * rows * s.hidden * s.heads * s.v, "TFLOP/s",
          layers([&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.o};
              const product_out o[] = {{l->h, s.hidden, true}};
              must(prefill_product(l, m, o, 1, l->big.ov, rows, &err), &err);
          }));
    timed(t, "router", 2.0 * rows * s.experts * s.hidden, "TFLOP/s", layers([&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.router};
              const product_out o[] = {{l->router, s.experts, false}};
              if (!y.dense) must(prefill_product(l, m, o, 1, l->big.x, rows, &err), &err);
          }));
    timed(t, "all of the attention block", 0, "",
          layers([&](struct layer &, uint32_t i) { must(lane_attend(l, &k, i, &err), &err); }));
}

/* All layers' attention parts for rows that all see more than index_topk positions, and what they consist of.
 */
void sparse_prefill(rig *t, uint32_t position, uint32_t rows)
{
    struct lane *l = &t->l;
    const shape &s = l->s;
    struct error err;
    place(t, position, rows);
    const chain k = chain_begin(l, BACKEND_MAIN, position, rows, rows);
    const uint32_t n = rows < SCORED_ROWS ? rows : SCORED_ROWS;
    index_args a = {l->j, 0, 0, l->iq, l->iw, l->scores, l->z.positions, l->topk, false};
    printf("prefill of %u rows at position %u\n", rows, position);
    const auto share = [&](const char *name, uint32_t part, double work, const char *unit, auto f) {
        const double ms = time_runs(l->stream, [&] {
            for (uint32_t i = 0; i < t->m.main_layers; i++) f(i);
        });
        printf("  %-34s %8.2f us a row and layer %8.1f %s\n", name, ms * 1e3 / t->m.main_layers / part,
               work * t->m.main_layers / ms / 1e9, unit);
    };
    share("index scores", n, 2.0 * n * (position + n) * s.index_heads * s.index_dim, "TFLOP/s",
          [&](uint32_t i) {
              a.layer = i;
              ok(launch_scores(s, l->z.dtype, a, n, position + rows, l->stream), "scores");
          });
    share("top-k", n, 4.0 * n * position * 1e-3, "TB/s",
          [&](uint32_t) { ok(launch_topk(s, a, n, l->stream), "top-k"); });
    attention_args aa = {l->j, 0, 0, l->qa, l->topk, l->part, l->part_ml};
    const uint32_t part = n < PART_ROWS ? n : PART_ROWS;
    share("attention", part, 2.0 * part * s.heads * s.index_topk * (2 * s.latent + s.rope), "TFLOP/s",
          [&](uint32_t i) {
              aa.layer = i;
              ok(launch_attention(s, l->z.dtype, aa, part, l->stream), "attention");
          });
    share("joined splits, values", part, 0, "", [&](uint32_t i) {
        ok(launch_values(s, &t->m.layers[i].values, aa, l->big.ov, part, l->stream), "values");
    });
    const double ms = time_runs(l->stream, [&] {
        for (uint32_t i = 0; i < t->m.main_layers; i++) must(lane_attend(l, &k, i, &err), &err);
    });
    printf("  all of the attention blocks %.1f ms: %.2f us a row and layer, %.0f tokens/s\n", ms,
           ms * 1e3 / t->m.main_layers / rows, rows / ms * 1e3);
}
