/* bench_report.c: medians of bench-duck's rows as a table or as CSV. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_duck.h"
#include "tools/bench_limits.h"

static const char *const row_names[ROWS] = {
    "plain reading",     "FMA peak (AVX2)", "FMA peak (AVX-512)", "dot, in L2", "e4m3 dot, in L2",
    "plain F16C, in L2", "duck step",       "  gate and up",      "  down",     "e4m3 duck step",
    "  gate and up",     "  down",          "plain F16C GEMV"};

/* Medians over some of the repetitions. */
struct medians {
    const char *of;
    uint32_t count[ROWS]; // repetitions; 0: the others say nothing
    double seconds[ROWS], gb[ROWS], gflop[ROWS], limit[ROWS];
    const char *limited_by[ROWS];
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* Of the repetitions with at least that many nops a cycle. */
static void take_medians(const struct bench *b, double nops, struct medians *m)
{
    for (int row = 0; row < ROWS; row++) {
        double chosen[MAX_REPEATS];
        for (uint32_t i = 0; i < b->o.repeats; i++)
            if (b->nops[row][i] >= nops) chosen[m->count[row]++] = b->seconds[row][i];
        m->seconds[row] = median(chosen, m->count[row]);
    }
}

static double per_ns(double amount, const struct medians *m, int row)
{
    return m->count[row] ? amount / m->seconds[row] * 1e-9 : 0;
}

static void take_rates(const struct bench *b, struct medians *m)
{
    const struct options *o = &b->o;
    double dots = (double)o->threads * CACHED_PASSES * CACHED_PANELS;
    double macs = 3.0 * o->top_k * o->width * o->hidden;
    double plain = (double)b->plain_rows * o->hidden;
    size_t read_bytes = b->largest->bytes / 128 * 128;
    m->gb[READ] = per_ns((double)read_bytes, m, READ);
    m->gb[L2_PLAIN] = per_ns(dots * (double)fp9_panel_bytes(FP9_FP9, o->hidden), m, L2_PLAIN);
    m->gb[PLAIN] = per_ns(plain * 9 / 8, m, PLAIN);
    for (int row = L2_OURS; row < PLAIN; row++) {
        if (row == L2_PLAIN || !o->has[bench_row_format[row]]) continue;
        double part = row == HIDDEN || row == HIDDEN8 ? 2.0 / 3 : row == DOWN || row == DOWN8 ? 1.0 / 3 : 1;
        enum fp9_format f = (enum fp9_format)bench_row_format[row];
        double bytes =
            row < STEP ? dots * (double)fp9_panel_bytes(f, o->hidden) : part * (double)b->bank[f].step_bytes;
        double flop = row < STEP ? dots * 8 * o->hidden * 2 : part * 2 * macs * o->tokens;
        m->gb[row] = per_ns(bytes, m, row);
        m->gflop[row] = per_ns(flop, m, row);
    }
    m->gflop[FMA] = per_ns((double)FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads, m, FMA);
    m->gflop[FMA512] = per_ns(2.0 * FMA_ROUNDS * LIMITS_FMA_FLOPS * o->threads, m, FMA512);
    m->gflop[L2_PLAIN] = per_ns(dots * 8 * o->hidden * 2, m, L2_PLAIN);
    m->gflop[PLAIN] = per_ns(2 * plain, m, PLAIN);
}

/* The least that a step can be held to, in GFLOP/s. */
static void take_limit(const struct bench *b, struct medians *m, int step)
{
    const int fp9 = step == STEP, dot = fp9 ? L2_OURS : L2_E4M3;
    const int peak = bench_has_row(b, FMA512) && strcmp(b->kernels->name, "avx512") == 0 ? FMA512 : FMA;
    const double flop = 6.0 * b->o.top_k * b->o.width * b->o.hidden * b->o.tokens;
    const double bytes = (double)b->bank[bench_row_format[step]].step_bytes;
    const double weights = bytes * (fp9 ? 8.0 / 9 : 1), pairs = 0.5 * flop / weights;
    const struct {
        double gflop;
        const char *name;
    } at[] = {{m->gflop[peak], "FMA peak"},
              {m->gb[READ] * flop / bytes, "plain reading x intensity"},
              {m->gflop[dot] * pairs, "dot in L2 x tokens of an expert"}};
    int least = 0;
    for (int i = 1; i < 3; i++)
        if (at[i].gflop < at[least].gflop) least = i;
    for (int row = step; row < step + 3; row++) {
        m->limit[row] = m->count[READ] && m->count[peak] && m->count[dot] ? at[least].gflop : 0;
        m->limited_by[row] = at[least].name;
    }
}

static void print_share(double part, double whole, const char *format)
{
    if (part > 0 && whole > 0)
        printf(format, 100 * part / whole);
    else
        printf("%9s", "-");
}

static void print_table(const struct bench *b, const struct medians *m)
{
    printf("\n%-18s %6s %12s %10s %8s %10s %8s %9s\n", m->of, "of", "time (us)", "GB/s", "of read", "GFLOP/s",
           "of FMA", "of limit");
    for (int row = 0; row < ROWS; row++) {
        if (!bench_has_row(b, (enum row)row)) continue;
        printf("%-18s %6u", row_names[row], m->count[row]); // 0: its figures are not known
        if (m->count[row]) {
            printf(" %12.2f %10.2f", m->seconds[row] * 1e6, m->gb[row]);
            print_share(m->gb[row], m->gb[READ], " %7.1f%%");
            printf(" %10.2f", m->gflop[row]);
            print_share(m->gflop[row], m->gflop[FMA], " %7.1f%%");
            print_share(m->gflop[row], m->limit[row], "  %7.1f%%");
        }
        printf("\n");
    }
    for (int step = STEP; step <= STEP8; step += STEP8 - STEP)
        if (bench_has_row(b, (enum row)step) && m->limit[step] > 0)
            printf("limit of the %s: %.2f GFLOP/s (%s)\n", row_names[step], m->limit[step],
                   m->limited_by[step]);
}

static void print_csv(const struct bench *b, const struct medians *m)
{
    const struct options *o = &b->o;
    for (int row = 0; row < ROWS; row++) {
        if (!bench_has_row(b, (enum row)row)) continue;
        printf("%u,%u,%u,%u,%u,%u,%s,\"%s\",%s,%u", o->hidden, o->width, o->experts, o->top_k, o->tokens,
               o->threads, b->kernels->name, row_names[row], m->of, m->count[row]);
        double share[] = {m->seconds[row] * 1e6,
                          m->gb[row],
                          100 * m->gb[row] / m->gb[READ],
                          m->gflop[row],
                          100 * m->gflop[row] / m->gflop[FMA],
                          100 * m->gflop[row] / m->limit[row]};
        const int there[] = {1, 1, m->count[READ] > 0, 1, m->count[FMA] > 0, m->limit[row] > 0};
        for (int i = 0; i < 6; i++) {
            if (m->count[row] && there[i])
                printf(",%.2f", share[i]);
            else
                printf(",");
        }
        printf("\n");
    }
}

/* Of all probes beside the steps: one of a row that is not there is 0. */
static double usual_nops(const struct bench *b)
{
    double all[ROWS * MAX_REPEATS];
    uint32_t n = 0;
    for (int row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < b->o.repeats && bench_has_row(b, (enum row)row); i++)
            all[n++] = b->nops[row][i];
    return median(all, n);
}

static void print_head(const struct bench *b)
{
    const struct options *o = &b->o;
    printf("hidden %u, %u columns, top %u of %u experts, %u token%s, %u thread%s, %s kernels, medians\n",
           o->hidden, o->width, o->top_k, o->experts, o->tokens, o->tokens > 1 ? "s" : "", o->threads,
           o->threads > 1 ? "s" : "", b->kernels->name);
    printf("nops a cycle: %.2f at best, usually %.2f", b->nops_best, usual_nops(b));
    printf("; \"alone\": at least %.2f before and after\n", ALONE * b->nops_best);
}

/* Whether some repetition of a row was not. */
static int is_disturbed(const struct bench *b, const struct medians *alone)
{
    for (int row = 0; row < ROWS; row++)
        if (bench_has_row(b, (enum row)row) && alone->count[row] < b->o.repeats) return 1;
    return 0;
}

void bench_report(const struct bench *b)
{
    static struct medians all = {.of = "all"}, alone = {.of = "alone"};
    take_medians(b, 0, &all);
    take_medians(b, ALONE * b->nops_best, &alone);
    take_rates(b, &all);
    take_rates(b, &alone);
    for (int f = 0; f < FP9_FORMATS; f++) {
        if (!b->o.has[f]) continue;
        take_limit(b, &all, f == FP9_FP9 ? STEP : STEP8);
        take_limit(b, &alone, f == FP9_FP9 ? STEP : STEP8);
    }
    if (b->o.csv) {
        printf("hidden,width,experts,top_k,tokens,threads,kernels,row,repetitions,count,us,gb_s,read_percent,"
               "gflop_s,fma_percent,limit_percent\n");
        print_csv(b, &all);
        print_csv(b, &alone);
        return;
    }
    print_head(b);
    print_table(b, &all);
    if (is_disturbed(b, &alone))
        print_table(b, &alone);
    else
        printf("\nAll of them alone, or all beside the same neighbour: the probes were alike.\n");
}
