/* cuda_experts_test.cu: the shared experts' feed-forward in two launches beside the plain products: nearly
 * the same sums at full and at small size, and a row's bits whatever shares the launch and however much
 * shared memory the device has. With two numbers, hidden and inner size, that shape alone: for checkers,
 * which take their time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/layer.cuh"

#define SKIPPED 77
#define ROWS 16u
#define SMALL (99 << 10) // shared memory of a block on smaller devices

static int failures;
static uint64_t state = 0x9e3779b97f4a7c15u;

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

template <class T> static T *device(size_t n, const T *from)
{
    T *p;
    must(cudaMalloc((void **)&p, n * sizeof(T)), "malloc");
    must(from ? cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyDefault) : cudaMemset(p, 0, n * sizeof(T)),
         "copy");
    must(cudaDeviceSynchronize(), "copy");
    return p;
}

static uint64_t word()
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* Random codes without NaN, scales that let a sum stay near the size of its inputs. */
static matrix make_matrix(uint32_t rows, uint32_t cols)
{
    matrix m;
    matrix_shape(&m, MATRIX_FP8, rows, cols, rows);
    const size_t n = (size_t)rows * cols, grid = (size_t)div_up(rows, 128) * div_up(cols, 128);
    uint8_t *codes = (uint8_t *)malloc(n);
    float *scales = (float *)malloc(grid * sizeof *scales);
    for (size_t i = 0; i < n; i++) codes[i] = word() & 0xbf;
    for (size_t i = 0; i < grid; i++) scales[i] = (float)(1 + word() % 4) / sqrtf((float)cols);
    uint8_t *rows_on = device(n, codes);
    float *scales_on = device(grid, scales);
    m.data = device<uint8_t>(matrix_bytes(&m), nullptr);
    m.scales = device<float>(matrix_scale_bytes(&m) / sizeof(float), nullptr);
    const matrix_source plain = {VIEW_PLAIN, 0, 0, 0};
    must(matrix_repack(&m, &plain, DTYPE_F8_E4M3, rows_on, 0, rows, cols, scales_on, 0), "repack");
    must(cudaDeviceSynchronize(), "repack");
    cudaFree(rows_on), cudaFree(scales_on);
    free(codes), free(scales);
    return m;
}

static vec make_vec(uint32_t n)
{
    vec v = {};
    v.blocks = div_up(n, 128);
    v.h = (__half *)device<uint16_t>((size_t)ROWS * v.blocks * 256, nullptr);
    v.hs = device<float>((size_t)ROWS * v.blocks, nullptr);
    return v;
}

struct bed {
    uint32_t hidden, width;
    matrix gate, up, down;
    float *in, *h, *a, *b, *host;
    vec x, inner;
};

/* h = start + feed-forward of rows row0 .., through the kernels under test or the plain ones. */
static float *compute(const bed *t, const float *start, uint32_t row0, uint32_t rows, bool plain)
{
    const size_t n = (size_t)rows * t->hidden;
    must(cudaMemcpy(t->h, start + (size_t)row0 * t->hidden, n * sizeof(float), cudaMemcpyDefault), "copy");
    must(launch_pack(t->in + (size_t)row0 * t->hidden, nullptr, t->hidden, t->hidden, t->x, rows, 0), "pack");
    if (plain) {
        const matrix *const both[] = {&t->gate, &t->up}, *const down[] = {&t->down};
        const product_out out[] = {{t->a, t->width, false}, {t->b, t->width, false}},
                          h = {t->h, t->hidden, true};
        must(product(both, out, 2, t->x, rows, 0), "product");
        must(launch_pack(t->a, t->b, t->width, t->width, t->inner, rows, 0), "pack");
        must(product(down, &h, 1, t->inner, rows, 0), "product");
    } else {
        must(launch_experts(t->gate, t->up, t->down, t->x, t->a, t->h, rows, 0), "experts");
    }
    float *out = (float *)malloc(n * sizeof *out);
    must(cudaMemcpy(out, t->h, n * sizeof(float), cudaMemcpyDefault), "result");
    return out;
}

static void compare(const bed *t, const float *start, const float *alone, uint32_t rows)
{
    float *const got = compute(t, start, 0, rows, false), *const want = compute(t, start, 0, rows, true);
    const size_t n = (size_t)rows * t->hidden;
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double added = (double)want[i] - start[i];
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]), all += added * added;
    }
    const bool same = !memcmp(got, alone, n * sizeof *got), near = all > 0 && sqrt(off / all) <= 1e-6;
    printf("%5u x %4u, %2u rows: off by %.1e, rows alone %s%s\n", t->hidden, t->width, rows, sqrt(off / all),
           same ? "equal" : "differ", same && near ? "" : "  FAILED");
    failures += !(same && near);
    free(got), free(want);
}

/* The rows one by one, with each device's shared memory, then together. */
static void run(uint32_t hidden, uint32_t width, size_t limit)
{
    bed t = {hidden,
             width,
             make_matrix(width, hidden),
             make_matrix(width, hidden),
             make_matrix(hidden, width),
             nullptr,
             nullptr,
             nullptr,
             nullptr,
             nullptr,
             make_vec(hidden),
             make_vec(width)};
    const size_t n = (size_t)ROWS * hidden;
    float *const in = (float *)malloc(n * sizeof *in), *const start = (float *)malloc(n * sizeof *in),
                 *const alone = (float *)malloc(n * sizeof *in);
    for (size_t i = 0; i < n; i++)
        in[i] = (float)(int32_t)word() * 0x1p-31f, start[i] = (float)(int32_t)word() * 0x1p-30f;
    t.in = device(n, in), t.h = device<float>(n, nullptr);
    t.a = device<float>((size_t)ROWS * width, nullptr), t.b = device<float>((size_t)ROWS * width, nullptr);
    if (!experts_serve(t.gate, t.up, t.down))
        printf("%u x %u is not served  FAILED\n", hidden, width), failures++;
    for (uint32_t r = 0; r < ROWS; r++) {
        float *const row = compute(&t, start, r, 1, false);
        memcpy(alone + (size_t)r * hidden, row, hidden * sizeof *row);
        free(row);
    }
    for (uint32_t rows : {1u, 2u, 3u, 4u, 7u, ROWS}) compare(&t, start, alone, rows);
    must(experts_open(SMALL), "experts_open");
    for (uint32_t rows : {1u, 2u, 4u, ROWS}) compare(&t, start, alone, rows);
    must(experts_open(limit), "experts_open");
    void *const memory[] = {t.in, t.h, t.a, t.b, t.x.h, t.x.hs, t.inner.h, t.inner.hs};
    for (void *p : memory) cudaFree(p);
    for (const matrix *m : {&t.gate, &t.up, &t.down}) cudaFree((void *)m->data), cudaFree((void *)m->scales);
    free(in), free(start), free(alone);
}

int main(int argc, char **argv)
{
    const char *const overlap = getenv("DUCKD_CUDA_PDL");
    int devices = 0, limit;
    gpu_pdl = !overlap || strcmp(overlap, "0") != 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return SKIPPED;
    }
    must(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "attribute");
    must(rows_open(), "rows_open");
    must(product_open(), "product_open");
    must(experts_open((size_t)limit), "experts_open");
    if (argc == 3) {
        run((uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), (size_t)limit);
        return failures ? 1 : 0;
    }
    run(7168, 2048, (size_t)limit);
    run(7168, 128, (size_t)limit);
    run(288, 128, (size_t)limit);
    run(256, 96, (size_t)limit);
    run(1040, 1040, (size_t)limit);
    return failures ? 1 : 0;
}
