/* compute_test.c: `duckd tokenize`, `logits`, `eval` and `bench`: the shape and the sense of what they write.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cli/support.h"

#define VOCAB 6400

struct text_case {
    const char *command, *out;
};

static const struct text_case tokenizer_cases[] = {
    {"$D tokenize -p ''", "[]\n"},
    {"$D tokenize -p 'What is a duck?'", "[314, 276, 260, 540, 33]\n"},
    {"printf 'What is a duck?' | $D tokenize --file -", "[314, 276, 260, 540, 33]\n"},
    {"printf 'What is a duck?' > f; $D tokenize --file f", "[314, 276, 260, 540, 33]\n"},
    {"$D tokenize -p '<｜User｜>What is a duck?<｜Assistant｜>' --allow-special",
     "[6389, 314, 276, 260, 540, 33, 6390]\n"},
    {"$D tokenize -p '<｜User｜>' | $D tokenize --decode -", "<｜User｜>"}, // plain text, and not token 6389
    {"test $($D tokenize -p '<｜User｜>' | tr , '\\n' | wc -l) -gt 3 && echo several", "several\n"},
    {"echo '[6389, 314, 276, 1]' | $D tokenize --decode -", "<｜User｜>What is<｜end▁of▁sentence｜>"},
    {"echo '[]' | $D tokenize --decode -", ""},
    {"printf '你好\\n\\n 😀\\t' > f; $D tokenize --file f | $D tokenize --decode - | cmp f - && echo same",
     "same\n"},
    {"cd / && $D tokenize -p 'duck?'", "[70, 440, 33]\n"}, // the model is found from anywhere
    // a tokenizer is enough, as packages bring it: no config.json, no weights
    {"mkdir -p t && cp $S/models/duckling/tokenizer.json t && $D tokenize --model t -p 'duck?'",
     "[70, 440, 33]\n"},
};

static void tokenize_prints_ids_and_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tokenizer_cases / sizeof tokenizer_cases[0]; i++) {
        struct outcome o = run("%s", tokenizer_cases[i].command);
        if (strcmp(o.out, tokenizer_cases[i].out)) print_error("%s: %s\n", tokenizer_cases[i].command, o.err);
        assert_string_equal(o.out, tokenizer_cases[i].out);
        assert_int_equal(o.status, 0);
        outcome_free(&o);
    }
}

static void write_ids(void)
{
    write_scratch("ids", "[0, 6389, 314, 276, 260, 540, 33, 6390]");
}

static void logits_are_rows_of_floats(void **state)
{
    (void)state;
    size_t all_bytes, last_bytes;
    write_ids();
    struct outcome o =
        run("$D logits --tokens ids --out all -q && $D logits --tokens ids --out last --last 3 -q");
    assert_int_equal(o.status, 0);
    assert_string_equal(o.out, "");
    assert_string_equal(o.err, "");
    char *all = read_scratch("all", &all_bytes), *last = read_scratch("last", &last_bytes);
    assert_int_equal(all_bytes, 8 * VOCAB * sizeof(float));
    assert_int_equal(last_bytes, 3 * VOCAB * sizeof(float));
    assert_memory_equal(all + 5 * VOCAB * sizeof(float), last, last_bytes);
    outcome_free(&o);

    float row[VOCAB];
    memcpy(row, last + 2 * sizeof row, sizeof row);
    int best = 0;
    for (int i = 1; i < VOCAB; i++) best = row[i] > row[best] ? i : best;
    o = run("$D generate --tokens ids --json -n 1 --mtp 0");
    cJSON *j = json_of(&o);
    assert_int_equal(cJSON_GetObjectItem(j, "tokens")->child->valueint, best);
    cJSON_Delete(j);
    outcome_free(&o);
    free(all);
    free(last);
}

struct dumped {
    const char *name, *dtype;
    int dims, shape[3];
};

/* 8 positions, --last 3: 6 layers (5 with experts), 256 wide, 4 of 32 experts; everything is within the
 * indexer's reach. */
