/* bench_gpu.cu: the CUDA backend at full size on synthetic weights: time and bytes of every stage beside the
 * copy bandwidth of the same run, whole steps, prefill, the loop with the host.
 *
 *   bench-gpu [--config configs/deepseek-v3.2.json] [--context 2048,32768] [--chunk 2048] [--sparse POSITION]
 *             [--delay US] [--ducks LAYERS EXPERTS] [--only-stages] [--only-ducks]
 *
 * In the stages every answer is there; in the loop the host answers with zeros, at once or after a fixed time
 * (for tuning, no tokens per second of anything), or local ducks do, whose layers share one set of weights.
 */
#include "cuda/bench.cuh"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 2048u

struct arguments {
    const char *config, *contexts;
    uint32_t chunk, sparse, delay_us, layers, experts;
    bool only_stages, only_ducks;
};

static bool next_number(int argc, char **argv, int *i, uint32_t *out)
{
    if (*i + 1 >= argc) return false;
    *out = (uint32_t)atoi(argv[++*i]);
    return true;
}

static bool read_arguments(struct arguments *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool good = false;
        if (!strcmp(argv[i], "--config") && i + 1 < argc)
            a->config = argv[++i], good = true;
        else if (!strcmp(argv[i], "--context") && i + 1 < argc)
            a->contexts = argv[++i], good = true;
        else if (!strcmp(argv[i], "--chunk"))
            good = next_number(argc, argv, &i, &a->chunk);
        else if (!strcmp(argv[i], "--sparse"))
            good = next_number(argc, argv, &i, &a->sparse);
        else if (!strcmp(argv[i], "--delay"))
            good = next_number(argc, argv, &i, &a->delay_us);
        else if (!strcmp(argv[i], "--ducks"))
            good = next_number(argc, argv, &i, &a->layers) && next_number(argc, argv, &i, &a->experts);
        else if (!strcmp(argv[i], "--only-stages"))
            good = a->only_stages = true;
        else if (!strcmp(argv[i], "--only-ducks"))
            good = a->only_ducks = true;
        if (good) continue;
        fprintf(stderr, "usage: bench-gpu [--config F] [--context N,N...] [--chunk ROWS] [--sparse POSITION] "
                        "[--delay US] "
                        "[--ducks LAYERS EXPERTS] [--only-stages] [--only-ducks]\n");
        return false;
    }
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

/* f(context) for each of "N,N..." */
template <class F> static void each_context(const char *contexts, F f)
{
    for (const char *p = contexts; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : nullptr)
        f((uint32_t)atoi(p), p == contexts);
}

/* The device alone: shared experts left to the flock, then beside the rest, where they only change a step. */
static void device_part(const struct model *model, const struct arguments *a, bool shared)
{
    static rig t;
    uint32_t longest = a->sparse + a->chunk > 4096 ? a->sparse + a->chunk : 4096;
    each_context(a->contexts, [&](uint32_t n, bool) { longest = n + 64 > longest ? n + 64 : longest; });
    t = {};
    open_rig(&t, model, longest, shared ? GRAPH_ROWS : a->chunk, shared);
    measure_copy(t.l.stream);
    const bool all = !shared && !a->only_stages;
    if (all) flag_round_trips(t.l.stream);
    each_context(a->contexts, [&](uint32_t n, bool first) {
        if (first || !shared) stages(&t, n - 1, 1);
        if (first) stages(&t, n - 2, 2), stages(&t, n - 4, 4);
    });
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
    struct arguments a = {
        "configs/deepseek-v3.2.json", "2048,32768,131072", 2048, 30720, 0, 0, 0, false, false};
    static struct model model;
    cudaDeviceProp d;
    if (!read_arguments(&a, argc, argv)) return 2;
    gpu_host = &bench_host;
    gpu_pdl = !(getenv("DUCKD_CUDA_PDL") && !strcmp(getenv("DUCKD_CUDA_PDL"), "0"));
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
