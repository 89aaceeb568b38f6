/* bench_gpu.cu: the CUDA backend at full size on synthetic weights: time and bytes of every stage beside the
 * copy bandwidth of the same run, whole steps, the loop with the host, prefill.
 *
 *   bench-gpu [--config configs/deepseek-v3.2.json] [--context 2048,32768] [--chunk 2048] [--delay US]
 *
 * The host answers feed-forward steps with zeros, at once or after a fixed time: the figures are the GPU's
 * share, not tokens per second of anything. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/bench_model.cuh"
#include "cuda/lane.cuh"

extern "C" {
#include "host/util/clock.h"
#include "host/util/log.h"
}

extern const struct backend_ops backend_cuda;

#define REPEATS 20

/* ---- measuring ---- */

static void must(int rc, const struct error *err)
{
    if (!rc) return;
    fprintf(stderr, "bench-gpu: %s\n", err->text);
    exit(1);
}

static void ok(cudaError_t e, const char *what)
{
    struct error err;
    must(gpu_check(e, &err, what), &err);
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Median time in microseconds of one replay. */
static double time_graph(cudaGraphExec_t g, cudaStream_t s)
{
    cudaEvent_t a, b;
    float ms[REPEATS];
    ok(cudaEventCreate(&a), "event");
    ok(cudaEventCreate(&b), "event");
    for (int i = -3; i < REPEATS; i++) {
        ok(cudaEventRecord(a, s), "event");
        ok(cudaGraphLaunch(g, s), "graph");
        ok(cudaEventRecord(b, s), "event");
        ok(cudaEventSynchronize(b), "graph");
        if (i >= 0) ok(cudaEventElapsedTime(&ms[i], a, b), "event");
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    qsort(ms, REPEATS, sizeof *ms, by_value);
    return ms[REPEATS / 2] * 1e3;
}

template <class F> static double time_launches(cudaStream_t s, F launches)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ok(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    launches();
    ok(cudaStreamEndCapture(s, &graph), "capture");
    ok(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    const double us = time_graph(exec, s);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return us;
}

static double copy_bandwidth; // bytes read and written per microsecond

static void measure_copy(cudaStream_t s)
{
    const size_t n = (size_t)4 << 30;
    uint8_t *from, *to;
    cudaEvent_t a, b;
    float best = 1e30f;
    ok(cudaMalloc((void **)&from, n), "malloc");
    ok(cudaMalloc((void **)&to, n), "malloc");
    ok(cudaMemset(from, 0x5a, n), "memset");
    ok(cudaEventCreate(&a), "event");
    ok(cudaEventCreate(&b), "event");
    for (int i = 0; i < REPEATS; i++) {
        float ms;
        ok(cudaEventRecord(a, s), "event");
        ok(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, s), "copy");
        ok(cudaEventRecord(b, s), "event");
        ok(cudaEventSynchronize(b), "copy");
        ok(cudaEventElapsedTime(&ms, a, b), "event");
        best = ms < best ? ms : best;
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    cudaFree(from);
    cudaFree(to);
    copy_bandwidth = 2.0 * (double)n / (best * 1e3);
    printf("copy bandwidth (read + written)  %.0f GB/s\n", copy_bandwidth / 1e3);
}

struct rig {
    struct gpu_model m;
    struct lane l;
    uint32_t *pages;
    uint8_t *memory;
};

__global__ static void fill_kernel(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 0x9e3779b9u;
        z = (z ^ z >> 16) * 0x7feb352du;
        z ^= z >> 15;
        p[i] = (z & 0x807f807fu) | 0x3f003f00u; // bf16 +-[0.5, 1)
    }
}

static void open_rig(rig *t, const struct model *model, uint32_t positions, uint32_t rows)
{
    struct error err;
    const uint64_t start = clock_ns();
    must(gpu_model_plan(&t->m, model, false, &err), &err);
    must(gpu_model_load(&t->m, model, &err), &err);
    printf("loaded %.2f GB in %.2f s\n", (double)t->m.bytes / 1e9, (double)(clock_ns() - start) / 1e9);
    t->l.m = &t->m;
    t->l.s = t->m.s;
    t->l.s.kv = kv_layout_make(t->m.s, t->m.count, KV_BF16);
    t->l.z = {rows, (positions + 3) / 4 * 4, model->config.vocab_size, KV_BF16};
    int limit;
    ok(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "attribute");
    ok(attention_open(t->m.s, KV_BF16, (size_t)limit), "attention_open");
    must(blas_load(&err), &err);
    ok(flash_open(), "flash_open");
    t->l.big.on = rows > PREFILL_ROWS;
    const uint32_t pages = div_up(positions, KV_PAGE);
    const size_t kv = pages * t->l.s.kv.page_bytes;
    ok(cudaMalloc((void **)&t->l.s.kv.base, kv), "malloc");
    fill_kernel<<<1024, 256>>>((uint32_t *)t->l.s.kv.base, kv / 4);
    uint32_t *table = (uint32_t *)malloc(pages * sizeof *table);
    for (uint32_t i = 0; i < pages; i++) table[i] = i;
    ok(cudaMalloc((void **)&t->pages, pages * sizeof *table), "malloc");
    ok(cudaMemcpy(t->pages, table, pages * sizeof *table, cudaMemcpyDefault), "copy");
    free(table);
    const size_t bytes = lane_layout(&t->l, nullptr);
    ok(cudaMalloc((void **)&t->memory, bytes), "malloc");
    ok(cudaMemset(t->memory, 0, bytes), "memset");
    lane_layout(&t->l, t->memory);
    const uint64_t graphs = clock_ns();
    must(lane_open(&t->l, GRAPH_ROWS, &err), &err);
    printf("lane of %u rows: %.2f GB, graphs made in %.2f s; KV %.0f bytes a position\n", rows,
           (double)bytes / 1e9, (double)(clock_ns() - graphs) / 1e9, (double)t->l.s.kv.page_bytes / KV_PAGE);
}

static void close_rig(rig *t)
{
    lane_close(&t->l);
    cudaFree(t->memory);
    cudaFree(t->pages);
    cudaFree(t->l.s.kv.base);
    gpu_model_close(&t->m);
}

/* The job every replay sees; the results of all its steps count as there. */
static void place(rig *t, uint32_t position, uint32_t rows)
{
    t->l.c->next = {position, rows, t->pages, nullptr, 0, 0, 0, 1};
    t->l.c->resume = 1u << 30;
    ok(launch_begin(t->l.s, t->l.c, t->l.j, t->m.inv_freq, t->l.rope, nullptr, t->l.h, rows, t->l.stream),
       "begin");
    ok(cudaStreamSynchronize(t->l.stream), "begin");
}

static double weight_bytes(const matrix &m)
{
    return (double)matrix_bytes(&m) + (double)matrix_scale_bytes(&m);
}

static double total_us, total_bytes;

/* launch(layer) for each of n layers; bytes: of one layer. */
template <class F>
static void stage(rig *t, const char *name, uint32_t first, uint32_t n, double bytes, F launch)
{
    const double us = time_launches(t->l.stream, [&] {
        for (uint32_t i = first; i < first + n; i++) launch(t->m.layers[i], i);
    });
    total_us += us;
    total_bytes += bytes * n;
    printf("  %-24s %4u x %8.2f us %9.2f MB %7.0f GB/s %5.1f %%\n", name, n, us / n, bytes / 1e6,
           bytes * n / us / 1e3, 100 * bytes * n / us / copy_bandwidth);
}

static void stages(rig *t, uint32_t position, uint32_t rows)
{
    struct lane *l = &t->l;
    const shape &s = l->s;
    const uint32_t layers = t->m.main_layers;
    const struct layer &y0 = t->m.layers[layers - 1];
    uint32_t dense = 0;
    while (t->m.layers[dense].dense) dense++;
    const uint32_t n = position + rows, seen = n > s.index_topk ? s.index_topk : n;
    const bool sparse = n > s.index_topk;
    place(t, position, rows);
    total_us = total_bytes = 0;
    printf("context %u, %u row%s: stage, layers x time each, bytes each, rate, share of the copy bandwidth\n",
           n, rows, rows > 1 ? "s" : "");
    stage(t, "answer, weigh", 0, layers, 0, [&](struct layer &y, uint32_t) {
        const norm_args a = {l->c, l->j, 0, l->y_host, l->h, y.in_norm, s.eps, l->x, nullptr, false};
        ok(launch_weigh(s, a, rows, l->stream), "weigh");
    });
    const double sparse_bytes = sparse ? weight_bytes(y0.index_w) : 0;
    stage(t, "q_a kv_a wk (weights)", 0, layers,
          weight_bytes(y0.q_a) + weight_bytes(y0.kv_a) + weight_bytes(y0.index_k) + sparse_bytes,
          [&](struct layer &y, uint32_t) {
              const matrix *const m[] = {&y.q_a, &y.kv_a, &y.index_k, &y.index_w};
              const product_out o[] = {{l->a, l->a_stride, false},
                                       {l->a + s.q_rank, l->a_stride, false},
                                       {l->a + s.q_rank + s.latent + s.rope, l->a_stride, false},
                                       {sparse ? l->iw : nullptr, s.index_heads, false}};
              ok(product(m, o, 4, l->x, rows, l->stream), "product");
          });
    const auto latents = [&](struct layer &y, uint32_t i) -> latent_args {
        return {l->j,      l->rope,  l->a,      l->a_stride,  s.q_rank,     s.q_rank + s.latent + s.rope,
                i,         y.q_norm, y.kv_norm, y.index_norm, y.index_bias, l->ql,
                l->z.dtype};
    };
    stage(t, "q norm, q_b, keys, KV", 0, layers, weight_bytes(y0.q_b) + weight_bytes(y0.keys),
          [&](struct layer &y, uint32_t i) {
              ok(launch_queries(s, latents(y, i), y.q_b, y.keys, l->qa, rows, l->stream), "queries");
          });
    if (sparse) {
        stage(t, "q norm", 0, layers, 0, [&](struct layer &y, uint32_t i) {
            ok(launch_latent(s, latents(y, i), false, rows, l->stream), "latent");
        });
        stage(t, "wq_b", 0, layers, weight_bytes(y0.index_q), [&](struct layer &y, uint32_t) {
            const matrix *const m[] = {&y.q_b, &y.index_q};
            const product_out o[] = {{nullptr, 0, false}, {l->iq, s.index_heads * s.index_dim, false}};
            ok(product(m, o, 2, l->ql, rows, l->stream), "product");
        });
    }
    if (sparse) {
        stage(t, "index query rope", 0, layers, 0, [&](struct layer &, uint32_t) {
            const query_args a = {l->rope, nullptr, nullptr, 0, l->iq, l->iw};
            ok(launch_query(s, a, rows, l->stream), "query");
        });
        const index_args ia = {l->j, 0, 0, l->iq, l->iw, l->scores, l->z.positions, l->topk, false};
        stage(t, "index scores", 0, layers, (double)n * s.kv.index_bytes, [&](struct layer &, uint32_t i) {
            index_args a = ia;
            a.layer = i;
            ok(launch_scores(s, l->z.dtype, a, rows, l->z.positions, l->stream), "scores");
        });
        stage(t, "top-k", 0, layers, (double)rows * n * sizeof(float),
              [&](struct layer &, uint32_t) { ok(launch_topk(s, ia, rows, l->stream), "top-k"); });
    }
    const attention_args aa = {l->j, 0, 0, l->qa, sparse ? l->topk : nullptr, l->part, l->part_ml};
    stage(t, "attention", 0, layers, (double)seen * s.kv.row_bytes, [&](struct layer &, uint32_t i) {
        attention_args a = aa;
        a.layer = i;
        ok(launch_attention(s, l->z.dtype, a, rows, l->stream), "attention");
    });
    stage(t, "joined splits, values", 0, layers, weight_bytes(y0.values), [&](struct layer &y, uint32_t) {
        ok(launch_values(s, &y.values, aa, l->ov, rows, l->stream), "values");
    });
    stage(t, "o_proj", 0, layers, weight_bytes(y0.o), [&](struct layer &y, uint32_t) {
        const matrix *const m[] = {&y.o};
        const product_out o[] = {{l->h, s.hidden, true}};
        ok(product(m, o, 1, l->ov, rows, l->stream), "product");
    });
    stage(t, "norm, router, publish", dense, layers - dense, weight_bytes(y0.router),
          [&](struct layer &y, uint32_t) {
              const slice_args sa = {l->h, y.post_norm, &y.router, l->router, l->x.squares};
              ok(launch_slices(s, sa, rows, l->stream), "slices");
              const router_args a = {l->c,      l->j, 1,           l->router, y.router_bias, l->x.blocks,
                                     l->x,      l->h, y.post_norm, l->x_host, l->ids_host,   l->weights_host,
                                     l->arrived};
              ok(launch_router(s, a, rows, l->stream), "router");
          });
    if (dense) {
        const struct layer &d = t->m.layers[0];
        stage(t, "dense feed-forward", 0, dense,
              weight_bytes(d.gate) + weight_bytes(d.up) + weight_bytes(d.down),
              [&](struct layer &y, uint32_t) {
                  const matrix *const m[] = {&y.gate, &y.up}, *const down[] = {&y.down};
                  const product_out o[] = {{l->gate, y.gate.rows, false}, {l->up, y.gate.rows, false}};
                  const product_out h[] = {{l->h, s.hidden, true}};
                  ok(product(m, o, 2, l->x, rows, l->stream), "product");
                  ok(launch_pack(l->gate, l->up, y.gate.rows, y.gate.rows, l->dv, rows, l->stream), "pack");
                  ok(product(down, h, 1, l->dv, rows, l->stream), "product");
              });
    }
    stage(t, "head", 0, 1, weight_bytes(t->m.head), [&](struct layer &, uint32_t) {
        const matrix *const m[] = {&t->m.head};
        const product_out o[] = {{l->logits_host, l->z.vocab, false}};
        vec x = l->x;
        x.squares = nullptr;
        ok(product(m, o, 1, x, rows, l->stream), "product");
    });
    const double us = time_graph(l->graphs[BACKEND_MAIN][sparse][rows - 1], l->stream);
    printf("  sum of stages %.0f us; the step as one graph %.0f us, %.2f GB, %.0f GB/s = %.1f %% of the copy "
           "bandwidth\n",
           total_us, us, total_bytes / 1e9, total_bytes / us / 1e3, 100 * total_bytes / us / copy_bandwidth);
}

/* Chunks of a prompt with answers that are always there; only launches and the device. */
static void prefill(rig *t, uint32_t chunk, uint32_t prompt)
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
static void attention_part(rig *t, uint32_t chunk, uint32_t prompt)
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
    fill_kernel<<<1024, 256, 0, l->stream>>>((uint32_t *)p.x, x / 2);
    fill_kernel<<<1024, 256, 0, l->stream>>>((uint32_t *)p.w, w / 2);
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
static void prefill_stages(rig *t, uint32_t rows)
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
              must(prefill_product(l, m, o, 3, l->big.x, rows, &err), &err);
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

/* Decode through backend.h, the host answering `delay_us` after a publication. */
static void loop(const struct model *model, uint32_t position, uint32_t rows, uint32_t delay_us)
{
    struct error err;
    struct backend *b;
    const struct backend_options o = {model, nullptr, 1, GRAPH_ROWS, KV_BF16, true, true};
    must(backend_cuda.open(&b, &o, &err), &err);
    backend_seq seq;
    must(backend_cuda.seq_open(b, &seq, position + 64, &err), &err);
    const int32_t ids[GRAPH_ROWS] = {1, 2, 3, 4};
    float step_us[REPEATS], boundary_us[REPEATS];
    uint64_t resumed = 0;
    uint32_t steps = 0;
    for (int i = -2; i < REPEATS; i++) {
        const struct backend_job job = {BACKEND_MAIN, seq, position, rows, ids, 0};
        const uint64_t start = clock_ns();
        must(backend_cuda.start(b, 0, &job, &err), &err);
        bool first = true;
        for (steps = 0;;) {
            struct mlp_step step;
            const enum backend_event e = backend_cuda.poll(b, 0, &step, &err);
            if (e == BACKEND_FAILED) must(-1, &err);
            if (e == BACKEND_DONE) break;
            if (e != BACKEND_MLP) continue;
            const uint64_t now = clock_ns();
            if (first && resumed && i >= 0) boundary_us[i] = (float)(now - resumed) / 1e3f;
            first = false;
            while (clock_ns() - now < delay_us * 1000ull) {
            }
            resumed = clock_ns();
            backend_cuda.resume(b, 0);
            steps++;
        }
        if (i >= 0) step_us[i] = (float)(clock_ns() - start) / 1e3f;
    }
    qsort(step_us, REPEATS, sizeof *step_us, by_value);
    qsort(boundary_us, REPEATS, sizeof *boundary_us, by_value);
    printf("loop through backend.h, context %u, %u row%s: %.0f us a step with %u answers after %u us; last "
           "answer -> "
           "next publication %.0f us\n",
           position + rows, rows, rows > 1 ? "s" : "", step_us[REPEATS / 2], steps, delay_us,
           boundary_us[REPEATS / 2]);
    backend_cuda.close(b);
}

static void read_config(struct model *model, const char *path)
{
    struct error err;
    FILE *f = fopen(path, "rb");
    static char json[1 << 16];
    if (!f) {
        fprintf(stderr, "bench-gpu: cannot open %s: %s\n", path, strerror(errno));
        exit(1);
    }
    const size_t n = fread(json, 1, sizeof json, f);
    fclose(f);
    must(model_config_parse(&model->config, json, n, path, &err), &err);
}

int main(int argc, char **argv)
{
    const char *config = "configs/deepseek-v3.2.json", *contexts = "2048,32768,131072";
    uint32_t chunk = 2048, delay_us = 0;
    const uint32_t prompt = 2048;
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--config") && more)
            config = argv[++i];
        else if (!strcmp(argv[i], "--context") && more)
            contexts = argv[++i];
        else if (!strcmp(argv[i], "--chunk") && more)
            chunk = (uint32_t)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--delay") && more)
            delay_us = (uint32_t)atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: bench-gpu [--config F] [--context N,N...] [--chunk ROWS] [--delay US]\n");
            return 2;
        }
    }
    static struct model model;
    static rig t;
    cudaDeviceProp d;
    gpu_host = &bench_host;
    gpu_pdl = !(getenv("DUCKD_CUDA_PDL") && !strcmp(getenv("DUCKD_CUDA_PDL"), "0"));
    ok(cudaGetDeviceProperties(&d, 0), "device");
    printf("%s, %d multiprocessors, programmatic launch %s\n", d.name, d.multiProcessorCount,
           gpu_pdl ? "on" : "off");
    read_config(&model, config);
    bench_model_open(&model.config);
    uint32_t longest = 4096;
    for (const char *p = contexts; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : nullptr)
        longest = (uint32_t)atoi(p) + 64 > longest ? (uint32_t)atoi(p) + 64 : longest;
    open_rig(&t, &model, longest, chunk);
    measure_copy(t.l.stream);
    for (const char *p = contexts; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : nullptr) {
        const uint32_t n = (uint32_t)atoi(p);
        stages(&t, n - 1, 1);
        if (p != contexts) continue;
        stages(&t, n - 2, 2);
        stages(&t, n - 4, 4);
    }
    if (chunk > PREFILL_ROWS) {
        prefill_stages(&t, chunk);
        attention_part(&t, chunk, prompt);
    }
    prefill(&t, chunk, prompt);
    close_rig(&t);
    model.config.max_positions = 8192;
    loop(&model, 2047, 1, 0);
    loop(&model, 2046, 2, 0);
    if (delay_us) loop(&model, 2047, 1, delay_us);
    bench_model_close();
    return 0;
}
