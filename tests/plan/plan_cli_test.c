/* plan_cli_test.c: `duckd plan` from outside: the contract's JSON, text with units, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cli/support.h"

#define PLAN "$D plan --hardware $S/configs/hardware-reference.json "

/* Must succeed; what it said if it does not. */
__attribute__((format(printf, 1, 2))) static struct outcome run_well(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    struct outcome o = run("%s", command);
    if (o.status != 0) fail_msg("%s: status %d, %s", command, o.status, o.err);
    return o;
}

static void json_has_what_the_contract_says(void **state)
{
    (void)state;
    static const char *const numbers[] = {"cold_start_s", "ttft_s",  "prefill_tok_s",  "tpot_ms",
                                          "decode_tok_s", "pair_ms", "serial_pair_ms", "bottleneck_gain"};
    static const char *const schemes[] = {"reference", "duckd"};
    for (size_t s = 0; s < 2; s++) {
        struct outcome o = run_well(PLAN "--scheme %s --json", schemes[s]);
        cJSON *j = json_of(&o);
        assert_non_null(j);
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(j, "fits")));
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(j, "projected")));
        assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(j, "scheme")), schemes[s]);
        assert_non_null(cJSON_GetStringValue(cJSON_GetObjectItem(j, "bottleneck")));
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(j, numbers[i])) > 0);
        const cJSON *inputs = cJSON_GetObjectItem(j, "inputs");
        assert_true(fabs(cJSON_GetNumberValue(cJSON_GetObjectItem(inputs, "acceptance")) - 0.89) < 1e-9);
        double product = cJSON_GetNumberValue(cJSON_GetObjectItem(j, "tpot_ms")) *
                         cJSON_GetNumberValue(cJSON_GetObjectItem(j, "decode_tok_s"));
        assert_true(fabs(product - 1000) < 0.5);
        cJSON_Delete(j);
        outcome_free(&o);
    }
}

static void text_has_units_and_says_that_it_is_projected(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "projected, scheme duckd", "cold start", " s ", " ms\n", "tok/s", "µs", "GB of", "bottleneck"};
    struct outcome o = run_well(PLAN);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) assert_non_null(strstr(o.out, parts[i]));
    outcome_free(&o);
}

/* What is supposed but not built stands in both outputs; what is built, in neither. */
static void what_is_not_built_is_said(void **state)
{
    (void)state;
    struct outcome o = run_well(PLAN "&& " PLAN "--scheme reference && " PLAN "--set expert_bits=8");
    assert_null(strstr(o.out, "not built"));
    outcome_free(&o);
    o = run_well(PLAN "--set gpu_duck=1 --set copies=1");
    assert_non_null(strstr(o.out, "\nnot built         gpu_duck=1: "));
    assert_non_null(strstr(o.out, "\n                  copies=1: "));
    outcome_free(&o);
    o = run_well(PLAN "--set expert_bits=4.5 --set draft_bits=4 --set merged_lanes=1 --json");
    cJSON *j = json_of(&o);
    const cJSON *not_built = cJSON_GetObjectItem(j, "not_built");
    static const char *const keys[] = {"expert_bits", "draft_bits", "merged_lanes"};
    assert_int_equal(cJSON_GetArraySize(not_built), 3);
    for (size_t i = 0; i < 3; i++)
        assert_non_null(cJSON_GetStringValue(cJSON_GetObjectItem(not_built, keys[i])));
    cJSON_Delete(j);
    outcome_free(&o);
}

struct refused {
    const char *command;
    int status;
    const char *said;
};

static const struct refused refused[] = {
    {"$D plan", 2, "plan needs a description of the hardware: --hardware F"},
    {"$D plan --hardware nowhere", 1, "nowhere"},
    {PLAN "--set duks=3", 2, "unknown key 'duks'; plan --json prints every key"},
    {PLAN "--set ducks=1e9", 2, "ducks is 1000000000, it can be a whole number 1 to 256"},
    {PLAN "--scheme other", 2, "it can be reference|duckd"},
    {PLAN "--model nowhere", 1, "nowhere"},
    {"echo '{\"duck\": 3}' > h; $D plan --hardware h", 1, "h: unknown key 'duck'; known: ducks "},
    {"echo '{\"ducks\": \"3\"}' > h; $D plan --hardware h", 1, "h: ducks is \"3\", it must be a number"},
    {"echo '{\"ducks\": 3}' > h; $D plan --hardware h", 1, "h: key duck_memory_gib is missing"},
    {"echo '{\"ducks\": 0.5}' > h; $D plan --hardware h", 1,
     "h: ducks is 0.5, it can be a whole number 1 to 256"},
    {"echo '[]' > h; $D plan --hardware h", 1, "h: is not a JSON object"},
    {PLAN "--bench nowhere", 1, "nowhere/summary.json"},
    {"mkdir -p g; echo '{}' > g/summary.json; " PLAN "--bench g", 1,
     "g/summary.json: has no model, cases or hardware"},
    {"mkdir -p g; echo '{\"model\": \"m\", \"cases\": [], \"hardware\": {\"ducks\": 1, \"duck_gflops\": "
     "null}}' > "
     "g/summary.json; " PLAN "--bench g",
     1, "g/summary.json: hardware was not measured"},
    {"mkdir -p g; echo '{\"model\": \"m\", \"cases\": [], \"backend\": \"cpu\", \"hardware\": {\"ducks\": 1, "
     "\"duck_gflops\": 1, \"duck_bandwidth_gb_s\": 1, \"kv_bytes\": 2}}' > g/summary.json; " PLAN "--bench g",
     1, "g/summary.json: hardware has no times of the CPU backend: an older bench wrote it"},
    {"mkdir -p g; echo '{\"model\": \"m\", \"cases\": [], \"backend\": \"cuda\", \"hardware\": {\"ducks\": "
     "1, "
     "\"duck_gflops\": 1, \"duck_bandwidth_gb_s\": 1, \"kv_bytes\": 2}}' > g/summary.json; $D plan --model "
     "$S/configs/deepseek-v3.2.json --hardware $S/configs/hardware-epyc-1thread.json --bench g",
     1, "the run used a GPU, the hardware file has none: gpu is 0"},
};