static const struct dumped dumped[] = {
    {"ids", "I32", 1, {8}},
    {"logits_rows", "I32", 1, {3}},
    {"logits", "F32", 2, {3, VOCAB}},
    {"argmax", "I32", 1, {8}},
    {"next_logprob", "F32", 1, {7}},
    {"hidden", "F32", 3, {7, 8, 256}},
    {"final_norm", "F32", 2, {8, 256}},
    {"router_layers", "I32", 1, {5}},
    {"router_ids", "I32", 3, {5, 8, 4}},
    {"router_weights", "F32", 3, {5, 8, 4}},
    {"mtp_rows", "I32", 1, {2}},
    {"mtp_logits", "F32", 2, {2, VOCAB}},
    {"mtp_argmax", "I32", 1, {7}},
    {"mtp_hidden", "F32", 2, {7, 256}},
    {"mtp_router_ids", "I32", 2, {7, 4}},
    {"mtp_router_weights", "F32", 2, {7, 4}},
    {"index_rows", "I32", 1, {3}},
    {"index_topk", "I32", 3, {6, 3, 8}},
    {"index_scores", "F32", 3, {6, 3, 8}},
    {"index_gap", "F32", 2, {6, 3}},
};

/* Where the data of a dumped tensor is, after its entry was compared with what is expected. */
static const char *dumped_tensor(const cJSON *manifest, const char *image, const struct dumped *d)
{
    const cJSON *t = cJSON_GetObjectItem(cJSON_GetObjectItem(manifest, "tensors"), d->name);
    if (!t) print_error("%s is missing\n", d->name);
    assert_non_null(t);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(t, "dtype")), d->dtype);
    const cJSON *shape = cJSON_GetObjectItem(t, "shape");
    assert_int_equal(cJSON_GetArraySize(shape), d->dims);
    for (int i = 0; i < d->dims; i++) assert_int_equal(cJSON_GetArrayItem(shape, i)->valueint, d->shape[i]);
    return image + (size_t)cJSON_GetObjectItem(t, "byte_offset")->valuedouble;
}

static const char *find_dumped(const cJSON *manifest, const char *image, const char *name)
{
    for (size_t i = 0; i < sizeof dumped / sizeof dumped[0]; i++) {
        if (!strcmp(dumped[i].name, name)) return dumped_tensor(manifest, image, &dumped[i]);
    }
    fail();
    return NULL;
}

static void check_dump(const cJSON *manifest, const char *image, const char *logits)
{
    for (size_t i = 0; i < sizeof dumped / sizeof dumped[0]; i++) dumped_tensor(manifest, image, &dumped[i]);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(manifest, "tensors")),
                     sizeof dumped / sizeof dumped[0]);
    assert_memory_equal(find_dumped(manifest, image, "logits"), logits, 3 * VOCAB * sizeof(float));
    int32_t rows[3], experts[5 * 8 * 4], topk[8];
    memcpy(rows, find_dumped(manifest, image, "logits_rows"), sizeof rows);
    assert_int_equal(rows[0], 5);
    assert_int_equal(rows[2], 7);
    memcpy(experts, find_dumped(manifest, image, "router_ids"), sizeof experts);
    for (size_t i = 0; i < 5 * 8 * 4; i++) assert_true(i % 4 == 0 || experts[i] > experts[i - 1]);
    memcpy(topk, find_dumped(manifest, image, "index_topk"), sizeof topk); // of position 5: 0 .. 5
    for (int i = 0; i < 8; i++) assert_int_equal(topk[i], i <= 5 ? i : -1);
    float scores[8], weights[4], hidden[256];
    memcpy(scores, find_dumped(manifest, image, "index_scores"), sizeof scores);
    assert_true(isfinite(scores[5]) && isinf(scores[6]) && scores[6] < 0);
    memcpy(weights, find_dumped(manifest, image, "router_weights"), sizeof weights);
    assert_true(fabsf(weights[0] + weights[1] + weights[2] + weights[3] - 2.5f) < 1e-4f);
    const char *last_hidden = find_dumped(manifest, image, "hidden") + (7 * 8 - 1) * sizeof hidden;
    float sum = 0;
    memcpy(hidden, last_hidden, sizeof hidden);
    for (int i = 0; i < 256; i++) sum += hidden[i] * hidden[i];
    assert_true(sum > 0 && isfinite(sum));
}

