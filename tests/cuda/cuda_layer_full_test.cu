/* cuda_layer_full_test.cu: attention and router of one layer of DeepSeek-V3.2 at full size. */
#include "tests/cuda/layer_full.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED 77
#define ROWS 65u

/* limit: of the output's relative L2; exact: a row alone must have the same bits. */
static void test_attention(rig *t, double limit, bool exact)
{
    const struct golden *rows = need("attn.rows"), *out = need("attn.output");
    float *input = (float *)malloc((size_t)ROWS * 7168 * sizeof(float));
    plain("attn.input", input, (size_t)ROWS * 7168);
    begin(t, input, 0, ROWS);
    attend(t, 0, ROWS);
    for (size_t r = 0; r < rows->count; r++) {
        char what[32];
        snprintf(what, sizeof what, "attn.output row %d", rows->i[r]);
        near(what, t->host + (size_t)rows->i[r] * 7168, out->f + r * 7168, 7168, limit);
    }
    if (t->l.z.dtype == KV_F32)
        compare_cache(t, 0, ROWS, "attn.kv_latent", "attn.k_pe", "attn.index_k", exact ? 1e-5 : 1e-3);
    if (!exact) {
        free(input);
        return;
    }
    // The last row again, alone: the same bits.
    float *batch = (float *)malloc(7168 * sizeof(float));
    memcpy(batch, t->host + 64 * 7168, 7168 * sizeof(float));
    begin(t, input + 64 * 7168, 64, 1);
    attend(t, 64, 1);
    const bool same = !memcmp(batch, t->host, 7168 * sizeof(float));
    printf("row 64 alone             %s\n", same ? "the same bits" : "FAILED: other bits");
    failures += !same;
    free(batch);
    free(input);
}

static void test_long(rig *t)
{
    const uint32_t n = 4096;
    float *latent = (float *)malloc(n * 512 * sizeof(float)), *pe = (float *)malloc(n * 64 * sizeof(float));
    float *key = (float *)malloc(n * 128 * sizeof(float)), input[7168];
    plain("long.kv_latent", latent, n * 512);
    plain("long.k_pe", pe, n * 64);
    plain("long.index_k", key, n * 128);
    plain("long.input", input, 7168);
    for (uint32_t r = 0; r < n; r++) {
        float row[576];
        memcpy(row, latent + r * 512, 512 * sizeof(float));
        memcpy(row + 512, pe + r * 64, 64 * sizeof(float));
        cuda_must(cudaMemcpy(t->l.s.kv.base + row_at(t, r), row, sizeof row, cudaMemcpyDefault), "copy");
        cuda_must(cudaMemcpy(t->l.s.kv.base + index_row_at(t, r), key + r * 128, 128 * sizeof(float),
                             cudaMemcpyDefault),
                  "copy");
    }
    begin(t, input, n, 1);
    attend(t, n, 1);
    near("long.output", t->host, need("long.output")->f, 7168, 1e-4);
    compare_cache(t, n, 1, "long.new_kv_latent", "long.new_k_pe", "long.new_index_k",
                  1e-4); // fp32 angles at 4096
    float *scores = (float *)malloc((n + 1) * sizeof(float));
    cuda_must(cudaMemcpy(scores, t->l.scores, (n + 1) * sizeof(float), cudaMemcpyDefault), "copy");
    near("long.index_scores", scores, need("long.index_scores")->f, n + 1, 1e-4);
    int32_t *topk = (int32_t *)malloc(2048 * sizeof(int32_t));
    cuda_must(cudaMemcpy(topk, t->l.topk, 2048 * sizeof(int32_t), cudaMemcpyDefault), "copy");
    const bool same = !memcmp(topk, need("long.index_topk")->i, 2048 * sizeof(int32_t));
    printf("long.index_topk          %s\n", same ? "equal" : "FAILED: differs");
    failures += !same;
    free(latent), free(pe), free(key), free(scores), free(topk);
}

/* A job that begins dense and ends sparse, as prefill does it, beside the decode kernels. */
static void test_mixed(rig *t)
{
    const uint32_t position = 1900;
    const size_t n = (size_t)MIXED * 7168;
    float *input = (float *)malloc(n * sizeof(float)), *want = (float *)malloc(n * sizeof(float));
    plain("mixed.input", input, n);
    t->l.big.on = false;
    begin(t, input, position, MIXED);
    attend(t, position, MIXED);
    memcpy(want, t->host, n * sizeof(float));
    t->l.big.on = true;
    begin(t, input, position, MIXED);
    attend(t, position, MIXED);
    const size_t dense = (size_t)(2048 - position) * 7168;
    near("mixed rows, dense", t->host, want, dense, 2e-3);
    // A choice that rounding moves from one position to another changes a row of random values by sqrt(2 /
    // 2048).
    near("mixed rows, sparse", t->host + dense, want + dense, n - dense, 5e-2);
    free(input), free(want);
}

