/* plan_cli_test.c: `duckd plan` from outside: the contract's JSON, text with units, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cli/support.h"

#define PLAN "$D plan --hardware $S/configs/hardware-reference.json "

static void json_has_what_the_contract_says(void **state)
{
    (void)state;
    static const char *const numbers[] = {"cold_start_s", "ttft_s",  "prefill_tok_s",  "tpot_ms",
                                          "decode_tok_s", "pair_ms", "serial_pair_ms", "bottleneck_gain"};
    static const char *const schemes[] = {"reference", "duckd"};
    for (size_t s = 0; s < 2; s++) {
        struct outcome o = run(PLAN "--scheme %s --json", schemes[s]);
        assert_int_equal(o.status, 0);
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
    struct outcome o = run(PLAN);
    assert_int_equal(o.status, 0);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) assert_non_null(strstr(o.out, parts[i]));
    outcome_free(&o);
}

/* What is supposed but not built stands in both outputs; what is built, in neither. */
static void what_is_not_built_is_said(void **state)
{
    (void)state;
    struct outcome o = run(PLAN "&& " PLAN "--scheme reference && " PLAN "--set expert_bits=8");
    assert_int_equal(o.status, 0);
    assert_null(strstr(o.out, "not built"));
    outcome_free(&o);
    o = run(PLAN "--set gpu_duck=1 --set copies=1");
    assert_non_null(strstr(o.out, "\nnot built         gpu_duck=1: "));
    assert_non_null(strstr(o.out, "\n                  copies=1: "));
    outcome_free(&o);
    o = run(PLAN "--set expert_bits=4.5 --set draft_bits=4 --set merged_lanes=1 --json");
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

/* A run's own ducks in place of the file's, its cases' shapes in place of --set's, and what they took beside.
 */
static void a_run_is_projected_beside_what_it_took(void **state)
{
    (void)state;
    struct outcome o = run("$D bench --synthetic $S/models/duckling/config.json --threads 1 -n 12 --drafts "
                           "always --csv d -q >&2 && "
                           "$D plan --hardware $S/configs/hardware-epyc-1thread.json --bench d --json");
    assert_int_equal(o.status, 0);
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
        o = run("sed -E 's/\"((duck|pair)_bandwidth_gb_s)\": [0-9.]+/\"\\1\": %s/g; "
                "s/\"duck_gflops\": [0-9.]+/\"duck_gflops\": %s/; "
                "s/\"(backend_(row|pair|layer)_ms)\": [0-9.]+/\"\\1\": %s/g; "
                "s/\"expert_format\": \"fp9\"/\"expert_format\": \"%s\"/' d/summary.json > e; mkdir -p f && "
                "mv e f/summary.json && $D plan --hardware $S/configs/hardware-epyc-1thread.json --bench f "
                "--json",
                rates[i][0], rates[i][1], rates[i][2], rates[i][3]);
        assert_int_equal(o.status, 0);
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
    struct outcome o = run(PLAN "--model $S/models/duckling --set output_tokens=100 --json");
    assert_int_equal(o.status, 0);
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
        cmocka_unit_test(a_run_is_projected_beside_what_it_took),
        cmocka_unit_test(any_model_can_be_planned),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