static void a_dump_holds_what_the_goldens_hold(void **state)
{
    (void)state;
    write_ids();
    struct outcome o =
        run("$D logits -q --tokens ids --out out --last 3 --dump d/e && ls d/e && cat d/e/manifest.json >&2");
    assert_int_equal(o.status, 0);
    assert_string_equal(o.out, "goldens.safetensors\nmanifest.json\n");
    cJSON *manifest = cJSON_Parse(o.err);
    assert_non_null(manifest);
    char *image = read_scratch("d/e/goldens.safetensors", NULL), *logits = read_scratch("out", NULL);
    check_dump(manifest, image, logits);
    cJSON_Delete(manifest);
    free(image);
    free(logits);
    outcome_free(&o);
}

/* A model of the older architecture, its MTP layer left alone. */
static void a_dump_leaves_out_what_the_model_does_not_have(void **state)
{
    (void)state;
    write_scratch("few", "[1, 2, 3]");
    struct outcome o =
        run("$D logits --model $S/tests/goldens/v3-tiny --mtp 0 --tokens few --out out --dump d3 && "
            "cat d3/manifest.json");
    cJSON *manifest = json_of(&o), *tensors = cJSON_GetObjectItem(manifest, "tensors");
    assert_non_null(cJSON_GetObjectItem(tensors, "router_ids"));
    assert_null(cJSON_GetObjectItem(tensors, "mtp_logits"));
    assert_null(cJSON_GetObjectItem(tensors, "index_topk"));
    cJSON_Delete(manifest);
    outcome_free(&o);
}

static double member(const struct outcome *o, const char *name)
{
    cJSON *j = json_of(o);
    const cJSON *item = cJSON_GetObjectItem(j, name);
    assert_true(cJSON_IsNumber(item));
    double x = item->valuedouble;
    cJSON_Delete(j);
    return x;
}

static void eval_is_the_mean_over_predicted_tokens(void **state)
{
    (void)state;
    write_ids();
    write_scratch("short", "[0, 6389, 1686]");
    write_scratch("both", "[[0, 6389, 314, 276, 260, 540, 33, 6390], [0, 6389, 1686], [5]]");
    struct outcome a = run("$D eval --tokens ids"), b = run("$D eval --tokens - < short"),
                   c = run("$D eval --tokens both --flock local:2");
    assert_int_equal(lines_in(a.out), 1);
    assert_int_equal(member(&a, "tokens"), 7);
    assert_int_equal(member(&b, "tokens"), 2);
    assert_int_equal(member(&c, "tokens"), 9);
    double mean = (7 * member(&a, "nll") + 2 * member(&b, "nll")) / 9;
    assert_true(fabs(member(&c, "nll") - mean) < 1e-6);
    assert_true(fabs(member(&c, "perplexity") / exp(mean) - 1) < 1e-5);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
}