static void same_ids(const char *what, const int32_t *got, const int32_t *want)
{
    const bool same = !memcmp(got, want, 6 * 8 * sizeof(int32_t));
    printf("%-24s %s\n", what, same ? "equal" : "FAILED: differ");
    failures += !same;
}

static void test_router(rig *t)
{
    float input[6 * 7168], logits[6 * 256];
    plain("moe.input", input, 6 * 7168);
    begin(t, input, 0, 6);
    const matrix *const router = &t->m.layers[0].router;
    const product_out out = {t->l.router, 256, false};
    cuda_must(product(&router, &out, 1, t->l.x, 6, t->l.stream), "router");
    router_args a = {};
    a.c = t->l.c, a.j = t->l.j, a.step = 1, a.arrived = t->l.arrived;
    a.logits = t->l.router, a.slices = 1, a.bias = t->m.layers[0].router_bias;
    a.ids = t->l.ids_host, a.weights = t->l.weights_host;
    cuda_must(launch_router(t->l.s, a, 6, t->l.stream), "router");
    cuda_must(cudaStreamSynchronize(t->l.stream), "router");
    cuda_must(cudaMemcpy(logits, t->l.router, sizeof logits, cudaMemcpyDefault), "copy");
    near("moe.router_logits", logits, need("moe.router_logits")->f, 6 * 256, 1e-5);
    near("moe.router_weights", t->l.weights_host, need("moe.router_weights")->f, 6 * 8, 1e-5);
    same_ids("moe.router_ids", t->l.ids_host, need("moe.router_ids")->i);
}

/* Norm and router as decode does them: the same choice and activation as one after the other. */
static void test_route(rig *t, float *squares)
{
    float input[6 * 7168], x[6 * 7168], weights[6 * 8];
    int32_t ids[6 * 8];
    const struct layer *y = &t->m.layers[0];
    const matrix *const router = &y->router;
    plain("moe.input", input, 6 * 7168);
    begin(t, input, 0, 6);
    cuda_must(cudaMemcpy(t->l.h, input, sizeof input, cudaMemcpyDefault), "copy");
    const norm_args n = {t->l.c,       t->l.j,     0,      nullptr,     t->l.h,
                         y->post_norm, t->l.s.eps, t->l.x, t->l.x_host, false};
    cuda_must(launch_norm(t->l.s, n, 6, t->l.stream), "norm");
    const product_out out = {t->l.router, 256, false};
    cuda_must(product(&router, &out, 1, t->l.x, 6, t->l.stream), "router");
    router_args a = {};
    a.c = t->l.c, a.j = t->l.j, a.step = 1, a.arrived = t->l.arrived;
    a.logits = t->l.router, a.slices = 1, a.bias = y->router_bias;
    a.ids = t->l.ids_host, a.weights = t->l.weights_host;
    cuda_must(launch_router(t->l.s, a, 6, t->l.stream), "router");
    cuda_must(cudaStreamSynchronize(t->l.stream), "router");
    memcpy(x, t->l.x_host, sizeof x), memcpy(ids, a.ids, sizeof ids),
        memcpy(weights, a.weights, sizeof weights);
    memset(t->l.x_host, 0, sizeof x), memset(a.ids, 0, sizeof ids), memset(a.weights, 0, sizeof weights);
    const slice_args sa = {t->l.h, y->post_norm, router, t->l.router, squares};
    cuda_must(launch_slices(t->l.s, sa, 6, t->l.stream), "slices");
    a.slices = t->l.x.blocks, a.x = t->l.x, a.x.squares = squares;
    a.h = t->l.h, a.weight = y->post_norm, a.x_host = t->l.x_host;
    cuda_must(launch_router(t->l.s, a, 6, t->l.stream), "router");
    cuda_must(cudaStreamSynchronize(t->l.stream), "router");
    near("route, activation", t->l.x_host, x, 6 * 7168, 1e-6);
    near("route, weights", a.weights, weights, 6 * 8, 1e-5);
    same_ids("route, ids", a.ids, ids);
}

