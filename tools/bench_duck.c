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
#include "tools/bench_arguments.h"
#include "tools/bench_limits.h"
#include "tools/bench_weights.h"

enum row {
    READ,
    FMA,
    FMA512,
    L2_OURS,
    L2_E4M3,
    L2_PLAIN,
    STEP,
    HIDDEN,
    DOWN,
    STEP8,
    HIDDEN8,
    DOWN8,
    PLAIN,
    ROWS
};
enum { CACHED_PANELS = 4, FMA_ROUNDS = 2000, CACHED_PASSES = 8, MAX_REPEATS = 101 };

struct options {
    uint32_t hidden, width, experts, top_k, tokens, threads, repeats;
    int csv, cpu_time, check, rare, has[FP9_FORMATS];
};

/* The same experts in one format. */
struct bank {
    struct duck_core *core;
    void *memory;
    size_t bytes, step_bytes;
    uint8_t *cached;                // panels of each thread's in-cache runs
    uint16_t *marks;                // of these
    uint64_t phase_ns[DUCK_PHASES]; // of the last step
};

struct bench {
    struct options o;
    struct pool *pool;
    const struct fp9_kernels *kernels;
    struct bank bank[FP9_FORMATS];
    const struct bank *largest; // what plain reading reads
    struct duck_work *work;
    enum duck_phase phase;
    enum fp9_format format; // of the step or dot that is being run
    void *scratch;
    uint8_t *cached_plain; // rows of each thread's in-cache runs
    size_t scratch_bytes;
    float *x, *xs, *weights;
    int32_t *ids;
    uint64_t seed;
    size_t plain_rows, plain_chunk, plain_offset; // of the step's weights, as rows of `hidden`
    double seconds[ROWS][MAX_REPEATS];
};

static const char *const row_names[ROWS] = {
    "plain reading",     "FMA peak (AVX2)", "FMA peak (AVX-512)", "dot, in L2", "e4m3 dot, in L2",
    "plain F16C, in L2", "duck step",       "  gate and up",      "  down",     "e4m3 duck step",
    "  gate and up",     "  down",          "plain F16C GEMV"};
/* The format that a row is of; FP9_FORMATS: of none. */
static const uint8_t row_format[ROWS] = {FP9_FORMATS, FP9_FORMATS, FP9_FORMATS, FP9_FP9, FP9_E4M3,
                                         FP9_FORMATS, FP9_FP9,     FP9_FP9,     FP9_FP9, FP9_E4M3,
                                         FP9_E4M3,    FP9_E4M3,    FP9_FORMATS};
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
    return (b->largest->bytes + READ_PIECE - 1) / READ_PIECE;
}

