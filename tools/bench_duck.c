/* bench_duck.c: one bank's feed-forward on this machine, beside what the same run measured as the limits.
 *
 * Every repetition times every row once, so that all of them see the same neighbours and clock; the table
 * shows medians. Experts are drawn at random from a bank that should be far larger than the last-level cache.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "duck/duck_core.h"
#include "host/util/clock.h"
#include "host/util/pool.h"
#include "tools/bench_e4m3.h"
#include "tools/bench_limits.h"

enum row {
    READ,
    FMA,
    FMA512,
    L2_OURS,
    L2_PLAIN,
    L2_E4M3,
    STEP,
    HIDDEN,
    DOWN,
    PLAIN,
    E4M3,
    ROWS
}; // HIDDEN, DOWN: parts of STEP
enum { CACHED_PANELS = 4, FMA_ROUNDS = 2000, CACHED_PASSES = 8, MAX_REPEATS = 101 };

struct options {
    uint32_t hidden, width, experts, top_k, tokens, threads, repeats;
    int csv, cpu_time, check, rare;
};

struct bench {
    struct options o;
    struct pool *pool;
    const struct fp9_kernels *kernels;
    struct duck_core *core;
    struct duck_work *work;
    enum duck_phase phase;
    void *memory, *scratch;
    uint8_t *cached, *cached_plain; // panels and rows of each thread's in-cache runs
    uint8_t *e4m3;                  // as many weights as the bank holds, as such bytes
    float *x_e4m3, *scales_e4m3;
    size_t memory_bytes, scratch_bytes, step_bytes;
    float *x, *xs, *weights;
    int32_t *ids;
    uint64_t seed;
    size_t plain_rows, plain_chunk, plain_offset; // of the step's weights, as rows of `hidden`
    size_t e4m3_bytes, e4m3_offset;
    uint64_t phase_ns[DUCK_PHASES]; // of the last step
    double seconds[ROWS][MAX_REPEATS];
};

static const char *const row_names[ROWS] = {"plain reading",   "FMA peak (AVX2)",   "FMA peak (AVX-512)",
                                            "dot, in L2",      "plain F16C, in L2", "e4m3 dot, in L2",
                                            "duck step",       "  gate and up",     "  down",
                                            "plain F16C GEMV", "e4m3 GEMV"};
static volatile uint64_t sink;

static uint32_t below(struct bench *b, uint32_t n) // xorshift64
{
    b->seed ^= b->seed << 13;
    b->seed ^= b->seed >> 7;
    b->seed ^= b->seed << 17;
    return (uint32_t)((b->seed >> 32) * n >> 32);
}

/* In 2 MiB pages where the system grants them, as ducks hold their weights: with 4 KiB pages address
 * translation costs a quarter of a step that comes from DRAM. */
