/* plan.c: `duckd plan`: a forecast as text or JSON. Everything it prints is projected, and says so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/output.h"
#include "host/cli/plan_bench.h"
#include "host/plan/forecast.h"

/* --model: a checkpoint's folder, or a config.json by itself. */
static int read_model(struct model_config *c, const char *path, struct error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return model_config_read(c, path, err);
    char *text;
    size_t length;
    int rc = input_text(path, &text, &length, err);
    if (rc) return rc;
    rc = model_config_parse(c, text, length, path, err);
    free(text);
    return rc;
}

static int read_inputs(struct forecast_inputs *in, const struct model_config *c, const struct options *o,
                       const struct plan_bench *bench, struct error *err)
{
    int rc = forecast_inputs_read(in, o->scheme == 1 ? SCHEME_DUCKD : SCHEME_REFERENCE, o->hardware, err);
    if (!rc && o->beside) rc = plan_bench_apply(bench, c, in, err);
    for (size_t i = 0; !rc && i < o->set.count; i++) rc = forecast_inputs_set(in, o->set.item[i], err);
    return rc;
}

/* ---- JSON ---- */

struct figure {
    const char *name;
    double value;
    int decimals;
};

static void write_figures(const struct figure *figures, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        printf("%s\"%s\": ", i ? ", " : "", figures[i].name);
        output_json_number(stdout, figures[i].value, figures[i].decimals);
    }
}

static void print_json(const struct options *o, struct forecast_inputs *in, const struct forecast *f)
{
    const struct sim_stages *t = &f->stages;
    const struct figure main_figures[] = {{"cold_start_s", f->cold_start_s, 3},
                                          {"ttft_s", f->ttft_s, 4},
                                          {"prefill_tok_s", f->prefill_tok_s, 3},
                                          {"tpot_ms", f->tpot_ms, 3},
                                          {"decode_tok_s", f->decode_tok_s, 3},
                                          {"pair_ms", f->pair_ms, 3},
                                          {"serial_pair_ms", f->serial_pair_ms, 3},
                                          {"fast_path_ms", f->fast_ms, 3},
                                          {"pair_over_serial", f->pair_ms / f->serial_pair_ms, 4},
                                          {"overlap_gain", 1 - f->pair_ms / f->serial_pair_ms, 4},
                                          {"duck_busy", f->duck_share, 4},
                                          {"gpu_busy", f->gpu_share, 4},
                                          {"duck_step_mb", f->duck_step_mb, 3},
                                          {"experts_gb", f->experts_gb, 2},
                                          {"checkpoint_gb", f->checkpoint_gb, 2},
                                          {"disk_s", f->disk_s, 3},
                                          {"uplinks_s", f->uplink_s, 3},
                                          {"duck_links_s", f->link_s, 3}};
    const struct figure stages[] = {{"prepare", 1e6 * t->prepare_s, 2},
                                    {"send", 1e6 * t->send_s, 2},
                                    {"judge_gap", 1e6 * t->gap_s, 2},
                                    {"compute", 1e6 * t->compute_s, 2},
                                    {"judge_wait", 1e6 * (t->gap_s + t->compute_s + t->return_s), 2},
                                    {"fetch", 1e6 * t->fetch_s, 2},
                                    {"reduce", 1e6 * t->reduce_s, 2},
                                    {"total", 1e6 * t->total_s, 2}};
    printf("{\"projected\": true, \"scheme\": \"%s\", \"fits\": %s, \"bottleneck\": \"%s\", "
           "\"bottleneck_gain\": %.4f, ",
           o->scheme == 1 ? "duckd" : "reference", f->fits ? "true" : "false", f->bottleneck,
           f->bottleneck_gain);
    write_figures(main_figures, sizeof main_figures / sizeof main_figures[0]);
    fputs(", \"step_us\": {", stdout);
    write_figures(stages, sizeof stages / sizeof stages[0]);
    fputs("}, \"memory_gb\": {", stdout);
    for (unsigned i = 0; i < f->fits_count; i++)
        printf("%s\"%s\": {\"needs\": %.3f, \"has\": %.3f}", i ? ", " : "", f->fit[i].where,
               f->fit[i].needs_gb, f->fit[i].has_gb);
    fputs("}, \"not_built\": {", stdout);
    struct forecast_unbuilt not_built[FORECAST_UNBUILT];
    unsigned n = o->scheme == 1 ? forecast_unbuilt(in, not_built) : 0;
    for (unsigned i = 0; i < n; i++)
        printf("%s\"%s\": \"%s\"", i ? ", " : "", not_built[i].key, not_built[i].why);
    fputs("}, \"inputs\": {", stdout);
    for (size_t i = 0; i < forecast_key_count; i++)
        printf("%s\"%s\": %.10g", i ? ", " : "", forecast_keys[i].name,
               *forecast_input(in, &forecast_keys[i]));
    puts("}}");
}

