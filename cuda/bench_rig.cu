/* bench_rig.cu: see bench.cuh. */
#include "cuda/bench.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- measuring ---- */

void must(int rc, const struct error *err)
{
    if (!rc) return;
    fprintf(stderr, "bench-gpu: %s\n", err->text);
    exit(1);
}

void ok(cudaError_t e, const char *what)
{
    struct error err;
    must(gpu_check(e, &err, what), &err);
}

int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

double time_graph(cudaGraphExec_t g, cudaStream_t s)
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

double copy_bandwidth;

void measure_copy(cudaStream_t s)
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

void fill(void *p, size_t n, cudaStream_t s)
{
    fill_kernel<<<1024, 256, 0, s>>>((uint32_t *)p, n);
    ok(cudaGetLastError(), "fill");
}

void open_rig(rig *t, const struct model *model, uint32_t positions, uint32_t rows, bool shared)
{
    struct error err;
    const uint64_t start = clock_ns();
    must(gpu_model_plan(&t->m, model, false, shared, &err), &err);
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
    fill(t->l.s.kv.base, kv / 4, 0);
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

void close_rig(rig *t)
{
    lane_close(&t->l);
    cudaFree(t->memory);
    cudaFree(t->pages);
    cudaFree(t->l.s.kv.base);
    gpu_model_close(&t->m);
}

void place(rig *t, uint32_t position, uint32_t rows)
{
    t->l.c->next = {position, rows, t->pages, nullptr, 0, 0, 0, 1};
    t->l.c->resume = 1u << 30;
    ok(launch_begin(t->l.s, t->l.c, t->l.j, t->m.inv_freq, t->l.rope, nullptr, t->l.h, rows, t->l.stream),
       "begin");
    ok(cudaStreamSynchronize(t->l.stream), "begin");
}

double weight_bytes(const matrix &m)
{
    return (double)matrix_bytes(&m) + (double)matrix_scale_bytes(&m);
}
