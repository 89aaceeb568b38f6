/* forecast_test.c: the planner against what the reference system published, against sizes counted by hand,
 * and against what must follow from better or worse hardware. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/plan/forecast.h"
#include "host/plan/work.h"

static struct model_config config;

static int read_config(void **state)
{
    (void)state;
    static char text[8192];
    struct error err;
    FILE *f = fopen(SOURCE_DIR "/configs/deepseek-v3.2.json", "r");
    if (!f) return -1;
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    return model_config_parse(&config, text, n, "config", &err);
}

/* `sets`: "key=value key=value". */
static int make_on(struct forecast *f, const char *path, enum forecast_scheme scheme, const char *sets,
                   struct error *err)
{
    struct forecast_inputs in;
    char copy[256], *save = NULL;
    int rc = forecast_inputs_read(&in, scheme, path, err);
    snprintf(copy, sizeof copy, "%s", sets);
    for (char *s = strtok_r(copy, " ", &save); !rc && s; s = strtok_r(NULL, " ", &save))
        rc = forecast_inputs_set(&in, s, err);
    return rc ? rc : forecast_make(f, &config, &in, err);
}

/* The reference's hardware. */
static int make(struct forecast *f, enum forecast_scheme scheme, const char *sets, struct error *err)
{
    return make_on(f, SOURCE_DIR "/configs/hardware-reference.json", scheme, sets, err);
}

static struct forecast forecast(enum forecast_scheme scheme, const char *sets)
{
    struct forecast f;
    struct error err = {""};
    int rc = make(&f, scheme, sets, &err);
    if (rc) print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    return f;
}

struct published {
    const char *what;
    double low, high; // as published: a value or a range
    double share;     // that the forecast may be off
    double forecast;
};

static void check(const struct published *row)
{
    bool good = row->forecast >= row->low * (1 - row->share) && row->forecast <= row->high * (1 + row->share);
    if (!good) print_error("%s: %g, published %g .. %g\n", row->what, row->forecast, row->low, row->high);
    assert_true(good);
}

static void near(double value, double expected, double off)
{
    if (!(fabs(value - expected) <= off)) print_error("%.9g, expected %.9g\n", value, expected);
    assert_true(fabs(value - expected) <= off);
}

#define CASE_05 "prompt_tokens=1481 output_tokens=567 acceptance=0.7"

