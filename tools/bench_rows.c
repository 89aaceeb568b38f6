/* bench_rows.c: the rows of bench-duck, run and timed. */
#include "host/util/clock.h"
#include "tools/bench_duck.h"
#include "tools/bench_limits.h"

const uint8_t bench_row_format[ROWS] = {FP9_FORMATS, FP9_FORMATS, FP9_FORMATS, FP9_FP9, FP9_E4M3,
                                        FP9_FORMATS, FP9_FP9,     FP9_FP9,     FP9_FP9, FP9_E4M3,
                                        FP9_E4M3,    FP9_E4M3,    FP9_FORMATS};
static volatile uint64_t sink;
enum { PROBE_WAIT_NS = 1000000 };

uint32_t bench_below(struct bench *b, uint32_t n) // xorshift64
{
    b->seed ^= b->seed << 13;
    b->seed ^= b->seed >> 7;
    b->seed ^= b->seed << 17;
    return (uint32_t)((b->seed >> 32) * n >> 32);
}

static uint64_t now(const struct bench *b)
{
    return b->o.cpu_time ? clock_cpu_ns() : clock_ns();
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

/* All threads at once, as in the rows: whoever has one share waits until the others have theirs. */
static void probe_share(void *arg, size_t task, unsigned worker)
{
    (void)worker;
    struct bench *b = arg;
    const uint64_t deadline = clock_ns() + PROBE_WAIT_NS;
    atomic_fetch_add(&b->arrived, 1);
    while (atomic_load(&b->arrived) < b->o.threads && clock_ns() < deadline) {
    }
    const double before = b->nops_of[task], now = limits_nops();
    b->nops_of[task] = now;
    b->nops_twice[task] = now < before ? now : before;
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

void bench_draw_experts(struct bench *b)
{
    for (uint32_t t = 0; t < b->o.tokens; t++) {
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < b->o.experts && chosen < b->o.top_k; e++)
            if (bench_below(b, b->o.experts - e) < b->o.top_k - chosen)
                b->ids[t * b->o.top_k + chosen++] = (int32_t)e;
    }
}

void bench_step(struct bench *b)
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
    if (bench_row_format[row] < FP9_FORMATS) b->format = (enum fp9_format)bench_row_format[row];
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
        bench_step(b);
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
int bench_has_row(const struct bench *b, enum row row)
{
    if (row == FMA512 && !limits_has_avx512()) return 0;
    return bench_row_format[row] == FP9_FORMATS || b->o.has[bench_row_format[row]];
}

/* Fewest nops a cycle of all threads. */
static double probe(struct bench *b)
{
    atomic_store(&b->arrived, 0);
    pool_run(b->pool, probe_share, b, b->o.threads);
    double least = b->nops_of[0];
    for (uint32_t i = 0; i < b->o.threads; i++) {
        if (b->nops_of[i] < least) least = b->nops_of[i];
        if (b->nops_twice[i] > b->nops_best) b->nops_best = b->nops_twice[i];
    }
    return least;
}

static void time_row(struct bench *b, enum row row, uint32_t index)
{
    if (row == L2_OURS || row == L2_PLAIN || row == L2_E4M3) run_row(b, row); // fills the cache
    double before = probe(b);
    uint64_t start = now(b);
    run_row(b, row);
    b->seconds[row][index] = (double)(now(b) - start) * 1e-9;
    double after = probe(b);
    b->nops[row][index] = before < after ? before : after;
    if (row != STEP && row != STEP8) return;
    const uint64_t *ns = b->bank[b->format].phase_ns; // its phases are measured with it
    b->seconds[row + 1][index] = (double)ns[DUCK_HIDDEN] * 1e-9;
    b->seconds[row + 2][index] = (double)ns[DUCK_DOWN_ROWS] * 1e-9;
    b->nops[row + 1][index] = b->nops[row + 2][index] = b->nops[row][index];
}

static int of_a_step(enum row row)
{
    return row == HIDDEN || row == DOWN || row == HIDDEN8 || row == DOWN8;
}

void bench_repeat(struct bench *b, uint32_t index)
{
    bench_draw_experts(b);
    size_t plain_bytes = b->plain_rows * b->o.hidden * 9 / 8, memory = b->largest->bytes;
    b->plain_offset =
        memory > plain_bytes ? (size_t)bench_below(b, (uint32_t)((memory - plain_bytes) / 64 + 1)) * 64 : 0;
    for (int row = 0; row < ROWS; row++)
        if (bench_has_row(b, (enum row)row) && !of_a_step((enum row)row)) time_row(b, (enum row)row, index);
}
