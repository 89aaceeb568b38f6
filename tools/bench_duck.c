/* bench_duck.c: one bank's feed-forward on this machine, beside what the same run measured as the limits.
 * Experts are drawn at random from a bank that should be far larger than the last-level cache. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/bench_arguments.h"
#include "tools/bench_duck.h"
#include "tools/bench_weights.h"

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
    for (size_t i = 0; i < n; i++) b->cached_plain[i] = (uint8_t)(8 + bench_below(b, 240));
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
        b->x[i] = (float)bench_below(b, 2001) * 0.001f - 1.0f;
    for (size_t i = 0; i < (size_t)o->tokens * o->top_k; i++) b->weights[i] = 1.0f / (float)o->top_k;
    b->nops_of = aligned(o->threads * sizeof *b->nops_of);
    b->nops_twice = aligned(o->threads * sizeof *b->nops_twice);
    memset(b->nops_of, 0, o->threads * sizeof *b->nops_of);
    b->kernels->prepare(b->x, o->hidden, b->xs);
    b->plain_chunk = 8;
    b->plain_rows =
        (size_t)3 * o->top_k * o->width; // one token's experts, or what there is in 9 bits a weight
    const size_t there = b->largest->bytes / (o->hidden / 8 * 9) / b->plain_chunk * b->plain_chunk;
    if (b->plain_rows > there) b->plain_rows = there;
    fill_plain(b);
    return 0;
}

/* The same step with every kernel of this CPU, in every format. Cores are opened anew over weights that stay
 * where they are. */
static int check(struct bench *b)
{
    static const char *const names[] = {"scalar", "avx2", "avx2-l2", "avx512"};
    float *first = NULL;
    int differ = 0;
    bench_draw_experts(b);
    for (size_t i = 0; i < sizeof names / sizeof names[0] * FP9_FORMATS; i++) {
        const struct fp9_kernels *k = fp9_select(names[i / FP9_FORMATS]);
        b->format = (enum fp9_format)(i % FP9_FORMATS);
        if (!b->o.has[b->format]) continue;
        const char *format = fp9_format_name(b->format);
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
        bench_step(b);
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

static void usage(void)
{
    fputs(
        "usage: bench-duck [options]\n"
        "Times the routed experts of one layer on this machine, beside its limits measured in the same run.\n"
        "Repetitions are `alone` if before and after them every core took as many nops a cycle as in the\n"
        "best probe of the run: a core whose other hardware thread is busy takes fewer, which its clock and\n"
        "its FMA peak do not show. Where not all were, the medians of those follow in a table of their own.\n"
        "`of limit`: of the least of FMA peak, plain reading x intensity, and the one-token dot in L2\n"
        "(which decodes each weight once) x tokens of an expert.\n"
        "  --hidden N     width of the activation, a multiple of 32 (7168)\n"
        "  --width N      intermediate columns held here, a multiple of 8 (64)\n"
        "  --experts N    experts in memory (256)\n"
        "  --top-k N      experts of a token (8)\n"
        "  --tokens N     tokens in a step (1)\n"
        "  --threads N    threads (1)\n"
        "  --repeat N     interleaved repetitions, 1..101 (21)\n"
        "  --kernels K    scalar, avx2, avx2-l2 (avx2 that reads ahead into L2) or avx512\n"
        "                 (the fastest on this CPU)\n"
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
    static const char *const kernel[] = {"scalar", "avx2", "avx2-l2", "avx512"},
                             *const format[FP9_FORMATS] = {[FP9_FP9] = "fp9", [FP9_E4M3] = "e4m3"};
    *o = (struct options){7168, 64, 256, 8, 1, 1, 21, 0, 0, 0, 0, {1, 1}};
    uint32_t *const number[NUMBERS] = {&o->hidden, &o->width,   &o->experts, &o->top_k,
                                       &o->tokens, &o->threads, &o->repeats};
    bool good = true;
    for (int c, at, i; good && (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
        if (c == 'n') {
            good = bench_number(longs[at].name, optarg, range[at], number[at]);
        } else if (c == 'k') {
            good = bench_choice("kernels", optarg, kernel, 4, &i);
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
        bench_repeat(&b, 0); // warm: pages, caches, clock
        for (uint32_t i = 0; i < b.o.repeats; i++) bench_repeat(&b, i);
        bench_report(&b);
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
    free(b.nops_of);
    free(b.nops_twice);
    return rc;
}