static void read_piece(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    size_t from = task * READ_PIECE, left = (b->largest->bytes - from) / 128 * 128;
    sink += limits_read((const uint8_t *)b->largest->memory + from, left < READ_PIECE ? left : READ_PIECE);
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
    size_t panel = fp9_panel_bytes(b->format, b->o.hidden), blocks = (b->o.hidden + 127) / 128;
    float y[8 * CACHED_PANELS];
    struct fp9_matrix m = {.format = b->format,
                           .panels = b->bank[b->format].cached + task * CACHED_PANELS * panel,
                           .marks = b->bank[b->format].marks + task * CACHED_PANELS * blocks,
                           .mark_stride = blocks,
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

static void plain_chunk(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    const struct bench *b = arg;
    size_t rows = b->plain_chunk, bodies = rows * b->o.hidden;
    const uint8_t *at =
        (const uint8_t *)b->largest->memory + b->plain_offset + task * (bodies * 9 / 8) / 64 * 64;
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
    struct bank *bank = &b->bank[b->format];
    b->work = duck_work_begin(bank->core, b->scratch, b->scratch_bytes, &step);
    for (int phase = 0; phase < DUCK_PHASES; phase++) {
        uint64_t start = now(b);
        b->phase = (enum duck_phase)phase;
        pool_run(b->pool, step_task, b, duck_work_tasks(b->work, b->phase));
        bank->phase_ns[phase] = now(b) - start;
    }
    uint64_t experts, bytes;
    duck_work_reads(b->work, &experts, &bytes);
    bank->step_bytes = bytes;
    sink += duck_work_partial(b->work, 0)[0] == 0.0f;
}

static void run_row(struct bench *b, enum row row)
{
    if (row_format[row] < FP9_FORMATS) b->format = (enum fp9_format)row_format[row];
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
    case L2_E4M3:
        pool_run(b->pool, cached_dot, b, b->o.threads);
        break;
    case L2_PLAIN:
        pool_run(b->pool, cached_plain, b, b->o.threads);
        break;
    case STEP:
    case STEP8:
        run_step(b);
        break;
    case PLAIN:
        pool_run(b->pool, plain_chunk, b, b->plain_rows / b->plain_chunk);
        break;
    case HIDDEN: // measured with the step
    case DOWN:
    case HIDDEN8:
    case DOWN8:
    case ROWS:
        break;
    }
}

/* Whether a row is there: its format was asked for, this CPU has what it needs. */
static int has_row(const struct bench *b, enum row row)
{
    if (row == FMA512 && !limits_has_avx512()) return 0;
    return row_format[row] == FP9_FORMATS || b->o.has[row_format[row]];
}

static void repeat(struct bench *b, uint32_t index)
{
    draw_experts(b);
    size_t plain_bytes = b->plain_rows * b->o.hidden * 9 / 8, memory = b->largest->bytes;
    b->plain_offset =
        memory > plain_bytes ? (size_t)below(b, (uint32_t)((memory - plain_bytes) / 64 + 1)) * 64 : 0;
    for (int row = 0; row < ROWS; row++) {
        if (!has_row(b, (enum row)row)) continue;
        if (row == L2_OURS || row == L2_PLAIN || row == L2_E4M3) run_row(b, (enum row)row); // fills the cache
        uint64_t start = now(b);
        run_row(b, (enum row)row);
        b->seconds[row][index] = (double)(now(b) - start) * 1e-9;
    }
    for (int f = 0; f < FP9_FORMATS; f++) {
        b->seconds[f == FP9_E4M3 ? HIDDEN8 : HIDDEN][index] = (double)b->bank[f].phase_ns[DUCK_HIDDEN] * 1e-9;
        b->seconds[f == FP9_E4M3 ? DOWN8 : DOWN][index] = (double)b->bank[f].phase_ns[DUCK_DOWN_ROWS] * 1e-9;
    }
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
static void load_experts(struct bench *b, struct duck_core *core)
{
    size_t n = (size_t)b->o.width * b->o.hidden;
    size_t blocks = (size_t)((b->o.width + 127) / 128) * ((b->o.hidden + 127) / 128);
    uint8_t *data = aligned(n);
    float *scales = aligned(blocks * sizeof *scales);
    bench_weights(data, n, b->o.rare);
    for (size_t i = 0; i < blocks; i++) scales[i] = 0x1p-12f;
    for (uint32_t e = 0; e < b->o.experts; e++)
        for (int m = 0; m < 3; m++) {
            uint64_t where;
            const struct duck_tensor t = {data,       (const uint8_t *)scales, 1, b->o.hidden,
                                          b->o.width, (enum duck_matrix)m};
            duck_core_load(core, 0, e, 0, &t, &where);
        }
    free(data);
    free(scales);
}

static void fill_cached(struct bench *b, enum fp9_format f)
{
    struct bank *bank = &b->bank[f];
    size_t panel = fp9_panel_bytes(f, b->o.hidden), panels = (size_t)CACHED_PANELS * b->o.threads;
    size_t blocks = (b->o.hidden + 127) / 128;
    uint8_t *rows = aligned(panels * 8 * b->o.hidden);
    struct fp9_e4m3_table table;
    fp9_e4m3_table_make(&table);
    bench_weights(rows, panels * 8 * b->o.hidden, b->o.rare);
    bank->cached = aligned(panels * panel + 4096); // the kernels prefetch a little beyond
    bank->marks = aligned(panels * blocks * sizeof *bank->marks);
    memset(bank->marks, 0, panels * blocks * sizeof *bank->marks);
    for (size_t p = 0; p < panels; p++)
        for (size_t strip = 0; strip < b->o.hidden / 32; strip++)
            bank->marks[p * blocks + strip / 4] |=
                (uint16_t)(fp9_strip_put_e4m3(f, fp9_panel_strip(f, bank->cached + p * panel, strip),
                                              b->o.hidden, strip, &table, rows + 8 * p * b->o.hidden,
                                              b->o.hidden)
                           << strip % 4 * 4);
    free(rows);
}

/* Valid codes only: others would be subnormal operands, which are slow. */
static void fill_plain(struct bench *b)
{
    size_t n = (size_t)CACHED_PANELS * b->o.threads * 9 * b->o.hidden;
    b->cached_plain = aligned(n);
    for (size_t i = 0; i < n; i++) b->cached_plain[i] = (uint8_t)(8 + below(b, 240));
}

static struct duck_shape shape_of(const struct bench *b, enum fp9_format f, struct duck_bank_shape *bank,
                                  struct duck_run *run)
{
    *bank = (struct duck_bank_shape){b->o.experts, 0, b->o.width};
    *run = (struct duck_run){0, 0, b->o.width / 8};
    return (struct duck_shape){b->o.hidden, 1, bank, 1, run, f};
}

static void set_up_bank(struct bench *b, enum fp9_format f)
{
    struct duck_bank_shape shape;
    struct duck_run run;
    struct duck_shape s = shape_of(b, f, &shape, &run);
    struct bank *bank = &b->bank[f];
    bank->bytes = duck_core_bytes(&s);
    bank->memory = aligned(bank->bytes);
    bank->core = duck_core_init(bank->memory, bank->bytes, &s, b->kernels);
    load_experts(b, bank->core);
    fill_cached(b, f);
    if (!b->largest || bank->bytes > b->largest->bytes) b->largest = bank;
    b->scratch_bytes = duck_step_scratch_bytes(bank->core, b->o.tokens, b->o.top_k);
}

static int set_up(struct bench *b)
{
    struct options *o = &b->o;
    struct error err = {{0}};
    if (pool_open(&b->pool, o->threads, &err)) {
        fprintf(stderr, "bench-duck: %s\n", err.text);
        return 1;
    }
    for (int f = 0; f < FP9_FORMATS; f++)
        if (o->has[f]) set_up_bank(b, (enum fp9_format)f);
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
    fill_plain(b);
    return 0;
}

/* The same step with every kernel of this CPU, in every format. Cores are opened anew over weights that stay
 * where they are. */
static int check(struct bench *b)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    float *first = NULL;
    int differ = 0;
    draw_experts(b);
    for (size_t i = 0; i < sizeof names / sizeof names[0] * FP9_FORMATS; i++) {
        const struct fp9_kernels *k = fp9_select(names[i / FP9_FORMATS]);
        b->format = (enum fp9_format)(i % FP9_FORMATS);
        if (!b->o.has[b->format]) continue;
        const char *format = b->format == FP9_E4M3 ? "e4m3" : "fp9";
        if (!k) {
            printf("%s, %s: not on this CPU\n", names[i / FP9_FORMATS], format);
            continue;
        }
        struct bank *bank = &b->bank[b->format];
        struct duck_bank_shape shape;
        struct duck_run run;
        struct duck_shape s = shape_of(b, b->format, &shape, &run);
        bank->core = duck_core_init_zeroed(bank->memory, bank->bytes, &s, k);
        size_t bytes = duck_core_subtrees(bank->core, 0, NULL, 0) * b->o.tokens * b->o.hidden * sizeof(float);
        run_step(b);
        const float *y = duck_work_partial(b->work, 0);
        int same = first && memcmp(first, y, bytes) == 0;
        printf("%s, %s: %s\n", k->name, format,
               !first ? "the reference"
               : same ? "the same bits"
                      : "OTHER BITS");
        differ |= first && !same;
        if (!first) memcpy(first = aligned(bytes), y, bytes);
    }
    free(first);
    return differ;
}

static void report(struct bench *b)
{
    struct options *o = &b->o;
    double time[ROWS], gb[ROWS] = {0}, gflop[ROWS] = {0};
    for (int row = 0; row < ROWS; row++) time[row] = median(b->seconds[row], o->repeats);
    double dots = (double)o->threads * CACHED_PASSES * CACHED_PANELS;
    double macs = 3.0 * o->top_k * o->width * o->hidden;
    size_t read_bytes = b->largest->bytes / 128 * 128;
    gb[READ] = (double)read_bytes / time[READ] * 1e-9;
    gb[L2_PLAIN] = dots * (double)fp9_panel_bytes(FP9_FP9, o->hidden) / time[L2_PLAIN] * 1e-9;
    gb[PLAIN] = macs * 9 / 8 / time[PLAIN] * 1e-9;
    for (int row = L2_OURS; row < PLAIN; row++) {
        if (row == L2_PLAIN || !o->has[row_format[row]]) continue;
        double part = row == HIDDEN || row == HIDDEN8 ? 2.0 / 3 : row == DOWN || row == DOWN8 ? 1.0 / 3 : 1;
        double bytes = row < STEP
                           ? dots * (double)fp9_panel_bytes((enum fp9_format)row_format[row], o->hidden)
                           : part * (double)b->bank[row_format[row]].step_bytes;
        double flop = row < STEP ? dots * 8 * o->hidden * 2 : part * 2 * macs * o->tokens;
        gb[row] = bytes / time[row] * 1e-9;
        gflop[row] = flop / time[row] * 1e-9;
    }
    gflop[FMA] = (double)FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads / time[FMA] * 1e-9;
    gflop[FMA512] = 2.0 * FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads / time[FMA512] * 1e-9;
    gflop[L2_PLAIN] = dots * 8 * o->hidden * 2 / time[L2_PLAIN] * 1e-9;
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
        if (!has_row(b, (enum row)row)) continue;
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

static void usage(void)
{
    fputs(
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
        "  --format F     fp9 or e4m3 (both, side by side)\n"
        "  --rare         weights of the smallest magnitude only, subnormals of e4m3\n"
        "  --check        compute one step with every kernel and format and compare bits instead\n"
        "  --cpu-time     count CPU time, one thread only: for machines that are busy with other things\n"
        "  --csv          comma-separated values\n",
        stdout);
}

/* What is measured in numbers, in the order of `longs`. */
enum { NUMBERS = 7 };

static bool parse(int argc, char **argv, struct options *o, const char **kernels)
{
    static const struct option longs[] = {
        {"hidden", 1, NULL, 'n'},   {"width", 1, NULL, 'n'},
        {"experts", 1, NULL, 'n'},  {"top-k", 1, NULL, 'n'},
        {"tokens", 1, NULL, 'n'},   {"threads", 1, NULL, 'n'},
        {"repeat", 1, NULL, 'n'},   {"kernels", 1, NULL, 'k'},
        {"cpu-time", 0, NULL, 'u'}, {"check", 0, NULL, 'x'},
        {"rare", 0, NULL, 'y'},     {"csv", 0, NULL, 'c'},
        {"format", 1, NULL, 'f'},   {0},
    };
    static const struct bench_range range[NUMBERS] = {
        {32, 1u << 17, 32}, {8, 1u << 17, 8}, {1, 1u << 16, 1},    {1, 1u << 16, 1},
        {1, 512, 1},        {1, 1024, 1},     {1, MAX_REPEATS, 1},
    };
    static const char *const kernel[] = {"scalar", "avx2", "avx512"},
                             *const format[FP9_FORMATS] = {[FP9_FP9] = "fp9", [FP9_E4M3] = "e4m3"};
    *o = (struct options){7168, 64, 256, 8, 1, 1, 21, 0, 0, 0, 0, {1, 1}};
    uint32_t *const number[NUMBERS] = {&o->hidden, &o->width,   &o->experts, &o->top_k,
                                       &o->tokens, &o->threads, &o->repeats};
    bool good = true;
    for (int c, at, i; good && (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
        if (c == 'n') {
            good = bench_number(longs[at].name, optarg, range[at], number[at]);
        } else if (c == 'k') {
            good = bench_choice("kernels", optarg, kernel, 3, &i);
            *kernels = optarg;
        } else if (c == 'f') {
            good = bench_choice("format", optarg, format, FP9_FORMATS, &i);
            for (int f = 0; good && f < FP9_FORMATS; f++) o->has[f] = f == i;
        } else if (c == '?') {
            return false; // getopt has said it
        }
        o->cpu_time |= c == 'u';
        o->check |= c == 'x';
        o->rare |= c == 'y';
        o->csv |= c == 'c';
    }
    if (!good) return false;
    if (optind < argc) return bench_wrong("there is no use for '%s'", argv[optind]);
    if (o->top_k > o->experts)
        return bench_wrong("--top-k is %u, --experts %u: a token cannot choose more", o->top_k, o->experts);
    if (o->cpu_time && o->threads > 1)
        return bench_wrong("--cpu-time is for one thread, --threads is %u", o->threads);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    const char *kernels = NULL;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        usage();
        return 0;
    }
    if (!parse(argc, argv, &b.o, &kernels)) return 2;
    b.kernels = fp9_select(kernels);
    if (!b.kernels) {
        const char *missing = fp9_cpu_missing();
        fprintf(stderr, "bench-duck: this CPU has no %s\n", missing ? missing : kernels);
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
    for (int f = 0; f < FP9_FORMATS; f++) {
        free(b.bank[f].memory);
        free(b.bank[f].cached);
        free(b.bank[f].marks);
    }
    free(b.scratch);
    free(b.cached_plain);
    free(b.x);
    free(b.xs);
    free(b.ids);
    free(b.weights);
    return rc;
}
