/* bench_report.c: see bench_report.h. "-" and null stand for what was not measured. */
#include "host/cli/bench_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host/cli/output.h"

void bench_table_header(FILE *to, const struct session *s)
{
    if (s->synthetic)
        fprintf(to, "SYNTHETIC: random weights of the shape of %s; times are measured, texts mean nothing\n",
                s->dir);
    fprintf(to, "%-20s %6s %6s %8s %8s %31s %7s %6s %6s %7s %7s\n", "", "prompt", "output", "TTFT", "prefill",
            "TPOT [ms]            ", "decode", "rounds", "MTP", "pair /", "overlap");
    fprintf(to, "%-20s %6s %6s %8s %8s %7s %7s %7s %7s %7s %6s %6s %7s %7s\n", "case", "tokens", "tokens",
            "ms", "tok/s", "mean", "p50", "p90", "p99", "tok/s", "draft", "accept", "serial", "gain");
}

static void number(FILE *to, int width, double x, const char *unit)
{
    char text[32] = "-";
    int decimals = x >= 1000 ? 0 : x >= 100 ? 1 : 2;
    if (isfinite(x)) snprintf(text, sizeof text, "%.*f%s", *unit ? 0 : decimals, x, unit);
    fprintf(to, " %*s", width, text);
}

void bench_table_row(FILE *to, const struct bench_case *c)
{
    const struct answer_figures *f = &c->figures;
    fprintf(to, "%-20s %6u %6zu", c->what->name, c->result.prompt_tokens, c->tokens);
    number(to, 8, f->ttft_ms, "");
    number(to, 8, f->prefill_tok_s, "");
    number(to, 7, f->tpot_ms, "");
    number(to, 7, f->tpot_p50, "");
    number(to, 7, f->tpot_p90, "");
    number(to, 7, f->tpot_p99, "");
    number(to, 7, f->decode_tok_s, "");
    number(to, 6, 100 * f->draft_share, "%");
    number(to, 6, 100 * f->mtp_accept, "%");
    number(to, 7, f->pair_over_serial, "");
    number(to, 7, 100 * f->overlap_gain, "%");
    fputc('\n', to);
}

/* ---- summary.json ---- */

static void text_member(FILE *to, const char *name, const char *value)
{
    fprintf(to, "\"%s\": ", name);
    output_json_string(to, value, strlen(value));
}

static void cpu_name(char *out, size_t size)
{
    char line[256];
    snprintf(out, size, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, size, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
}

static void write_machine(FILE *to)
{
    struct utsname u = {0};
    char cpu[200];
    uname(&u);
    cpu_name(cpu, sizeof cpu);
    fputs(" \"machine\": {", to);
    text_member(to, "cpu", cpu);
    fprintf(to, ", \"cpus\": %ld, \"memory_gb\": %.1f, ", sysconf(_SC_NPROCESSORS_ONLN),
            (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
    text_member(to, "kernel", u.release);
    fputs("},\n \"versions\": {", to);
    text_member(to, "duckd", DUCKD_VERSION);
    fputs(", ", to);
    text_member(to, "compiler", __VERSION__);
    fputs("},\n", to);
}

/* Rates of one duck, and the backend's times where it computes on the cores; with one thread of CPU time,
 * which others on the machine do not stretch, unless ducks compute elsewhere. What was not timed is null. */
static void write_hardware(FILE *to, const struct bench_run *run)
{
    const struct session *s = run->session;
    const bool on_cpu = !strcmp(engine_backend(s->engine)->ops->name, "cpu"),
               networked =
                   run->probe.engine && engine_probe_rates(run->probe.engine, PROBE_ONE, false).networked,
               cpu_time = s->options->threads == 1 && !networked;
    const int kv = s->options->kv_dtype < 0 ? (on_cpu ? 0 : 1) : s->options->kv_dtype; // f32, bf16, fp8
    struct probe_rates one = {0, false, NAN, NAN, NAN}, pair = one, many = one;
    if (run->probe.engine) {
        one = engine_probe_rates(run->probe.engine, PROBE_ONE, cpu_time);
        pair = engine_probe_rates(run->probe.engine, PROBE_PAIR, cpu_time);
        many = engine_probe_rates(run->probe.engine, PROBE_MANY, cpu_time);
    }
    fprintf(to,
            " \"hardware\": {\"ducks\": %u, \"local\": %s, \"shared_on_gpu\": %s, \"clock\": \"%s\", "
            "\"rows\": %u, \"kv_bytes\": %d, \"expert_format\": \"%s\"",
            flock_ducks(engine_flock(s->engine)), networked ? "false" : "true",
            engine_backend(s->engine)->shared ? "true" : "false", cpu_time ? "cpu" : "wall", many.rows,
            4 >> kv, flock_format_name(engine_flock(s->engine)));
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"duck_bandwidth_gb_s", one.duck_gb_s},  {"duck_gflops", many.duck_gflops},
                   {"backend_row_ms", one.backend_ms},      {"backend_layer_ms", many.backend_ms},
                   {"pair_bandwidth_gb_s", pair.duck_gb_s}, {"backend_pair_ms", pair.backend_ms}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fprintf(to, ",%s\"%s\": ", i % 2 ? " " : "\n   ", numbers[i].name);
        output_json_number(to, numbers[i].value, 4);
    }
    fputs("},\n", to);
}

static void write_case(FILE *to, const struct bench_case *c)
{
    const struct answer_figures *f = &c->figures;
    const struct generation_result *r = &c->result;
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"ttft_ms", f->ttft_ms},
                   {"prefill_tok_s", f->prefill_tok_s},
                   {"tpot_ms", f->tpot_ms},
                   {"tpot_p50_ms", f->tpot_p50},
                   {"tpot_p90_ms", f->tpot_p90},
                   {"tpot_p99_ms", f->tpot_p99},
                   {"decode_tok_s", f->decode_tok_s},
                   {"mtp_accept", f->mtp_accept},
                   {"draft_share", f->draft_share},
                   {"round_ms", f->round_ms},
                   {"ttft_cpu_ms", c->ttft_cpu_ms},
                   {"tpot_cpu_ms", c->tpot_cpu_ms},
                   {"break_even_accept", c->break_even},
                   {"pair_over_serial", f->pair_over_serial},
                   {"overlap_gain", f->overlap_gain}};
    fputs("  {", to);
    text_member(to, "name", c->what->name);
    if (c->what->about) {
        fputs(", ", to);
        text_member(to, "about", c->what->about);
    }
    fprintf(to,
            ",\n   \"prompt_tokens\": %u, \"cached_tokens\": %u, \"output_tokens\": %zu, \"finish_reason\": "
            "\"%s\",\n   "
            "\"rounds\": %u, \"drafts_proposed\": %u, \"drafts_accepted\": %u",
            r->prompt_tokens, r->cached_tokens, c->tokens, finish_reason_name(r->reason), r->rounds,
            r->drafts_proposed, r->drafts_accepted);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fprintf(to, ",%s\"%s\": ", i % 5 ? " " : "\n   ", numbers[i].name);
        output_json_number(to, numbers[i].value, 4);
    }
    fputs("}", to);
}