static void the_reference_is_reproduced(void **state)
{
    (void)state;
    struct forecast prime = forecast(SCHEME_REFERENCE, ""), long_input = forecast(SCHEME_REFERENCE, CASE_05);
    const struct sim_stages *t = &prime.stages;
    const struct published rows[] = {
        // fitted: three constants, three figures
        {"02-prime TTFT, s", 0.861, 0.861, 0.01, prime.ttft_s},
        {"02-prime prefill, tok/s", 12.8, 12.8, 0.01, prime.prefill_tok_s},
        {"02-prime TPOT, ms", 62, 62, 0.01, prime.tpot_ms},
        {"02-prime fast path, ms", 3.8, 3.8, 0.02, prime.fast_ms},
        // not fitted
        {"02-prime decode, tok/s", 16.171, 16.171, 0.1, prime.decode_tok_s},
        {"pair, ms", 112, 112, 0.1, prime.pair_ms},
        {"serial pair, ms", 199, 199, 0.1, prime.serial_pair_ms},
        {"step: prepare, us", 3, 5, 0.1, 1e6 * t->prepare_s},
        {"step: send, us", 61, 61, 0.1, 1e6 * t->send_s},
        {"step: ducks compute, us", 698, 727, 0.1, 1e6 * t->compute_s},
        {"step: judge wait, us", 783, 807, 0.1, 1e6 * (t->gap_s + t->compute_s + t->return_s)},
        {"step: fetch, us", 91, 92, 0.1, 1e6 * t->fetch_s},
        {"step: reduce, us", 0, 1, 0, 1e6 * t->reduce_s},
        {"step: total, us", 975, 1001, 0.1, 1e6 * t->total_s},
        {"05 TTFT, s", 74.5, 74.5, 0.1, long_input.ttft_s},
        {"05 prefill, tok/s", 19.9, 19.9, 0.1, long_input.prefill_tok_s},
        {"05 TPOT, ms", 70, 70, 0.1, long_input.tpot_ms},
        {"05 decode, tok/s", 14.206, 14.206, 0.1, long_input.decode_tok_s},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check(&rows[i]);
}

/* A forecast for one of configs/hardware-*.json, of a model cut to `layers`. */
static struct forecast run_on(const char *hardware, const char *sets, uint32_t layers)
{
    char path[400];
    struct forecast f;
    struct error err = {""};
    const uint32_t all = config.layers;
    snprintf(path, sizeof path, SOURCE_DIR "/configs/hardware-%s.json", hardware);
    config.layers = layers;
    if (make_on(&f, path, SCHEME_DUCKD, sets, &err)) fail_msg("%s", err.text);
    config.layers = all;
    return f;
}

/* What `bench --synthetic` measured (docs/numbers.md), with hardware files that hold what bench-duck measured
 * in the same run; no constant is fitted to any of it. */
static void two_other_machines_are_predicted(void **state)
{
    (void)state;
#define AS_LOCAL "memory_share=1 shared_on_gpu=0 merged=0 acceptance=0 "
    static const struct {
        const char *what, *hardware, *sets;
        uint32_t layers;
        double tpot_ms;
    } runs[] = {
        {"H200, 16 cores as ducks: round with a draft", "h200", AS_LOCAL "prompt_tokens=16 output_tokens=26",
         61, 392.9},
        {"H200, 16 cores as ducks: single tokens", "h200", AS_LOCAL "mtp=0 prompt_tokens=16 output_tokens=24",
         61, 208.3},
        {"the 16 cores alone", "h200", AS_LOCAL "gpu=0 mtp=0 kv_bytes=4 prompt_tokens=8 output_tokens=12", 61,
         368.0},
        {"EPYC, 1 thread, 12 of 61 layers", "epyc-1thread",
         AS_LOCAL "mtp=0 kv_bytes=4 prompt_tokens=4 output_tokens=16", 12, 610.3},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const double ms = run_on(runs[i].hardware, runs[i].sets, runs[i].layers).tpot_ms;
        const struct published row = {runs[i].what, runs[i].tpot_ms, runs[i].tpot_ms, 0.15, ms};
        print_message("%-45s %6.1f ms measured, %6.1f projected\n", row.what, row.low, row.forecast);
        check(&row);
    }
}

/* Prefill likewise: the hardware files hold the rate of bench-duck's step of many tokens. */
static void their_prefill_is_predicted(void **state)
{
    (void)state;
#define AS_MEASURED AS_LOCAL "flop_share=1 mtp=0 output_tokens=4 "
    static const struct {
        const char *what, *hardware, *sets;
        uint32_t layers;
        double tok_s;
    } runs[] = {
        {"H200, 16 cores as ducks: 1024 tokens", "h200", AS_MEASURED "prompt_tokens=1024", 61, 14.4},
        {"EPYC, 1 thread, 6 of 61 layers: 256 tokens", "epyc-1thread",
         AS_MEASURED "gpu=0 kv_bytes=4 prompt_tokens=256 prefill_chunk=256", 6, 5.97},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const double rate = run_on(runs[i].hardware, runs[i].sets, runs[i].layers).prefill_tok_s;
        const struct published row = {runs[i].what, runs[i].tok_s, runs[i].tok_s, 0.15, rate};
        print_message("%-45s %6.2f tok/s measured, %6.2f projected\n", row.what, row.low, row.forecast);
        check(&row);
    }
}

static const char *write_hardware(const char *kinds)
{
    static char path[] = "/tmp/duckd-hardware-XXXXXX";
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fprintf(f,
            "{\"ducks\": 32, \"duck_memory_gib\": 32, \"duck_bandwidth_gb_s\": 25.6, \"duck_gflops\": 185, "
            "\"duck_link_gbit_s\": 2.5, \"domains\": 4, \"uplink_gbit_s\": 25, \"frame_bytes\": 1500, "
            "\"latency_us\": 10, \"gpu\": 1, \"gpu_memory_gib\": 32, \"gpu_bandwidth_gb_s\": 1792, "
            "\"gpu_tflops\": 209, \"host_memory_gib\": 128, \"host_bandwidth_gb_s\": 70.4, "
            "\"host_gflops\": 1400, \"disk_gb_s\": 7, \"kinds\": %s}",
            kinds);
    fclose(f);
    return path;
}

/* Unlike ducks: kinds that are as the rest change nothing, half of them twice as fast help less than all. */
static void ducks_may_be_unlike(void **state)
{
    (void)state;
    static const char *const kinds[] = {
        "[{\"ducks\": 16, \"duck_bandwidth_gb_s\": 25.6}]",
        "[{\"ducks\": 16, \"duck_bandwidth_gb_s\": 51.2, \"duck_gflops\": 370, "
        "\"duck_link_gbit_s\": 5, \"duck_memory_gib\": 64}]",
        "[{\"ducks\": 4, \"duck_memory_gib\": 2}]"};
    struct forecast f[3], plain = forecast(SCHEME_DUCKD, ""),
                          faster = forecast(SCHEME_DUCKD, "duck_bandwidth_gb_s=51.2");
    struct error err = {""};
    for (int i = 0; i < 3; i++) {
        const char *path = write_hardware(kinds[i]);
        if (make_on(&f[i], path, SCHEME_DUCKD, "", &err)) fail_msg("%s", err.text);
        unlink(path);
    }
    near(f[0].tpot_ms, plain.tpot_ms, 1e-9);
    assert_true(f[1].tpot_ms < 0.9 * plain.tpot_ms && f[1].tpot_ms > faster.tpot_ms);
    assert_true(f[2].fits && f[2].tpot_ms > plain.tpot_ms); // four small ducks: the others hold and read more

    static const struct {
        const char *kinds, *message;
    } bad[] = {
        {"[{\"ducks\": 33}]", "kinds has 33 ducks, but ducks is 32"},
        {"[{\"duck_gflops\": 33}]", "kinds: a kind needs its number of ducks"},
        {"[{\"ducks\": 1, \"gpu\": 1}]", "kinds: 'gpu' is 1; a kind has numbers: ducks"},
        {"7", "kinds is not an array"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct forecast g;
        const char *path = write_hardware(bad[i].kinds);
        assert_true(make_on(&g, path, SCHEME_DUCKD, "", &err) < 0);
        unlink(path);
        if (!strstr(err.text, bad[i].message)) print_error("%s\n", err.text);
        assert_non_null(strstr(err.text, bad[i].message));
    }
}

/* From docs/numbers.md: each improvement of the scheme by itself must help, in this order. */
static void every_step_of_the_scheme_helps(void **state)
{
    (void)state;
    static const char *const order[] = {
        "gpu_layer_us=720 step_gap_us=75 streamed=0 back_to_back=0 shared_on_gpu=0",
        "gpu_layer_us=720 step_gap_us=75 back_to_back=0 shared_on_gpu=0",
        "gpu_layer_us=720 shared_on_gpu=0",
        "shared_on_gpu=0",
        "",
        "merged_lanes=1",
    };
    double before = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        double now = forecast(SCHEME_DUCKD, order[i]).decode_tok_s;
        if (now <= before) print_error("%s: %g after %g\n", order[i], now, before);
        assert_true(now > before);
        before = now;
    }
    struct forecast f = forecast(SCHEME_DUCKD, "");
    assert_true(f.decode_tok_s >= 24.5);
    assert_true(forecast(SCHEME_DUCKD, CASE_05).prefill_tok_s >= 80);

    // What holds a part of the experts besides the ducks helps decode, and as copies does not hurt prefill.
    static const char *const helpers[] = {"host_duck=1", "host_duck=1 gpu_duck=1",
                                          "host_duck=1 gpu_duck=1 draft_bits=4"};
    before = f.decode_tok_s;
    for (size_t i = 0; i < sizeof helpers / sizeof helpers[0]; i++) {
        char copies[160];
        struct forecast more = forecast(SCHEME_DUCKD, helpers[i]);
        snprintf(copies, sizeof copies, "copies=1 prompt_tokens=1481 output_tokens=567 %s", helpers[i]);
        if (more.decode_tok_s <= before)
            print_error("%s: %g after %g\n", helpers[i], more.decode_tok_s, before);
        assert_true(more.fits && more.decode_tok_s > before);
        before = more.decode_tok_s;
        more = forecast(SCHEME_DUCKD, copies);
        assert_true(more.fits && more.prefill_tok_s >= 80);
    }
    assert_true(before >= 26);
}

/* Ducks that keep the checkpoint's 8 bits meet the goal of 27 tok/s, lossless and built; of more that would
 * help what is not built is said. */
static void a_ninth_bit_less_is_27_tokens_a_second(void **state)
{
    (void)state;
    static const char *const sets[] = {"", "expert_bits=8", "expert_bits=8 draft_bits=4 merged_lanes=1"};
    static const unsigned unbuilt[] = {0, 0, 2};
    double before = 0;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct forecast f = forecast(SCHEME_DUCKD, sets[i]);
        assert_true(f.fits && f.decode_tok_s > before && f.decode_tok_s >= (i == 0 ? 24.5 : 27));
        before = f.decode_tok_s;
        struct forecast_inputs in;
        struct forecast_unbuilt not_built[FORECAST_UNBUILT];
        struct error err;
        char copy[100], *save = NULL;
        assert_int_equal(
            forecast_inputs_read(&in, SCHEME_DUCKD, SOURCE_DIR "/configs/hardware-reference.json", &err), 0);
        snprintf(copy, sizeof copy, "%s", sets[i]);
        for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save))
            assert_int_equal(forecast_inputs_set(&in, s, &err), 0);
        assert_int_equal(forecast_unbuilt(&in, not_built), unbuilt[i]);
    }
    struct forecast_inputs in;
    struct forecast_unbuilt not_built[FORECAST_UNBUILT];
    struct error err;
    assert_int_equal(
        forecast_inputs_read(&in, SCHEME_DUCKD, SOURCE_DIR "/configs/hardware-reference.json", &err), 0);
    in.expert_bits = 8;
    in.checkpoint_bits = 16; // there is no e4m3 to keep
    assert_int_equal(forecast_unbuilt(&in, not_built), 1);
    // With the gap of 33 us that a duck of one core was measured with (docs/numbers.md), still more than 9
    // bits.
    assert_true(forecast(SCHEME_DUCKD, "expert_bits=8 step_gap_us=33").decode_tok_s > 26);
}