/* A norm that the products finish, beside one that is finished before. */
static void test_weigh(rig *t, float *squares)
{
    static float input[2 * 7168], want[2 * 1536], got[2 * 1536];
    const struct layer *y = &t->m.layers[0];
    const matrix *const q_a = &y->q_a;
    const product_out out = {t->l.a, 1536, false};
    plain("weigh.input", input, 2 * 7168);
    begin(t, input, 0, 2);
    cuda_must(cudaMemcpy(t->l.h, input, sizeof input, cudaMemcpyDefault), "copy");
    norm_args n = {t->l.c, t->l.j, 0, nullptr, t->l.h, y->in_norm, t->l.s.eps, t->l.x, nullptr, false};
    cuda_must(launch_norm(t->l.s, n, 2, t->l.stream), "norm");
    cuda_must(product(&q_a, &out, 1, t->l.x, 2, t->l.stream), "q_a");
    cuda_must(cudaStreamSynchronize(t->l.stream), "norm");
    cuda_must(cudaMemcpy(want, t->l.a, sizeof want, cudaMemcpyDefault), "copy");
    n.x.squares = squares;
    cuda_must(launch_weigh(t->l.s, n, 2, t->l.stream), "weigh");
    cuda_must(product(&q_a, &out, 1, n.x, 2, t->l.stream), "q_a");
    cuda_must(cudaStreamSynchronize(t->l.stream), "weigh");
    cuda_must(cudaMemcpy(got, t->l.a, sizeof got, cudaMemcpyDefault), "copy");
    near("norm within a product", got, want, 2 * 1536, 1e-6);
}

/* Scores of a group of rows with a random cache in bf16: as good as in double precision, the same bits for a
 * row alone, and the best positions of those scores. */
static void test_scores(rig *t)
{
    const shape &s = t->l.s;
    const uint32_t rows = 20, position = 4000, n = position + rows, width = s.index_heads * s.index_dim;
    float *q = (float *)malloc(rows * (width + s.index_heads) * sizeof(float)), *w = q + rows * width;
    float *keys = (float *)malloc(n * s.index_dim * sizeof(float));
    float *got = (float *)malloc(2 * n * sizeof(float)), *alone = got + n,
          *want = (float *)malloc(n * sizeof(float));
    plain("scores.q", q, rows * width), plain("scores.w", w, rows * s.index_heads),
        plain("scores.k", keys, n * s.index_dim);
    for (uint32_t p = 0; p < n; p++) { // small integers / 64: exact in bf16
        uint16_t row[128];
        for (uint32_t i = 0; i < s.index_dim; i++) {
            uint32_t bits;
            memcpy(&bits, keys + p * s.index_dim + i, 4);
            row[i] = (uint16_t)(bits >> 16);
        }
        cuda_must(cudaMemcpy(s.kv.base + index_row_at(t, p), row, s.index_dim * 2, cudaMemcpyDefault),
                  "copy");
    }
    for (uint32_t i = 0; i < rows * width; i++) q[i] = (q[i] + 1e-3f) / 3; // 24 bits of them count
    cuda_must(cudaMemcpy(t->l.iq, q, rows * width * sizeof(float), cudaMemcpyDefault), "copy");
    cuda_must(cudaMemcpy(t->l.iw, w, rows * s.index_heads * sizeof(float), cudaMemcpyDefault), "copy");
    t->l.c->next = {position, rows, t->pages, nullptr, 0, 0, 0, 1};
    cuda_must(launch_begin(s, t->l.c, t->l.j, t->m.inv_freq, t->l.rope, nullptr, t->l.h, rows, t->l.stream),
              "begin");
    float *all;
    int32_t *chosen, *list = (int32_t *)malloc(s.index_topk * sizeof *list);
    cuda_must(cudaMalloc((void **)&all, rows * POSITIONS * sizeof(float)), "malloc");
    cuda_must(cudaMalloc((void **)&chosen, rows * s.index_topk * sizeof(int32_t)), "malloc");
    index_args a = {t->l.j, 0, 0, t->l.iq, t->l.iw, all, POSITIONS, chosen, false};
    cuda_must(launch_scores(s, KV_BF16, a, rows, n, t->l.stream), "scores");
    cuda_must(launch_topk(s, a, rows, t->l.stream), "top-k");
    a.scores = t->l.scores;
    bool same = true, best = true;
    for (uint32_t r = 0; r < rows; r += 19) {
        const uint32_t seen = position + r + 1;
        a.row0 = r;
        cuda_must(launch_scores(s, KV_BF16, a, 1, POSITIONS, t->l.stream), "scores");
        cuda_must(cudaStreamSynchronize(t->l.stream), "scores");
        cuda_must(cudaMemcpy(got, all + (size_t)r * POSITIONS, seen * sizeof(float), cudaMemcpyDefault),
                  "copy");
        cuda_must(cudaMemcpy(alone, t->l.scores, seen * sizeof(float), cudaMemcpyDefault), "copy");
        cuda_must(cudaMemcpy(list, chosen + (size_t)r * s.index_topk, s.index_topk * sizeof *list,
                             cudaMemcpyDefault),
                  "copy");
        same = same && !memcmp(got, alone, seen * sizeof(float));
        for (uint32_t p = 0; p < seen; p++) {
            double sum = 0;
            for (uint32_t h = 0; h < s.index_heads; h++) {
                double dot = 0;
                for (uint32_t i = 0; i < s.index_dim; i++)
                    dot += (double)q[(size_t)r * width + h * s.index_dim + i] * keys[p * s.index_dim + i];
                if (dot > 0) sum += dot * w[r * s.index_heads + h];
            }
            want[p] = (float)sum;
        }
        near("index scores", got, want, seen, 1e-6);
        for (uint32_t p = 0, at = 0, better; p < seen; p++) {
            better = 0;
            for (uint32_t o = 0; o < seen; o++) better += got[o] > got[p] || (got[o] == got[p] && o < p);
            if (better < s.index_topk) best = best && list[at++] == (int32_t)p;
        }
    }
    printf("scores of a row alone    %s\n", same ? "the same bits" : "FAILED: other bits");
    printf("positions chosen         %s\n", best ? "the best" : "FAILED: others");
    failures += !same + !best;
    cudaFree(all), cudaFree(chosen);
    free(q), free(keys), free(got), free(want), free(list);
}