/* ---- text ---- */

static void print_text(const struct options *o, const struct forecast_inputs *in, const struct forecast *f)
{
    const struct sim_stages *t = &f->stages;
    printf("projected, scheme %s: %.0f prompt tokens, %.0f output tokens, acceptance %.2f\n\n",
           o->scheme == 1 ? "duckd" : "reference", in->prompt_tokens, in->output_tokens, in->acceptance);
    printf("fits              %s\n", f->fits ? "yes" : "no");
    for (unsigned i = 0; i < f->fits_count; i++)
        printf("  %-15s %9.2f GB of %.2f GB%s\n", f->fit[i].where, f->fit[i].needs_gb, f->fit[i].has_gb,
               f->fit[i].needs_gb > f->fit[i].has_gb ? "   <- too much" : "");
    printf("cold start        %9.1f s       disk %.1f s for %.1f GB, uplinks %.1f s, ducks' links %.1f s\n",
           f->cold_start_s, f->disk_s, f->checkpoint_gb, f->uplink_s, f->link_s);
    printf("TTFT              %9.3f s\n", f->ttft_s);
    printf("prefill           %9.2f tok/s\n", f->prefill_tok_s);
    printf("TPOT              %9.2f ms\n", f->tpot_ms);
    printf("decode            %9.2f tok/s\n", f->decode_tok_s);
    if (isfinite(f->pair_ms))
        printf("pair              %9.1f ms      serial %.1f ms, overlap gain %.3f, then MTP %.2f ms\n",
               f->pair_ms, f->serial_pair_ms, 1 - f->pair_ms / f->serial_pair_ms, f->fast_ms);
    printf("busy                              ducks %.0f %%, GPU %.0f %%\n", 100 * f->duck_share,
           100 * f->gpu_share);
    printf(
        "one step          %9.1f µs      prepare %.1f, send %.1f, gap %.1f, compute %.1f, return %.1f, fetch "
        "%.1f, reduce %.1f µs\n",
        1e6 * t->total_s, 1e6 * t->prepare_s, 1e6 * t->send_s, 1e6 * t->gap_s, 1e6 * t->compute_s,
        1e6 * t->return_s, 1e6 * t->fetch_s, 1e6 * t->reduce_s);
    printf("bottleneck        %s (twice as good: %.2f x decode)\n", f->bottleneck, f->bottleneck_gain);
    struct forecast_unbuilt not_built[FORECAST_UNBUILT];
    unsigned n = o->scheme == 1 ? forecast_unbuilt(in, not_built) : 0;
    for (unsigned i = 0; i < n; i++)
        printf("%-17s %s=%g: %s\n", i ? "" : "not built", not_built[i].key, not_built[i].value,
               not_built[i].why);
}

static int plan(const struct options *o, const struct plan_bench *bench, struct error *err)
{
    char path[4096];
    struct model_config config;
    struct forecast_inputs in;
    struct forecast f;
    if (o->model || o->beside)
        snprintf(path, sizeof path, "%s", o->model ? o->model : bench->model);
    else
        input_find_shared("configs/deepseek-v3.2.json", path);
    int rc = read_model(&config, path, err);
    if (!rc) rc = read_inputs(&in, &config, o, bench, err);
    if (!rc && o->beside) return plan_bench_print(bench, &config, &in, o, err);
    if (!rc) rc = forecast_make(&f, &config, &in, err);
    if (rc) return rc;
    if (o->json)
        print_json(o, &in, &f);
    else
        print_text(o, &in, &f);
    return 0;
}

int command_plan(const struct options *o, struct error *err)
{
    struct plan_bench bench = {0};
    int rc = o->beside ? plan_bench_read(&bench, o->beside, err) : 0;
    if (!rc) rc = plan(o, &bench, err);
    plan_bench_free(&bench);
    return rc ? rc : output_finish(err);
}