static void sizes_are_those_counted_by_hand(void **state)
{
    (void)state;
    struct forecast_inputs in = {.mtp = 1, .indexer = 1};
    struct forecast_work w = forecast_work(&config, &in);
    near(w.expert, 44040192, 0);
    near(61 * w.attention / 1e9, 11.4, 0.05);
    near(61 * w.indexer / 1e9, 0.88, 0.005);
    near(3 * w.dense / 1e9, 1.19, 0.005);
    near(2 * w.head / 1e9, 1.853, 0.002);
    near(w.moe_layers, 59, 0);
    near(w.kv_values, 576 + 128, 0);
    near(forecast_distinct_experts(&config, &in, 1), 8, 1e-9);
    struct forecast f = forecast(SCHEME_DUCKD, "merged=0");
    near(f.duck_step_mb, 12.39, 0.01); // 8 experts x 64 columns in fp9
    near(59 * 256 * w.expert / 1e9 + 59 * w.expert / 1e9, f.experts_gb, 0.1);
    near(f.link_s, 66.5, 0.7);
}

struct what_if {
    const char *sets;
    bool fits;
    int decode; // against the scheme as it is: -1 slower, 1 faster
    const char *bottleneck;
};

static const struct what_if what_ifs[] = {
    {"ducks=16", false, -1, "duck_bandwidth_gb_s"},
    {"duck_link_gbit_s=1", true, -1, "duck_bandwidth_gb_s"},
    {"duck_link_gbit_s=0.1", true, -1, "duck_link_gbit_s"},
    {"duck_memory_gib=16", false, 0, "duck_bandwidth_gb_s"},
    {"gpu=0", true, -1, "host_bandwidth_gb_s"},
    {"expert_bits=4.5 checkpoint_bits=4.5", true, 1, "duck_bandwidth_gb_s"},
    {"expert_bits=4.5 checkpoint_bits=4.5 duck_memory_gib=16", true, 1, "duck_bandwidth_gb_s"},
    {"ducks=16 expert_bits=4.5", true, 0, "duck_bandwidth_gb_s"},
    {"gpu_memory_gib=16", false, 0, "duck_bandwidth_gb_s"},
    {"gpu_bandwidth_gb_s=100", true, -1, "gpu_bandwidth_gb_s"},
    {"duck_bandwidth_gb_s=51.2", true, 1, NULL},
    {"acceptance=0", true, -1, NULL},
    {"acceptance=1", true, 1, NULL},
    {"mtp=0", true, -1, NULL},
    {"one_job=1", true, -1, NULL},
};