void bench_flock(FILE *to, struct flock *flock)
{
    fputc('[', to);
    flock_settle(flock);
    for (uint32_t i = 0; i < flock_ducks(flock); i++) {
        struct duck_stats d;
        flock_duck_stats(flock, i, &d);
        fputs(i ? ",\n  {" : "\n  {", to);
        text_member(to, "name", d.name);
        fprintf(to,
                ", \"slices\": %" PRIu64 ", \"weight_bytes\": %" PRIu64 ", \"steps\": %" PRIu64
                ", \"expert_reads\": %" PRIu64 ", \"expert_bytes\": %" PRIu64 ", \"compute_ms\": %.3f}",
                d.slices, d.weight_bytes, d.steps, d.expert_reads, d.expert_bytes,
                (double)d.compute_ns / 1e6);
    }
    fputs("]\n", to);
}

/* Also what is shared: it decides what the times are worth. */
static void write_synthetic(FILE *to, const struct session *s)
{
    if (!s->synthetic) {
        fputs(", \"synthetic\": false", to);
        return;
    }
    fprintf(to, ", \"synthetic\": true, \"distinct_layers\": %u, \"distinct_experts\": %u",
            s->options->synthetic_layers ? (uint32_t)s->options->synthetic_layers : s->config.layers,
            s->options->synthetic_experts ? (uint32_t)s->options->synthetic_experts : s->config.experts);
}

void bench_summary(FILE *to, const struct bench_run *run)
{
    const struct session *s = run->session;
    fputs("{\n \"command\": [", to);
    for (int i = 0; i < run->argc; i++) {
        if (i) fputs(", ", to);
        output_json_string(to, run->argv[i], strlen(run->argv[i]));
    }
    fputs("],\n ", to);
    text_member(to, "started", run->started);
    fputs(",\n ", to);
    text_member(to, "suite", run->suite_path);
    fputs(", ", to);
    text_member(to, "suite_name", run->suite_name ? run->suite_name : "");
    fputs(",\n ", to);
    char model[4096]; // for whoever reads this elsewhere: plan --bench
    text_member(to, "model", realpath(s->dir, model) ? model : s->dir);
    fputs(", ", to);
    text_member(to, "backend", engine_backend(s->engine)->ops->name);
    write_synthetic(to, s);
    fprintf(to, ", \"mtp\": %s, \"temperature\": %g, \"seed\": %" PRIu64 ", \"load_s\": %.3f,\n",
            s->mtp ? "true" : "false", (double)s->sampling.temperature, s->sampling.seed, run->load_s);
    write_machine(to);
    write_hardware(to, run);
    fputs(" \"ducks\": ", to); // over all cases and the warm-up: who did the work
    bench_flock(to, engine_flock(s->engine));
    fputs(",\n \"cases\": [\n", to);
    for (size_t i = 0; i < run->count; i++) {
        if (i) fputs(",\n", to);
        write_case(to, &run->cases[i]);
    }
    fputs("\n ]\n}\n", to);
}
