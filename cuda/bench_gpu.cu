/* bench_gpu.cu: the CUDA backend at full size on synthetic weights: time and bytes of every stage beside the
 * copy bandwidth of the same run, whole steps, prefill, the loop with the host.
 *
 * In the stages every answer is there; in the loop the host answers with zeros, at once or after a fixed time
 * (for tuning, no tokens per second of anything), or local ducks do, whose layers share one set of weights.
 */
#include "cuda/bench.cuh"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "tools/bench_arguments.h"
}

#define PROMPT 2048u

#define CONTEXTS 16u

struct arguments {
    const char *config;
    uint32_t contexts, context[CONTEXTS];
    uint32_t chunk, sparse, delay_us, layers, experts;
    bool only_stages, only_ducks, help;
};

static const char usage[] =
    "usage: bench-gpu [options]\n"
    "Times the CUDA backend at full size on made weights, beside the copy bandwidth of the same run.\n"
    "  --config F              the model's shape (configs/deepseek-v3.2.json)\n"
    "  --context N,N...        positions of the stages (2048,32768,131072)\n"
    "  --chunk ROWS            of a prompt's jobs (2048)\n"
    "  --sparse POSITION       of a chunk beyond index_topk, 0 for none (30720)\n"
    "  --delay US              a loop whose host answers after so long\n"
    "  --ducks LAYERS EXPERTS  a loop whose host is local ducks that hold these\n"
    "  --only-stages           nothing but the stages of a step\n"
    "  --only-ducks            nothing but the loops of --delay and --ducks\n";

/* "N,N..." */
static bool read_contexts(struct arguments *a, const char *list)
{
    const bench_range can = {GRAPH_ROWS + 1, 1u << 20, 1};
    a->contexts = 0;
    for (const char *p = list; p;) {
        char one[16];
        const size_t n = strcspn(p, ",");
        if (a->contexts == CONTEXTS)
            return bench_wrong("--context is %s, it can be %u numbers at most", list, CONTEXTS);
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        if (!bench_number("context", one, can, &a->context[a->contexts++])) return false;
        p = p[n] ? p + n + 1 : nullptr;
    }
    return true;
}

/* The option at *i with its values; *i is left at the last of them. */
static bool read_option(struct arguments *a, int argc, char **argv, int *i)
{
    const char *const given = argv[*i];
    const struct {
        const char *name;
        uint32_t *to;
        bench_range can;
    } number[] = {{"--chunk", &a->chunk, {1, 1u << 16, 1}},
                  {"--sparse", &a->sparse, {0, 1u << 20, 1}},
                  {"--delay", &a->delay_us, {1, 1000000, 1}},
                  {"--ducks", &a->layers, {1, 1024, 1}},
                  {"--ducks", &a->experts, {1, 65536, 1}}};
    bool *const flag = !strcmp(given, "--only-stages")  ? &a->only_stages
                       : !strcmp(given, "--only-ducks") ? &a->only_ducks
                       : !strcmp(given, "--help")       ? &a->help
                                                        : nullptr;
    if (flag) return *flag = true;
    int values = !strcmp(given, "--config") || !strcmp(given, "--context");
    for (const auto &n : number) values += !strcmp(given, n.name);
    if (values == 0) return bench_wrong("there is no use for '%s'", given);
    if (argc - 1 - *i < values)
        return bench_wrong("%s takes %d value%s, there %s %d", given, values, values > 1 ? "s" : "",
                           argc - 1 - *i == 1 ? "is" : "are", argc - 1 - *i);
    if (!strcmp(given, "--config")) a->config = argv[++*i];
    if (!strcmp(given, "--context")) return read_contexts(a, argv[++*i]);
    for (const auto &n : number)
        if (!strcmp(given, n.name) && !bench_number(given + 2, argv[++*i], n.can, n.to)) return false;
    return true;
}

static bool read_arguments(struct arguments *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!read_option(a, argc, argv, &i)) return false;
    return true;
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

/* The device alone: shared experts left to the flock, then beside the rest, where they only change a step. */
static void device_part(const struct model *model, const struct arguments *a, bool shared)
{
    static rig t;
    uint32_t longest = a->sparse + a->chunk > 4096 ? a->sparse + a->chunk : 4096;
    for (uint32_t i = 0; i < a->contexts; i++)
        if (a->context[i] + 64 > longest) longest = a->context[i] + 64;
    t = {};
    open_rig(&t, model, longest, shared ? GRAPH_ROWS : a->chunk, shared);
    measure_copy(t.l.stream);
    const bool all = !shared && !a->only_stages;
    if (all) flag_round_trips(t.l.stream);
    for (uint32_t i = 0; i < a->contexts && (i == 0 || !shared); i++) {
        const uint32_t n = a->context[i];
        stages(&t, n - 1, 1);
        if (i == 0) stages(&t, n - 2, 2), stages(&t, n - 4, 4);
    }
    if (all && a->chunk > PREFILL_ROWS) {
        prefill_stages(&t, a->chunk);
        attention_part(&t, a->chunk, PROMPT);
        if (a->sparse && model->config.index_topk > 0) sparse_prefill(&t, a->sparse, a->chunk);
    }
    if (all) prefill(&t, a->chunk, PROMPT);
    close_rig(&t);
}

int main(int argc, char **argv)
{
    struct arguments a = {"configs/deepseek-v3.2.json", 3, {2048, 32768, 131072}, 2048, 30720};
    static struct model model;
    cudaDeviceProp d;
    if (!read_arguments(&a, argc, argv)) return 2;
    if (a.help) {
        fputs(usage, stdout);
        return 0;
    }
    gpu_host = &bench_host;
    gpu_pdl = !gpu_off("DUCKD_CUDA_PDL");
    ok(cudaGetDeviceProperties(&d, 0), "device");
    printf("%s, %d multiprocessors, programmatic launch %s\n", d.name, d.multiProcessorCount,
           gpu_pdl ? "on" : "off");
    read_config(&model, a.config);
    bench_model_open(&model.config);
    for (int shared = 0; shared <= 1 && !a.only_ducks; shared++) device_part(&model, &a, shared != 0);
    model.config.max_positions = 8192; // of the loops
    for (uint32_t rows = 1; rows <= 2 && !a.only_ducks && !a.only_stages; rows++)
        loop_delayed(&model, 2048 - rows, rows, 0);
    if (a.delay_us) loop_delayed(&model, 2047, 1, a.delay_us);
    if (a.layers && a.experts) loop_ducks(&model, a.config, 2046, a.layers, a.experts);
    bench_model_close();
    return 0;
}