static void what_ifs_go_the_right_way(void **state)
{
    (void)state;
    double as_it_is = forecast(SCHEME_DUCKD, "").decode_tok_s;
    for (size_t i = 0; i < sizeof what_ifs / sizeof what_ifs[0]; i++) {
        const struct what_if *w = &what_ifs[i];
        struct forecast f = forecast(SCHEME_DUCKD, w->sets);
        int way = f.decode_tok_s > as_it_is * 1.001 ? 1 : f.decode_tok_s < as_it_is * 0.999 ? -1 : 0;
        if (way != w->decode || f.fits != w->fits || (w->bottleneck && strcmp(w->bottleneck, f.bottleneck)))
            print_error("%s: %g tok/s after %g, fits %d, %s\n", w->sets, f.decode_tok_s, as_it_is, f.fits,
                        f.bottleneck);
        assert_int_equal(way, w->decode);
        assert_int_equal(f.fits, w->fits);
        if (w->bottleneck) assert_string_equal(w->bottleneck, f.bottleneck);
    }
}

/* Nothing runs faster than its slowest resource allows, in any scheme. */
static void no_forecast_beats_the_hardware(void **state)
{
    (void)state;
    static const char *const sets[] = {"",          "streamed=0",       "back_to_back=0", "dual_lane=0",
                                       "ducks=31",  "gpu_layer_us=900", "host_duck=1",    "domains=1",
                                       "gpu_duck=1"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct forecast f = forecast(SCHEME_DUCKD, sets[i]);
        double steps = 2 * (config.layers - config.first_dense_layers);
        double least = steps * f.stages.compute_s * 1e3;
        // Two rows that share an expert read a little less: 2 x 8 of 256 leave 3 %.
        if (f.pair_ms < least * 0.98) print_error("%s: %g < %g\n", sets[i], f.pair_ms, least);
        assert_true(f.pair_ms >= least * 0.98);
        assert_true(f.pair_ms <= f.serial_pair_ms * 1.0001);
        assert_true(f.duck_share <= 1.0001 && f.gpu_share <= 1.0001);
    }
}