static void *aligned(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t unit = bytes < huge ? 64 : huge;
    void *p = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (p && unit == huge) madvise(p, bytes, MADV_HUGEPAGE);
    if (!p) {
        fprintf(stderr, "bench-duck: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

static uint64_t now(const struct bench *b)
{
    if (!b->o.cpu_time) return clock_ns();
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In pieces that whoever is free takes, as the kernels' tasks are: with a share for each thread the slowest
 * one would be measured. */
#define READ_PIECE ((size_t)1 << 20)

static size_t read_pieces(const struct bench *b)
{
    return (b->memory_bytes + READ_PIECE - 1) / READ_PIECE;
}

static void read_piece(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    size_t from = task * READ_PIECE, left = (b->memory_bytes - from) / 128 * 128;
    sink += limits_read((const uint8_t *)b->memory + from, left < READ_PIECE ? left : READ_PIECE);
}

/* Bytes of what one call of e4m3_dot() reads. */
static size_t e4m3_chunk_bytes(const struct bench *b)
{
    return (size_t)8 * E4M3_PANELS * b->o.hidden;
}

static size_t e4m3_chunks(const struct bench *b) // of one token's experts
{
    return b->plain_rows / (8u * E4M3_PANELS);
}

static void fma_share(void *arg, size_t task, unsigned worker)
{
    (void)arg, (void)task, (void)worker;
    sink += (uint64_t)limits_fma(FMA_ROUNDS);
}

static void fma512_share(void *arg, size_t task, unsigned worker)
{
    (void)arg, (void)task, (void)worker;
    sink += (uint64_t)limits_fma512(FMA_ROUNDS);
}

/* Each task its own panels, which stay in its core's cache. */
static void cached_dot(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    static const float scales[1024];
    size_t panel = fp9_panel_bytes(FP9_FP9, b->o.hidden);
    float y[8 * CACHED_PANELS];
    struct fp9_matrix m = {.panels = b->cached + task * CACHED_PANELS * panel,
                           .panel_stride = panel,
                           .scales = scales,
                           .inputs = b->o.hidden,
                           .panel_count = CACHED_PANELS};
    struct fp9_rows rows = {b->xs, b->o.hidden, NULL, 1};
    for (int pass = 0; pass < CACHED_PASSES; pass++)
        b->kernels->dot(&m, 0, CACHED_PANELS, &rows, y, sizeof y / 4);
    sink += (uint64_t)(y[0] == 0.0f);
}

static void cached_plain(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    size_t rows = 8 * CACHED_PANELS, bodies = rows * b->o.hidden;
    const uint8_t *at = b->cached_plain + task * bodies * 9 / 8;
    for (int pass = 0; pass < CACHED_PASSES; pass++)
        sink += limits_plain_f16c(at, at + bodies, rows, b->o.hidden, b->x) == 0.0f;
}

static void cached_e4m3(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    float y[8 * E4M3_PANELS];
    for (int pass = 0; pass < CACHED_PASSES; pass++)
        e4m3_dot(b->e4m3 + task * e4m3_chunk_bytes(b), b->o.hidden, b->scales_e4m3, b->x_e4m3, y);
    sink += (uint64_t)(y[0] == 0.0f);
}

static void e4m3_chunk(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    float y[8 * E4M3_PANELS];
    e4m3_dot(b->e4m3 + b->e4m3_offset + task * e4m3_chunk_bytes(b), b->o.hidden, b->scales_e4m3, b->x_e4m3,
             y);
    sink += (uint64_t)(y[0] == 0.0f);
}

static void plain_chunk(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    size_t rows = b->plain_chunk, bodies = rows * b->o.hidden;
    const uint8_t *at = (const uint8_t *)b->memory + b->plain_offset + task * (bodies * 9 / 8) / 64 * 64;
    sink += limits_plain_f16c(at, at + bodies, rows, b->o.hidden, b->x) == 0.0f;
}

static void step_task(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    duck_work_run(b->work, b->phase, (uint32_t)task);
}

static void draw_experts(struct bench *b)
{
    for (uint32_t t = 0; t < b->o.tokens; t++) {
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < b->o.experts && chosen < b->o.top_k; e++)
            if (below(b, b->o.experts - e) < b->o.top_k - chosen)
                b->ids[t * b->o.top_k + chosen++] = (int32_t)e;
    }
}

static void run_step(struct bench *b)
{
    struct duck_step step = {0, b->o.tokens, b->o.top_k, b->x, b->ids, b->weights};
    b->work = duck_work_begin(b->core, b->scratch, b->scratch_bytes, &step);
    for (int phase = 0; phase < DUCK_PHASES; phase++) {
        uint64_t start = now(b);
        b->phase = (enum duck_phase)phase;
        pool_run(b->pool, step_task, b, duck_work_tasks(b->work, b->phase));
        b->phase_ns[phase] = now(b) - start;
    }
    sink += duck_work_partial(b->work, 0)[0] == 0.0f;
}

static void run_row(struct bench *b, enum row row)
{
    switch (row) {
    case READ:
        pool_run(b->pool, read_piece, b, read_pieces(b));
        break;
    case FMA:
        pool_run(b->pool, fma_share, b, b->o.threads);
        break;
    case FMA512:
        if (limits_has_avx512()) pool_run(b->pool, fma512_share, b, b->o.threads);
        break;
    case L2_OURS:
        pool_run(b->pool, cached_dot, b, b->o.threads);
        break;
    case L2_PLAIN:
        pool_run(b->pool, cached_plain, b, b->o.threads);
        break;
    case L2_E4M3:
        pool_run(b->pool, cached_e4m3, b, b->o.threads);
        break;
    case E4M3:
        pool_run(b->pool, e4m3_chunk, b, e4m3_chunks(b));
        break;
    case STEP:
        run_step(b);
        break;
    case PLAIN:
        pool_run(b->pool, plain_chunk, b, b->plain_rows / b->plain_chunk);
        break;
    case HIDDEN: // measured with the step
    case DOWN:
    case ROWS:
        break;
    }
}

static void repeat(struct bench *b, uint32_t index)
{
    draw_experts(b);
    size_t plain_bytes = b->plain_rows * b->o.hidden * 9 / 8;
    b->plain_offset = b->memory_bytes > plain_bytes
                          ? (size_t)below(b, (uint32_t)((b->memory_bytes - plain_bytes) / 64 + 1)) * 64
                          : 0;
    size_t e4m3_step = e4m3_chunks(b) * e4m3_chunk_bytes(b);
    b->e4m3_offset =
        below(b, (uint32_t)((b->e4m3_bytes - e4m3_step) / e4m3_chunk_bytes(b)) + 1) * e4m3_chunk_bytes(b);
    for (int row = 0; row < ROWS; row++) {
        if (row == L2_OURS || row == L2_PLAIN || row == L2_E4M3) run_row(b, (enum row)row); // fills the cache
        uint64_t start = now(b);
        run_row(b, (enum row)row);
        b->seconds[row][index] = (double)(now(b) - start) * 1e-9;
    }
    b->seconds[HIDDEN][index] = (double)b->phase_ns[DUCK_HIDDEN] * 1e-9;
    b->seconds[DOWN][index] = (double)b->phase_ns[DUCK_DOWN_ROWS] * 1e-9;
    uint64_t experts, bytes;
    duck_work_reads(b->work, &experts, &bytes);
    b->step_bytes = bytes;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* The same random matrix for every expert: what is read does not matter, that it is read does. */
static void load_experts(struct bench *b)
{
    size_t n = (size_t)b->o.width * b->o.hidden;
    size_t blocks = (size_t)((b->o.width + 127) / 128) * ((b->o.hidden + 127) / 128);
    uint8_t *data = aligned(n);
    float *scales = aligned(blocks * sizeof *scales);
    for (size_t i = 0; i < n; i++) data[i] = (uint8_t)(below(b, 2) * 128 + (b->o.rare ? 1 : below(b, 0x7f)));
    for (size_t i = 0; i < blocks; i++) scales[i] = 0x1p-12f;
    for (uint32_t e = 0; e < b->o.experts; e++)
        for (int m = 0; m < 3; m++) {
            uint64_t where;
            duck_core_load_e4m3(b->core, 0, e, (enum duck_matrix)m, data, (const uint8_t *)scales, 0,
                                b->o.width, &where);
        }
    free(data);
    free(scales);
}

/* Valid codes only: others would be subnormal operands, which the format forbids because they are slow. */
static void fill_cached(struct bench *b)
{
    size_t panel = fp9_panel_bytes(FP9_FP9, b->o.hidden), panels = (size_t)CACHED_PANELS * b->o.threads;
    b->cached = aligned(panels * panel + 4096); // the kernels prefetch a little beyond
    b->cached_plain = aligned(panels * 9 * b->o.hidden);
    for (size_t p = 0; p < panels; p++)
        for (size_t strip = 0; strip < b->o.hidden / 32; strip++) {
            uint16_t code[256];
            for (size_t i = 0; i < 256; i++)
                code[i] = (uint16_t)(below(b, 2) << 8 | (b->o.rare ? 8 : 8 + below(b, 240)));
            fp9_strip_put(fp9_panel_strip(FP9_FP9, b->cached + p * panel, strip), b->o.hidden, strip, code);
        }
    for (size_t i = 0; i < panels * 9 * b->o.hidden; i++) b->cached_plain[i] = (uint8_t)(8 + below(b, 240));
}

static void load_e4m3(struct bench *b)
{
    const size_t blocks = (b->o.hidden + 127) / 128 * E4M3_PANELS;
    const size_t bank = (size_t)b->o.experts * 3 * b->o.width;
    const size_t cached_rows = (size_t)b->o.threads * 8 * E4M3_PANELS;
    b->e4m3_bytes = (bank > cached_rows ? bank : cached_rows) * b->o.hidden;
    b->e4m3 = aligned(b->e4m3_bytes + 2 * e4m3_chunk_bytes(b)); // the kernel prefetches beyond
    b->x_e4m3 = aligned(b->o.hidden * sizeof *b->x_e4m3);
    b->scales_e4m3 = aligned(blocks * sizeof *b->scales_e4m3);
    for (size_t i = 0; i < b->o.hidden; i++) b->x_e4m3[i] = b->xs[i] * 256;
    for (size_t i = 0; i < blocks; i++) b->scales_e4m3[i] = 0x1p4f;
    e4m3_fill(b->e4m3, b->e4m3_bytes);
}

static int set_up(struct bench *b)
{
    struct options *o = &b->o;
    struct duck_bank_shape bank = {o->experts, 0, o->width};
    struct duck_run run = {0, 0, o->width / 8};
    struct duck_shape shape = {o->hidden, 1, &bank, 1, &run};
    struct error err = {{0}};
    if (pool_open(&b->pool, o->threads, &err)) {
        fprintf(stderr, "bench-duck: %s\n", err.text);
        return 1;
    }
    b->memory_bytes = duck_core_bytes(&shape);
    b->memory = aligned(b->memory_bytes);
    b->core = duck_core_init(b->memory, b->memory_bytes, &shape, b->kernels);
    b->scratch_bytes = duck_step_scratch_bytes(b->core, o->tokens, o->top_k);
    b->scratch = aligned(b->scratch_bytes);
    b->x = aligned((size_t)o->tokens * o->hidden * sizeof *b->x);
    b->xs = aligned(o->hidden * sizeof *b->xs);
    b->ids = aligned((size_t)o->tokens * o->top_k * sizeof *b->ids);
    b->weights = aligned((size_t)o->tokens * o->top_k * sizeof *b->weights);
    b->seed = 88172645463325252u;
    for (size_t i = 0; i < (size_t)o->tokens * o->hidden; i++)
        b->x[i] = (float)below(b, 2001) * 0.001f - 1.0f;
    for (size_t i = 0; i < (size_t)o->tokens * o->top_k; i++) b->weights[i] = 1.0f / (float)o->top_k;
    b->kernels->prepare(b->x, o->hidden, b->xs);
    b->plain_chunk = 8;
    b->plain_rows = (size_t)3 * o->top_k * o->width; // one token's experts
    load_experts(b);
    fill_cached(b);
    load_e4m3(b);
    return 0;
}

/* The same step with every kernel of this CPU. The core is opened anew over weights that stay where they are.
 */
static int check(struct bench *b)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    struct duck_bank_shape bank = {b->o.experts, 0, b->o.width};
    struct duck_run run = {0, 0, b->o.width / 8};
    struct duck_shape shape = {b->o.hidden, 1, &bank, 1, &run};
    size_t subtrees = duck_core_subtrees(b->core, 0, NULL, 0);
    size_t bytes = subtrees * b->o.tokens * b->o.hidden * sizeof(float);
    float *first = aligned(bytes);
    int differ = 0;
    draw_experts(b);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct fp9_kernels *k = fp9_select(names[i]);
        if (!k) {
            printf("%s: not on this CPU\n", names[i]);
            continue;
        }
        b->core = duck_core_init_zeroed(b->memory, b->memory_bytes, &shape, k);
        run_step(b);
        const float *y = duck_work_partial(b->work, 0);
        int same = i == 0 || memcmp(first, y, bytes) == 0;
        if (i == 0) memcpy(first, y, bytes);
        printf("%s: %s\n", names[i], i == 0 ? "the reference" : same ? "the same bits" : "OTHER BITS");
        differ |= !same;
    }
    free(first);
    return differ;
}

static void report(struct bench *b)
{
    struct options *o = &b->o;
    double time[ROWS], gb[ROWS] = {0}, gflop[ROWS] = {0};
    for (int row = 0; row < ROWS; row++) time[row] = median(b->seconds[row], o->repeats);
    double cached =
        (double)o->threads * CACHED_PASSES * CACHED_PANELS * (double)fp9_panel_bytes(FP9_FP9, o->hidden);
    double cached_e4m3 = (double)o->threads * CACHED_PASSES * (double)e4m3_chunk_bytes(b);
    double macs = 3.0 * o->top_k * o->width * o->hidden;
    size_t read_bytes = b->memory_bytes / 128 * 128;
    gb[READ] = (double)read_bytes / time[READ] * 1e-9;
    gb[L2_OURS] = cached / time[L2_OURS] * 1e-9;
    gb[L2_PLAIN] = cached / time[L2_PLAIN] * 1e-9;
    gb[STEP] = (double)b->step_bytes / time[STEP] * 1e-9;
    gb[HIDDEN] = (double)b->step_bytes * 2 / 3 / time[HIDDEN] * 1e-9;
    gb[DOWN] = (double)b->step_bytes / 3 / time[DOWN] * 1e-9;
    gb[L2_E4M3] = cached_e4m3 / time[L2_E4M3] * 1e-9;
    gb[E4M3] = (double)(e4m3_chunks(b) * e4m3_chunk_bytes(b)) / time[E4M3] * 1e-9;
    gb[PLAIN] = macs * 9 / 8 / time[PLAIN] * 1e-9;
    gflop[FMA] = (double)FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads / time[FMA] * 1e-9;
    gflop[FMA512] = 2.0 * FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads / time[FMA512] * 1e-9;
    gflop[L2_OURS] = cached * 8 / 9 * 2 / time[L2_OURS] * 1e-9;
    gflop[L2_PLAIN] = cached * 8 / 9 * 2 / time[L2_PLAIN] * 1e-9;
    gflop[STEP] = 2 * macs * o->tokens / time[STEP] * 1e-9;
    gflop[HIDDEN] = gflop[STEP] * 2 / 3 * time[STEP] / time[HIDDEN];
    gflop[DOWN] = gflop[STEP] / 3 * time[STEP] / time[DOWN];
    gflop[L2_E4M3] = 2 * gb[L2_E4M3];
    gflop[E4M3] = 2 * gb[E4M3];
    gflop[PLAIN] = 2 * macs / time[PLAIN] * 1e-9;
    if (o->csv)
        printf("hidden,width,experts,top_k,tokens,threads,kernels,row,us,gb_s,read_percent,gflop_s,fma_"
               "percent\n");
    else
        printf(
            "hidden %u, %u columns, top %u of %u experts, %u token%s, %u thread%s, %s kernels, median of %u\n"
            "%-18s %12s %10s %8s %10s %8s\n",
            o->hidden, o->width, o->top_k, o->experts, o->tokens, o->tokens > 1 ? "s" : "", o->threads,
            o->threads > 1 ? "s" : "", b->kernels->name, o->repeats, "", "time (us)", "GB/s", "of read",
            "GFLOP/s", "of FMA");
    for (int row = 0; row < ROWS; row++) {
        if (row == FMA512 && !limits_has_avx512()) continue;
        double read = 100 * gb[row] / gb[READ], fma = 100 * gflop[row] / gflop[FMA];
        if (o->csv)
            printf("%u,%u,%u,%u,%u,%u,%s,\"%s\",%.2f,%.2f,%.1f,%.2f,%.1f\n", o->hidden, o->width, o->experts,
                   o->top_k, o->tokens, o->threads, b->kernels->name, row_names[row], time[row] * 1e6,
                   gb[row], read, gflop[row], fma);
        else
            printf("%-18s %12.2f %10.2f %7.1f%% %10.2f %7.1f%%\n", row_names[row], time[row] * 1e6, gb[row],
                   read, gflop[row], fma);
    }
}

static void usage(FILE *f)
{
    fprintf(
        f,
        "usage: bench-duck [options]\n"
        "Times the routed experts of one layer on this machine, beside its limits measured in the same run.\n"
        "  --hidden N     width of the activation, a multiple of 32 (7168)\n"
        "  --width N      intermediate columns held here, a multiple of 8 (64)\n"
        "  --experts N    experts in memory (256)\n"
        "  --top-k N      experts of a token (8)\n"
        "  --tokens N     tokens in a step (1)\n"
        "  --threads N    threads (1)\n"
        "  --repeat N     interleaved repetitions, 1..101 (21)\n"
        "  --kernels K    scalar, avx2 or avx512 (the best)\n"
        "  --rare         weights of the smallest magnitude only\n"
        "  --check        compute one step with every kernel and compare bits instead\n"
        "  --cpu-time     count CPU time, one thread only: for machines that are busy with other things\n"
        "  --csv          comma-separated values\n");
}

static int parse(int argc, char **argv, struct options *o, const char **kernels)
{
    static const struct option longs[] = {
        {"hidden", 1, NULL, 'h'},   {"width", 1, NULL, 'w'},
        {"experts", 1, NULL, 'e'},  {"top-k", 1, NULL, 'k'},
        {"tokens", 1, NULL, 't'},   {"threads", 1, NULL, 'p'},
        {"repeat", 1, NULL, 'r'},   {"kernels", 1, NULL, 'i'},
        {"cpu-time", 0, NULL, 'u'}, {"check", 0, NULL, 'x'},
        {"rare", 0, NULL, 'y'},     {"csv", 0, NULL, 'c'},
        {"help", 0, NULL, '?'},     {0},
    };
    *o = (struct options){7168, 64, 256, 8, 1, 1, 21, 0, 0, 0, 0};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        uint32_t n = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        switch (c) {
        case 'h':
            o->hidden = n;
            break;
        case 'w':
            o->width = n;
            break;
        case 'e':
            o->experts = n;
            break;
        case 'k':
            o->top_k = n;
            break;
        case 't':
            o->tokens = n;
            break;
        case 'p':
            o->threads = n;
            break;
        case 'r':
            o->repeats = n;
            break;
        case 'i':
            *kernels = optarg;
            break;
        case 'u':
            o->cpu_time = 1;
            break;
        case 'x':
            o->check = 1;
            break;
        case 'y':
            o->rare = 1;
            break;
        case 'c':
            o->csv = 1;
            break;
        default:
            return -1;
        }
    }
    if (optind == argc && o->hidden && o->hidden % 32 == 0 && o->hidden <= 1u << 17 && o->width &&
        o->width % 8 == 0 && o->top_k && o->top_k <= o->experts && o->tokens && o->tokens <= 512 &&
        o->threads && (o->threads == 1 || !o->cpu_time) && o->repeats && o->repeats <= MAX_REPEATS)
        return 0;
    return -1;
}

int main(int argc, char **argv)
{
    static struct bench b;
    const char *kernels = NULL;
    int help = argc == 2 && strcmp(argv[1], "--help") == 0;
    if (help || parse(argc, argv, &b.o, &kernels)) {
        usage(help ? stdout : stderr);
        return help ? 0 : 2;
    }
    b.kernels = fp9_select(kernels);
    if (!b.kernels) {
        const char *missing = fp9_cpu_missing();
        fprintf(stderr, "bench-duck: %s\n", missing ? missing : "no kernels of that name");
        return 1;
    }
    if (set_up(&b)) return 1;
    int rc = 0;
    if (b.o.check) {
        rc = check(&b);
    } else {
        repeat(&b, 0); // warm: pages, caches, clock
        for (uint32_t i = 0; i < b.o.repeats; i++) repeat(&b, i);
        report(&b);
    }
    pool_close(b.pool);
    free(b.memory);
    free(b.scratch);
    free(b.cached);
    free(b.cached_plain);
    free(b.e4m3);
    free(b.x_e4m3);
    free(b.scales_e4m3);
    free(b.x);
    free(b.xs);
    free(b.ids);
    free(b.weights);
    return rc;
}
