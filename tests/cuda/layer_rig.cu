/* layer_rig.cu: one full-size layer on the device, and comparing with the goldens. */
#include "tests/cuda/layer_full.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparing ---- */

struct goldens *goldens;
int failures;

void must(int rc, const struct error *err)
{
    if (!rc) return;
    printf("FAILED: %s\n", err->text);
    exit(1);
}

void cuda_must(cudaError_t e, const char *what)
{
    struct error err;
    must(gpu_check(e, &err, what), &err);
}

const struct golden *need(const char *name)
{
    const struct golden *g = goldens_find(goldens, "%s", name);
    if (!g) printf("FAILED: no golden %s\n", name), exit(1);
    return g;
}

void near(const char *what, const float *x, const float *want, size_t n, double limit)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++)
        d += ((double)x[i] - want[i]) * ((double)x[i] - want[i]), r += (double)want[i] * want[i];
    const double e = sqrt(d / r);
    const bool ok = e <= limit;
    printf("%-24s relative L2 %.2e, limit %.0e%s\n", what, e, limit, ok ? "" : "  FAILED");
    failures += !ok;
}

/* ---- the layer on the device ---- */

void begin(rig *t, const float *input, uint32_t position, uint32_t rows)
{
    const size_t hidden = t->m.s.hidden;
    t->l.c->next = {position, rows, t->pages, nullptr, 0, 0, 0, 1};
    memcpy(t->l.x_host, input, rows * hidden * sizeof(float));
    t->l.x.squares = nullptr; // the goldens' inputs are normed
    cuda_must(
        launch_begin(t->l.s, t->l.c, t->l.j, t->m.inv_freq, t->l.rope, nullptr, t->l.h, rows, t->l.stream),
        "begin");
    cuda_must(launch_pack(t->l.x_host, nullptr, t->m.s.hidden, t->m.s.hidden, t->l.x, rows, t->l.stream),
              "pack");
    if (t->l.big.on)
        cuda_must(
            launch_pack(t->l.x_host, nullptr, t->m.s.hidden, t->m.s.hidden, t->l.big.x, rows, t->l.stream),
            "pack");
    cuda_must(cudaMemsetAsync(t->l.h, 0, rows * hidden * sizeof(float), t->l.stream), "memset");
    cuda_must(cudaStreamSynchronize(t->l.stream), "begin"); // plain copies do not wait for this stream
}

void attend(rig *t, uint32_t position, uint32_t rows)
{
    struct error err;
    chain k = chain_begin(&t->l, BACKEND_MAIN, position, rows, rows);
    must(lane_attend(&t->l, &k, 0, &err), &err);
    cuda_must(cudaStreamSynchronize(t->l.stream), "attention");
    cuda_must(cudaMemcpy(t->host, t->l.h, (size_t)rows * t->m.s.hidden * sizeof(float), cudaMemcpyDefault),
              "copy");
}

size_t row_at(const rig *t, uint32_t position)
{
    return (size_t)(position / KV_PAGE) * t->l.s.kv.page_bytes +
           position % KV_PAGE * (size_t)t->l.s.kv.row_bytes;
}

size_t index_row_at(const rig *t, uint32_t position)
{
    return (size_t)(position / KV_PAGE) * t->l.s.kv.page_bytes + t->l.s.kv.index_at +
           position % KV_PAGE * (size_t)t->l.s.kv.index_bytes;
}

void compare_cache(rig *t, uint32_t first, uint32_t n, const char *latent, const char *pe, const char *key,
                   double limit)
{
    float *rows = (float *)malloc((size_t)n * (512 + 64 + 128) * sizeof(float));
    float *l = rows, *p = rows + n * 512, *i = p + n * 64;
    for (uint32_t r = 0; r < n; r++) {
        float row[576];
        cuda_must(cudaMemcpy(row, t->l.s.kv.base + row_at(t, first + r), sizeof row, cudaMemcpyDefault),
                  "copy");
        memcpy(l + r * 512, row, 512 * sizeof(float));
        memcpy(p + r * 64, row + 512, 64 * sizeof(float));
        cuda_must(cudaMemcpy(i + r * 128, t->l.s.kv.base + index_row_at(t, first + r), 128 * sizeof(float),
                             cudaMemcpyDefault),
                  "copy");
    }
    near(latent, l, need(latent)->f, n * 512, limit);
    near(pe, p, need(pe)->f, n * 64, limit);
    near(key, i, need(key)->f, n * 128, limit);
    free(rows);
}