struct refusal {
    const char *sets, *message;
};

static const struct refusal refusals[] = {
    {"duks=16", "--set: unknown key 'duks'; plan --json prints every key, docs/plan.md says what it is"},
    {"ducks", "--set takes KEY=VALUE, as in ducks=16, not 'ducks'"},
    {"ducks=many", "--set: ducks takes a number, not 'many'"},
    {"ducks=0", "--set: ducks is 0, it can be a whole number 1 to 256 (ducks)"},
    {"ducks=2.5", "--set: ducks is 2.5, it can be a whole number 1 to 256 (ducks)"},
    {"acceptance=1.5", "--set: acceptance is 1.5, it can be 0 to 1 (accepted drafts / drafts)"},
    {"duck_link_gbit_s=-1", "--set: duck_link_gbit_s is -1, it can be 0.01 to 800 (link of a duck, Gbit/s)"},
    {"latency_us=nan", "--set: latency_us takes a number, not 'nan'"},
    {"ducks=2", "domains is 4, but ducks is 2"},
    {"ducks=1", "domains is 4, but ducks is 1"},
    {"prompt_tokens=200000",
     "prompt_tokens 200000 and output_tokens 2037 exceed the model's 163840 positions"},
    {"prompt_tokens=100000 prefill_chunk=1",
     "prompt_tokens 100000 in chunks of prefill_chunk 1 are more than 4096"},
    {"gpu_duck=1 gpu=0", "gpu_duck is 1 and gpu is 0: there is no GPU memory"},
    {"host_duck=1 gpu=0",
     "host_duck is 1 and gpu is 0: without a GPU the host's memory serves attention; set "
     "one of the two otherwise"},
};

static void nonsense_is_refused_with_its_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct forecast f;
        struct error err = {""};
        assert_true(make(&f, SCHEME_DUCKD, refusals[i].sets, &err) < 0);
        assert_string_equal(err.text, refusals[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_is_reproduced),
        cmocka_unit_test(two_other_machines_are_predicted),
        cmocka_unit_test(their_prefill_is_predicted),
        cmocka_unit_test(ducks_may_be_unlike),
        cmocka_unit_test(every_step_of_the_scheme_helps),
        cmocka_unit_test(a_ninth_bit_less_is_27_tokens_a_second),
        cmocka_unit_test(sizes_are_those_counted_by_hand),
        cmocka_unit_test(what_ifs_go_the_right_way),
        cmocka_unit_test(no_forecast_beats_the_hardware),
        cmocka_unit_test(nonsense_is_refused_with_its_numbers),
    };
    return cmocka_run_group_tests(tests, read_config, NULL);
}