static void refusals_name_the_key(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct outcome o = run("%s", refused[i].command);
        if (!strstr(o.err, refused[i].said) || o.status != refused[i].status)
            print_error("%s: status %d, %s\n", refused[i].command, o.status, o.err);
        assert_int_equal(o.status, refused[i].status);
        assert_non_null(strstr(o.err, refused[i].said));
        assert_string_equal(o.out, "");
        outcome_free(&o);
    }
}

/* A run's summary with one number replaced; NULL: none. */
static void write_summary(const char *key, const char *value)
{
    static const char whole[] =
        "{\"model\": \"DIR\", \"backend\": \"cpu\", \"mtp\": true, \"synthetic\": true, "
        "\"distinct_experts\": 16, \"hardware\": {\"local\": true, \"clock\": \"wall\", \"ducks\": 1, "
        "\"kv_bytes\": 4, \"rows\": 256, \"duck_bandwidth_gb_s\": 8.5, \"duck_gflops\": 50.1, "
        "\"backend_row_ms\": 0.4, \"backend_layer_ms\": 0.8, \"pair_bandwidth_gb_s\": 9.5, "
        "\"backend_pair_ms\": 0.5}, \"cases\": [{\"name\": \"a\", \"prompt_tokens\": 20, "
        "\"cached_tokens\": 2, \"output_tokens\": 30, \"draft_share\": 0.9, \"mtp_accept\": 0.6, "
        "\"ttft_ms\": 12.5, \"tpot_ms\": 3.25}]}";
    char text[2048], member[64];
    snprintf(text, sizeof text, "%s", whole);
    if (key) {
        snprintf(member, sizeof member, "\"%s\": ", key);
        const char *at = strstr(whole, member);
        assert_non_null(at);
        at += strlen(member);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, value, at + strcspn(at, ",}"));
    }
    write_scratch("s", text);
    struct outcome o = run_well("mkdir -p r; sed \"s#DIR#$S/models/duckling#\" s > r/summary.json");
    outcome_free(&o);
}

/* Every number that is read of a damaged file is named with what it can be, before anything is printed. */
static void numbers_that_no_run_writes_are_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "distinct_experts", "ducks",         "kv_bytes",         "rows",
        "duck_gflops",      "mtp_accept",    "backend_row_ms",   "duck_bandwidth_gb_s",
        "backend_pair_ms",  "prompt_tokens", "backend_layer_ms", "pair_bandwidth_gb_s",
        "cached_tokens",    "draft_share",   "output_tokens",    "ttft_ms",
        "tpot_ms"};
    static const char *const values[][2] = {{"1e300", "1e+300"},  {"1e999", "inf"},   {"-1", "-1"},
                                            {"1e-300", "1e-300"}, {"\"7\"", "\"7\""}, {"[]", "an array"}};
    const char *plan = "$D plan --hardware $S/configs/hardware-epyc-1thread.json --bench r --json";
    write_summary(NULL, NULL);
    struct outcome o = run_well("%s", plan);
    outcome_free(&o);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            if (!strcmp(values[v][0], "1e-300") &&
                (!strcmp(keys[k], "draft_share") || !strcmp(keys[k], "mtp_accept")))
                continue; // as good as none
            char said[128];
            write_summary(keys[k], values[v][0]);
            snprintf(said, sizeof said, "%s is %s, it ", keys[k], values[v][1]);
            o = run("%s", plan);
            if (o.status != 1 || !strstr(o.err, said) || !strstr(o.err, "r/summary.json: ") ||
                lines_in(o.err) != 1 || o.out_length)
                fail_msg("%s: %s: status %d, %s, stdout %s", keys[k], values[v][0], o.status, o.err, o.out);
            outcome_free(&o);
        }
    }
    write_summary("cached_tokens", "20");
    o = run("%s", plan);
    assert_non_null(strstr(o.err, "case a: cached_tokens is 20 of prompt_tokens 20"));
    outcome_free(&o);
    write_summary("output_tokens", "null");
    o = run("%s", plan);
    assert_non_null(strstr(o.err, "case a: has no prompt_tokens, cached_tokens or output_tokens"));
    outcome_free(&o);
    write_summary("prompt_tokens", "5000"); // of 4096 that the model has
    o = run("%s", plan);
    assert_non_null(strstr(o.err, "case a: prompt_tokens "));
    assert_string_equal(o.out, "");
    outcome_free(&o);
}