static void a_suite_leaves_csv_text_plot_and_summary(void **state)
{
    (void)state;
    write_scratch("q.txt", "What is the capital of Japan?");
    write_scratch("suite.json", "{\"name\": \"s\", \"n\": 24, \"cases\": ["
                                "{\"name\": \"one\", \"prompt\": \"Hello\", \"ignore_eos\": true},"
                                "{\"name\": \"two\", \"prompt_file\": \"q.txt\", \"n\": 1},"
                                "{\"name\": \"three\", \"repeat\": \"A duck swims. \", \"repeat_tokens\": "
                                "90, \"n\": 2, \"prompt\": \"What is a duck?\"},"
                                "{\"name\": \"four\", \"tokens\": [0, 6389, 1686, 6390], \"n\": 3}]}");
    struct outcome o = run("$D bench --suite suite.json --csv r/s -q && cat r/s/summary.json >&2");
    assert_int_equal(o.status, 0);
    assert_int_equal(lines_in(o.out), 2 + 4);
    cJSON *j = cJSON_Parse(o.err), *cases = cJSON_GetObjectItem(j, "cases");
    assert_int_equal(cJSON_GetArraySize(cases), 4);
    static const int tokens[] = {24, 1, 2, 3};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(cases, i), "output_tokens")->valueint,
                         tokens[i]);
    }
    int repeated = cJSON_GetObjectItem(cJSON_GetArrayItem(cases, 2), "prompt_tokens")->valueint;
    assert_true(repeated > 80 && repeated <= 92);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(cases, 1), "tpot_ms")));
    const cJSON *duck = cJSON_GetObjectItem(j, "ducks")->child;
    assert_true(cJSON_GetObjectItem(duck, "expert_bytes")->valuedouble > 0);
    outcome_free(&o);
    cJSON_Delete(j);

    o = run("cp -r r/s r/t && sed -i 's/\"name\": \"two\"/\"name\": \"2\"/' r/t/summary.json && $D bench "
            "--compare r/s r/t");
    assert_int_equal(o.status, 0);
    static const char *const said[] = {
        "A: r/s\nB: r/t\n", "one                  output, tokens", "TPOT p99, ms",
        "overlap gain",     "two                  only in A",      "2                    only in B"};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) assert_non_null(strstr(o.out, said[i]));
    assert_non_null(strstr(o.out, "       24.00        24.00   1.000\n"));
    outcome_free(&o);

    char *csv = read_scratch("r/s/one.csv", NULL);
    assert_int_equal(lines_in(csv), 1 + 24);
    free(csv);
    o = run("grep -c '^Hello! I am Duckling' r/s/one.txt; gnuplot --version >/dev/null 2>&1 || exit 0; "
            "head -c 4 r/s/one.png | tail -c 3; echo; grep -c '</svg>' r/s/one.svg; ls r/s | grep -c part-");
    if (strcmp(o.out, "1\n") != 0) assert_string_equal(o.out, "1\nPNG\n1\n0\n");
    outcome_free(&o);
}

static void a_bench_without_gnuplot_says_so_and_goes_on(void **state)
{
    (void)state;
    write_scratch("suite.json", "{\"cases\": [{\"name\": \"one\", \"prompt\": \"Hello\", \"n\": 3}]}");
    struct outcome o = run("PATH=/nowhere $D bench --suite suite.json --csv p");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "no plots: gnuplot is not installed"));
    outcome_free(&o);
}

/* As on a full disk, where gnuplot itself ends well. */
static void a_drawing_without_its_end_is_an_error(void **state)
{
    (void)state;
    write_scratch("suite.json", "{\"cases\": [{\"name\": \"one\", \"prompt\": \"Hello\", \"n\": 3}]}");
    static const struct {
        const char *svg, *png, *says;
    } cases[] = {
        {"<svg>", "IEND\\256B`\\202",
         "duckd: drawn/one.svg: gnuplot could not write all of it: is the disk full?\n"},
        {"</svg>\\n\\n", "", "duckd: drawn/one.png: gnuplot could not write all of it: is the disk full?\n"},
        {"", "\\211PNG", "duckd: drawn/one.svg: gnuplot could not write all of it: is the disk full?\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o = run(
            "mkdir -p bin && printf '#!/bin/sh\\nprintf \"%%%%b\" \"$SVG\" > one.svg; printf \"%%%%b\" "
            "\"$PNG\" > "
            "one.png\\n' > bin/gnuplot && chmod +x bin/gnuplot && SVG='%s' PNG='%s' PATH=\"$PWD/bin:$PATH\" "
            "$D bench --suite suite.json --csv drawn -q",
            cases[i].svg, cases[i].png);
        assert_int_equal(o.status, 1);
        assert_string_equal(o.err, cases[i].says);
        outcome_free(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize_prints_ids_and_text),
        cmocka_unit_test(logits_are_rows_of_floats),
        cmocka_unit_test(a_dump_holds_what_the_goldens_hold),
        cmocka_unit_test(a_dump_leaves_out_what_the_model_does_not_have),
        cmocka_unit_test(eval_is_the_mean_over_predicted_tokens),
        cmocka_unit_test(a_suite_leaves_csv_text_plot_and_summary),
        cmocka_unit_test(a_bench_without_gnuplot_says_so_and_goes_on),
        cmocka_unit_test(a_drawing_without_its_end_is_an_error),
    };
    return cmocka_run_group_tests_name("cli compute", tests, NULL, remove_scratch);
}