static const float *sorted_logits;

static int falling(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_logits[x] != sorted_logits[y]) return sorted_logits[x] > sorted_logits[y] ? -1 : 1;
    return x - y;
}

/* The largest logits of rows of `vocab` beside a full sort, and what they are shares of; ties, infinities, a
 * NaN. */
static void test_candidates(cudaStream_t stream, job *j, uint32_t vocab)
{
    enum { ALL = 4 };
    float *logits = (float *)malloc(ALL * (size_t)vocab * sizeof(float)), *device;
    int32_t *order = (int32_t *)malloc(vocab * sizeof *order), *best;
    best_args a = {};
    job wanted = {};
    wanted.want = WANT_CANDIDATES;
    wanted.scale = 1.0 / 0.6f;
    cuda_must(cudaMemcpy(j, &wanted, sizeof wanted, cudaMemcpyDefault), "copy");
    for (size_t i = 0; i < ALL * (size_t)vocab; i++) {
        const uint64_t z = word(9, i);
        logits[i] = (float)(int32_t)(z >> 40 & 0xffff) / 8192.0f - 4.0f +
                    (float)(z & 1023) * (i < vocab ? 0.0f : 1e-6f);
        if (i >= 2 * (size_t)vocab && i < 3 * (size_t)vocab && z % 3) logits[i] = -INFINITY;
    }
    logits[3 * (size_t)vocab + vocab / 2] = NAN;
    cuda_must(cudaMalloc((void **)&device, ALL * (size_t)vocab * sizeof(float)), "malloc");
    cuda_must(cudaMemcpy(device, logits, ALL * (size_t)vocab * sizeof(float), cudaMemcpyDefault), "copy");
    cuda_must(cudaMalloc((void **)&a.part, ALL * BEST_BLOCKS * BACKEND_CANDIDATES * sizeof *a.part),
              "malloc");
    cuda_must(cudaMalloc((void **)&a.mass, ALL * BEST_BLOCKS * sizeof *a.mass), "malloc");
    cuda_must(cudaMalloc((void **)&a.arrived, ALL * sizeof *a.arrived), "malloc");
    cuda_must(cudaMemset(a.arrived, 0, ALL * sizeof *a.arrived), "memset");
    cuda_must(
        cudaHostAlloc((void **)&a.candidates_host, ALL * sizeof *a.candidates_host, cudaHostAllocMapped),
        "pinned");
    cuda_must(cudaHostAlloc((void **)&best, ALL * sizeof *best, cudaHostAllocMapped), "pinned");
    a.j = j, a.logits = device, a.vocab = vocab, a.ids_host = best;
    cuda_must(launch_best(a, ALL, stream), "candidates");
    cuda_must(cudaStreamSynchronize(stream), "candidates");
    bool same = best[3] == -1 && isnan(a.candidates_host[3].logit[0]);
    double off = 0;
    for (uint32_t r = 0; r < 3; r++) {
        const backend_candidates *c = a.candidates_host + r;
        double mass = 0, tempered = 0;
        sorted_logits = logits + r * (size_t)vocab;
        for (uint32_t i = 0; i < vocab; i++) order[i] = (int32_t)i;
        qsort(order, vocab, sizeof *order, falling);
        same = same && c->count == (vocab < BACKEND_CANDIDATES ? vocab : BACKEND_CANDIDATES) &&
               best[r] == order[0];
        for (uint32_t i = 0; same && i < c->count; i++)
            same = c->id[i] == order[i] && !memcmp(&c->logit[i], &sorted_logits[order[i]], sizeof(float));
        for (uint32_t i = 0; i < vocab; i++) {
            const double e = (double)sorted_logits[i] - sorted_logits[order[0]];
            mass += exp(e), tempered += exp(e * wanted.scale);
        }
        off = fmax(off, fmax(fabs(c->mass / mass - 1), fabs(c->tempered / tempered - 1)));
    }
    const bool ok = same && off < 1e-12;
    printf("candidates of %-10u %s, masses off by %.1e%s\n", vocab, same ? "equal" : "differ", off,
           ok ? "" : "  FAILED");
    failures += !ok;
    cudaFree(device), cudaFree(a.part), cudaFree(a.mass), cudaFree(a.arrived);
    cudaFreeHost(a.candidates_host), cudaFreeHost(best);
    free(logits), free(order);
}