/* A run's own ducks in place of the file's, its cases' shapes in place of --set's, and what they took beside.
 */
static void a_run_is_projected_beside_what_it_took(void **state)
{
    (void)state;
    struct outcome o =
        run_well("$D bench --synthetic $S/models/duckling/config.json --threads 1 -n 12 --drafts "
                 "always --csv d -q >&2 && "
                 "$D plan --hardware $S/configs/hardware-epyc-1thread.json --bench d --json");
    cJSON *j = json_of(&o), *summary;
    char *text = read_scratch("d/summary.json", NULL);
    summary = cJSON_Parse(text);
    const cJSON *h = cJSON_GetObjectItem(summary, "hardware"),
                *took = cJSON_GetObjectItem(summary, "cases")->child;
    const cJSON *one = cJSON_GetObjectItem(j, "cases")->child, *tpot = cJSON_GetObjectItem(one, "tpot_ms");
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(h, "duck_bandwidth_gb_s")) > 0.01);
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(h, "duck_gflops")) > 0.01);
    assert_true(fabs(cJSON_GetNumberValue(cJSON_GetObjectItem(h, "duck_gflops")) -
                     cJSON_GetNumberValue(cJSON_GetObjectItem(j, "duck_gflops"))) < 0.01);
    assert_true(fabs(cJSON_GetNumberValue(cJSON_GetObjectItem(took, "tpot_cpu_ms")) -
                     cJSON_GetNumberValue(cJSON_GetObjectItem(tpot, "measured"))) < 1e-3);
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(tpot, "projected")) > 0);
    cJSON_Delete(j);
    cJSON_Delete(summary);
    free(text);
    outcome_free(&o);

    // Twice as fast in the run's file: half the time, whatever the hardware file says. Where reading decides,
    // a run that kept e4m3 read 8 bits instead of 9.
    static const char *const rates[][4] = {{"10", "10", "0.4", "fp9"},
                                           {"20", "20", "0.2", "fp9"},
                                           {"0.1", "1000", "0.4", "fp9"},
                                           {"0.1", "1000", "0.4", "e4m3"}};
    double ms[4];
    for (int i = 0; i < 4; i++) {
        o = run_well(
            "sed -E 's/\"((duck|pair)_bandwidth_gb_s)\": [0-9.]+/\"\\1\": %s/g; "
            "s/\"duck_gflops\": [0-9.]+/\"duck_gflops\": %s/; "
            "s/\"(backend_(row|pair|layer)_ms)\": [0-9.]+/\"\\1\": %s/g; "
            "s/\"expert_format\": \"fp9\"/\"expert_format\": \"%s\"/' d/summary.json > e; mkdir -p f && "
            "mv e f/summary.json && $D plan --hardware $S/configs/hardware-epyc-1thread.json --bench f "
            "--json",
            rates[i][0], rates[i][1], rates[i][2], rates[i][3]);
        j = json_of(&o);
        tpot = cJSON_GetObjectItem(cJSON_GetObjectItem(j, "cases")->child, "tpot_ms");
        ms[i] = cJSON_GetNumberValue(cJSON_GetObjectItem(tpot, "projected"));
        cJSON_Delete(j);
        outcome_free(&o);
    }
    assert_true(ms[1] > 0.49 * ms[0] && ms[1] < 0.6 * ms[0]); // the ducks' pauses stay
    assert_true(ms[3] > 0.88 * ms[2] && ms[3] < 0.9 * ms[2]);
}

/* A small model from a checkpoint's folder works as well. */
static void any_model_can_be_planned(void **state)
{
    (void)state;
    struct outcome o = run_well(PLAN "--model $S/models/duckling --set output_tokens=100 --json");
    cJSON *j = json_of(&o);
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "checkpoint_gb")) < 0.1);
    cJSON_Delete(j);
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_what_the_contract_says),
        cmocka_unit_test(text_has_units_and_says_that_it_is_projected),
        cmocka_unit_test(what_is_not_built_is_said),
        cmocka_unit_test(refusals_name_the_key),
        cmocka_unit_test(numbers_that_no_run_writes_are_refused),
        cmocka_unit_test(a_run_is_projected_beside_what_it_took),
        cmocka_unit_test(any_model_can_be_planned),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