/* shared_limit: of the attention kernels, which have a smaller form for smaller devices. */
static void run(enum kv_dtype dtype, bool big, size_t shared_limit)
{
    struct error err;
    rig t = {};
    const struct model model = make_model();
    const uint32_t pages = POSITIONS / KV_PAGE;
    printf("KV %s%s, %zu bytes of shared memory\n", dtype == KV_F32 ? "f32" : "bf16",
           big ? ", as prefill" : "", shared_limit);
    must(gpu_model_plan(&t.m, &model, false, false, &err), &err);
    must(gpu_model_load(&t.m, &model, &err), &err);
    t.l.m = &t.m;
    t.l.s = t.m.s;
    t.l.s.kv = kv_layout_make(t.m.s, 1, dtype);
    t.l.big.on = big;
    t.l.z = {MIXED, POSITIONS, VOCAB, dtype};
    cuda_must(attention_open(t.m.s, dtype, shared_limit), "attention_open");
    cuda_must(flash_open(), "flash_open");
    cuda_must(cudaMalloc((void **)&t.l.s.kv.base, pages * t.l.s.kv.page_bytes), "malloc");
    uint32_t table[POSITIONS / KV_PAGE];
    for (uint32_t i = 0; i < pages; i++) table[i] = i;
    cuda_must(cudaMalloc((void **)&t.pages, sizeof table), "malloc");
    cuda_must(cudaMemcpy(t.pages, table, sizeof table, cudaMemcpyDefault), "copy");
    uint8_t *memory;
    cuda_must(cudaMalloc((void **)&memory, lane_layout(&t.l, nullptr)), "malloc");
    lane_layout(&t.l, memory);
    float *const squares = t.l.x.squares;
    must(lane_open(&t.l, 0, &err), &err);
    t.host = (float *)malloc((size_t)MIXED * 7168 * sizeof(float));
    test_attention(&t, dtype == KV_BF16 ? 1e-2 : big ? 2e-3 : 1e-4, !big);
    if (dtype == KV_F32) test_long(&t), test_router(&t), test_route(&t, squares), test_weigh(&t, squares);
    if (dtype == KV_F32 && big) test_mixed(&t);
    if (dtype == KV_BF16) test_scores(&t);
    if (dtype == KV_F32 && !big)
        for (uint32_t vocab : {100u, 6400u, 129280u, 262147u}) test_candidates(t.l.stream, t.l.j, vocab);
    lane_close(&t.l);
    cudaFree(memory), cudaFree(t.pages), cudaFree(t.l.s.kv.base);
    gpu_model_close(&t.m);
    free(t.host);
}

int main()
{
    struct error err;
    int devices = 0;
    gpu_host = &layer_host;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return SKIPPED;
    }
    must(goldens_open(&goldens, "tests/goldens/v32-layer-full", &err), &err);
    int limit;
    cuda_must(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "attribute");
    run(KV_F32, false, (size_t)limit);
    run(KV_BF16, false, (size_t)limit);
    run(KV_BF16, false, 99 << 10);
    if (blas_load(&err)) {
        printf("prefill not tested: %s\n", err.text);
    } else {
        run(KV_F32, true, (size_t)limit);
        run(KV_BF16, true, (size_t)limit);
    }
    goldens_close(goldens);
    return failures ? 1 : 0;
}
