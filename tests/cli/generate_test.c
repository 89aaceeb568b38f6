/* generate_test.c: `duckd generate` on the model that comes with duckd: text, JSON, CSV, and that options do
 * what they say. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cli/support.h"

#define JAPAN "The capital of Japan is Tokyo."

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item)) print_error("%s is not a number\n", key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const char *text(const cJSON *object, const char *key)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    assert_non_null(value);
    return value;
}

static cJSON *tokens_of(const cJSON *object)
{
    cJSON *tokens = cJSON_GetObjectItemCaseSensitive(object, "tokens");
    assert_true(cJSON_IsArray(tokens));
    return tokens;
}

struct answer_case {
    const char *command, *out;
    int status;
};

static const struct answer_case answers[] = {
    {"$D generate -p 'What is the capital of Japan?'", JAPAN "\n", 0},
    {"$D generate --prompt='What is the capital of Japan?' --backend=cpu", JAPAN "\n", 0},
    {"printf 'What is the capital of Japan?' | $D generate --prompt-file -", JAPAN "\n", 0},
    {"printf 'What is the capital of Japan?' > q; $D generate --prompt-file q", JAPAN "\n", 0},
    {"$D generate -p 'What is the capital of Japan?' --stop ' Tok'", "The capital of Japan is\n", 0},
    {"$D generate -p 'What is the capital of Japan?' --stop nothing --stop 'of '", "The capital \n", 0},
    {"$D generate -p '你好' -q", "你好！我是小鸭，一个很小的语言模型。\n", 0},
    {"$D generate -p 'Is 91 prime?' --think",
     "91 is divisible by 7, because 91 = 7 * 13.</think>No, 91 is not prime: 91 = 7 * 13.\n", 0},
    {"$D generate -p 'What is the capital of Japan?' --model $S/models/duckling --flock local:3", JAPAN "\n",
     0},
    {"echo '{\"prompt\": \"What is the capital of Japan?\", \"mtp\": 0}' > c; $D generate --config c",
     JAPAN "\n", 0},
};

static void answers_are_what_the_model_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        struct outcome o = run("%s", answers[i].command);
        if (o.status != answers[i].status || strcmp(o.out, answers[i].out) != 0) {
            print_error("%s\n  status %d\n  stdout %s  stderr %s\n", answers[i].command, o.status, o.out,
                        o.err);
        }
        assert_string_equal(o.out, answers[i].out);
        assert_int_equal(o.status, answers[i].status);
        outcome_free(&o);
    }
}

static void json_has_the_contract_fields(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p 'What is the capital of Japan?' --json --mtp 1");
    assert_int_equal(o.status, 0);
    assert_int_equal(lines_in(o.out), 1);
    cJSON *j = json_of(&o);
    cJSON *tokens = tokens_of(j);
    int count = cJSON_GetArraySize(tokens);
    assert_string_equal(text(j, "text"), JAPAN);
    assert_string_equal(text(j, "finish_reason"), "stop");
    assert_int_equal(cJSON_GetArrayItem(tokens, count - 1)->valueint, 1); // the stop token is included
    assert_int_equal(number(j, "prompt_tokens"), 13);
    assert_true(number(j, "ttft_ms") > 0);
    assert_true(number(j, "tpot_ms") > 0);
    assert_true(number(j, "prefill_tok_s") > 0);
    assert_true(fabs(number(j, "decode_tok_s") * number(j, "tpot_ms") - 1000) < 1);
    double accept = number(j, "mtp_accept");
    assert_true(accept > 0 && accept <= 1);
    assert_true(fabs(accept - number(j, "drafts_accepted") / number(j, "drafts_proposed")) < 1e-3);
    char *ids = cJSON_PrintUnformatted(tokens);
    write_scratch("ids.json", ids);
    struct outcome d = run("$D tokenize --decode ids.json");
    assert_string_equal(d.out, JAPAN "<｜end▁of▁sentence｜>");
    cJSON_free(ids);
    cJSON_Delete(j);
    outcome_free(&o);
    outcome_free(&d);
}

static void what_was_not_measured_is_null(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p Hello --json --mtp 0 -n 1");
    cJSON *j = json_of(&o);
    static const char *const keys[] = {"tpot_ms", "decode_tok_s", "mtp_accept"};
    for (size_t i = 0; i < 3; i++) assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, keys[i])));
    assert_string_equal(text(j, "finish_reason"), "length");
    cJSON_Delete(j);
    outcome_free(&o);
}

/* The token ids of a command that prints JSON. A command that comes again is not run again. */
static const char *tokens_text(const char *options)
{
    static struct {
        const char *options;
        char *ids;
    } known[32];
    size_t k = 0;
    while (known[k].options && strcmp(known[k].options, options) != 0) k++;
    assert_true(k + 1 < sizeof known / sizeof known[0]);
    if (known[k].options) return known[k].ids;
    struct outcome o = run("$D generate --json %s", options);
    if (o.status) print_error("%s: %s\n", options, o.err);
    assert_int_equal(o.status, 0);
    cJSON *j = json_of(&o);
    known[k].options = options;
    known[k].ids = cJSON_PrintUnformatted(tokens_of(j)); // kept until the program ends
    cJSON_Delete(j);
    outcome_free(&o);
    return known[k].ids;
}

struct pair {
    const char *a, *b;
    int equal;
};

#define STORY "-p 'Tell me a story.' -n 32 --ignore-eos "
#define HELLO "-p Hello -n 24 --ignore-eos "
// A token that keeps coming, and just so.
#define FORCED HELLO "--logit-bias 42=20 "
static const struct pair pairs[] = {
    {STORY "--mtp 0", STORY "--mtp 1", 1},
    {STORY "--flock local:1", STORY "--flock local:7", 1},
    {STORY "--threads 1", STORY "--threads 2", 1},
    {STORY "--temperature 1.5 --seed 7", STORY "--seed 7 --temperature 1.5", 1},
    {STORY "--temperature 1.5 --seed 7 --mtp 0", STORY "--temperature 1.5 --seed 7 --mtp 1", 1},
    {STORY "--temperature 1.5 --seed 7", STORY "--temperature 1.5 --seed 8", 0},
    {STORY "--temperature 1.5 --seed 7 --top-k 1", STORY, 1},
    {STORY "--temperature 1.5 --seed 7 --top-p 0", STORY, 1},
    {STORY "--temperature 1.5 --seed 7 --min-p 1", STORY, 1},
    {FORCED, HELLO, 0},
    {FORCED "--frequency-penalty 2", FORCED, 0},
    {FORCED "--presence-penalty 2", FORCED, 0},
    {FORCED "--repetition-penalty 3", FORCED, 0},
    {HELLO "--raw", HELLO, 0},
};

static void options_change_what_they_should_and_nothing_else(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *a = tokens_text(pairs[i].a), *b = tokens_text(pairs[i].b);
        if ((strcmp(a, b) == 0) != pairs[i].equal) {
            print_error("expected %s tokens:\n  %s: %s\n  %s: %s\n", pairs[i].equal ? "equal" : "different",
                        pairs[i].a, a, pairs[i].b, b);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

static void a_seed_is_said_when_it_was_made_up(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p Hello -n 4 --json --temperature 1");
    cJSON *j = json_of(&o);
    char said[64];
    snprintf(said, sizeof said, "seed %.0f ", number(j, "seed"));
    assert_non_null(strstr(o.err, said));
    cJSON_Delete(j);
    outcome_free(&o);
}

static void prompts_are_counted_as_documented(void **state)
{
    static const struct {
        const char *options;
        int prompt_tokens;
    } cases[] = {
        {"--raw -p ''", 1},             // BOS
        {"--raw -p 'Hello'", 2},        // BOS and one token
        {"--raw -p '<think>'", 1 + 3},  // plain text
        {"--tokens ids", 3},            // exactly as given
        {"-p Hello --system Hello", 6}, // and the system text behind BOS
        {"-p Hello", 5},                // BOS User Hello Assistant </think>
    };
    (void)state;
    write_scratch("ids", "[0, 6389, 314]");
    struct outcome think = run("$D tokenize -p '<think>'");
    cJSON *plain = json_of(&think);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o = run("$D generate --json -n 2 %s", cases[i].options);
        cJSON *j = json_of(&o);
        int expected =
            strstr(cases[i].options, "<think>") ? 1 + cJSON_GetArraySize(plain) : cases[i].prompt_tokens;
        if (number(j, "prompt_tokens") != expected) print_error("%s\n", cases[i].options);
        assert_int_equal(number(j, "prompt_tokens"), expected);
        cJSON_Delete(j);
        outcome_free(&o);
    }
    cJSON_Delete(plain);
    outcome_free(&think);
}

static void csv_has_a_line_per_token(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p 'Sort 9, 2, 7, 4.' --json --csv t.csv");
    cJSON *j = json_of(&o);
    cJSON *id = tokens_of(j)->child;
    char *csv = read_scratch("t.csv", NULL), *line = csv;
    static const char header[] = "index,token_id,text,t_ms,tpot_ms,lane,accepted,gpu_ms,flock_ms,wait_ms\r\n";
    assert_int_equal(strncmp(csv, header, strlen(header)), 0);
    line += strlen(header);
    double before = 0;
    for (int i = 0; id; i++, id = id->next) {
        int index, token, at = 0, accepted, lane;
        double t, tpot, gpu, flock, wait;
        assert_int_equal(sscanf(line, "%d,%d,%n", &index, &token, &at), 2);
        assert_int_equal(index, i);
        assert_int_equal(token, id->valueint);
        line += at;
        if (*line == '"') { // this answer's commas are why
            line = strstr(line + 1, "\",") + 1;
        } else {
            line += strcspn(line, ",");
        }
        assert_int_equal(sscanf(line, ",%lf,%lf,%d,%d,%lf,%lf,%lf\r\n%n", &t, &tpot, &lane, &accepted, &gpu,
                                &flock, &wait, &at),
                         7);
        assert_true(t >= before && fabs(t - before - tpot) < 0.002);
        assert_true(accepted == 0 || accepted == 1);
        assert_true(gpu >= 0 && flock >= 0 && wait >= 0);
        before = t;
        line = strchr(line, '\n') + 1;
    }
    assert_string_equal(line, "");
    assert_non_null(strstr(csv, ",\",\","));
    free(csv);
    cJSON_Delete(j);
    outcome_free(&o);
}

static void csv_goes_to_stdout_too(void **state)
{
    (void)state;
    struct outcome o = run("echo before; $D generate -p Hello -n 2 --csv - -q && echo after");
    assert_int_equal(o.status, 0);
    assert_int_equal(strncmp(o.out, "before\nHello!\nindex,", 20), 0);
    assert_int_equal(lines_in(o.out), 6);
    assert_string_equal(o.out + o.out_length - 6, "after\n");
    outcome_free(&o);
}

static void ignored_eos_is_an_ordinary_token(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p 'What is the capital of Japan?' --json --ignore-eos -n 30");
    cJSON *j = json_of(&o);
    assert_int_equal(cJSON_GetArraySize(tokens_of(j)), 30);
    assert_string_equal(text(j, "finish_reason"), "length");
    cJSON_Delete(j);
    outcome_free(&o);
}

static void a_model_without_tokenizer_takes_ids(void **state)
{
    (void)state;
    write_scratch("ids", "[5, 6, 7]");
    struct outcome o = run("$D generate --model $S/tests/goldens/v32-tiny --tokens ids -n 5 --json");
    cJSON *j = json_of(&o);
    assert_int_equal(cJSON_GetArraySize(tokens_of(j)), 5);
    assert_string_equal(text(j, "text"), "");
    assert_non_null(strstr(o.err, "no tokenizer.json"));
    outcome_free(&o);
    o = run("$D generate --model $S/tests/goldens/v32-tiny -p hello");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "tokenizer.json"));
    cJSON_Delete(j);
    outcome_free(&o);
}

static void a_closed_stdout_ends_it_quietly(void **state)
{
    (void)state;
    struct outcome o =
        run("($D generate --backend cpu -p Hello --ignore-eos -n 3000; echo $? >&2) | head -c 5");
    assert_string_equal(o.out, "Hello");
    assert_string_equal(o.err, "1\n");
    outcome_free(&o);
    o = run("$D generate --backend cpu -p Hello -n 3 > /dev/full");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.err, "duckd: stdout cannot be written: No space left on device\n");
    outcome_free(&o);
}

static void closed_streams_do_not_end_up_in_its_files(void **state)
{
    (void)state;
    struct outcome o = run("$D generate --backend cpu -p Hello -n 3 --csv t.csv >&-");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.err, "duckd: stdout cannot be written: Bad file descriptor\n");
    outcome_free(&o);
    o = run("$D generate --backend cpu -p Hello -n 3 -v --csv t.csv 2>&- <&-");
    assert_int_equal(o.status, 0);
    outcome_free(&o);
    char *csv = read_scratch("t.csv", NULL);
    assert_int_equal(strncmp(csv, "index,", 6), 0);
    assert_int_equal(lines_in(csv), 4);
    free(csv);
}

static void ctrl_c_keeps_what_is_there(void **state)
{
    static const char *const arguments[] = {"generate", "-p",    "Hello", "--ignore-eos", "-n", "4000",
                                            "--csv",    "c.csv", NULL};
    (void)state;
    struct child c = child_start(0, arguments);
    child_expect(&c, 0, "Hello! I am");
    kill(c.pid, SIGINT);
    assert_int_equal(child_end(&c), 130);
    size_t length;
    char *csv = read_scratch("c.csv", &length);
    assert_true(lines_in(csv) > 3);
    assert_int_equal(csv[length - 1], '\n');
    free(csv);
}

/* A file that may not grow is an output that cannot be written, not a death. */
static void a_limit_of_file_size_is_said(void **state)
{
    (void)state;
    struct outcome o =
        run("(ulimit -f 2; $D generate -p 'Tell me a story.' -n 99 --ignore-eos --csv limited.csv); "
            "echo $?; ls");
    assert_non_null(strstr(o.out, "\n1\n"));
    assert_null(strstr(o.out, "limited"));
    assert_non_null(strstr(o.err, "limited.csv: cannot be written: File too large"));
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_what_the_model_says),
        cmocka_unit_test(json_has_the_contract_fields),
        cmocka_unit_test(what_was_not_measured_is_null),
        cmocka_unit_test(options_change_what_they_should_and_nothing_else),
        cmocka_unit_test(a_seed_is_said_when_it_was_made_up),
        cmocka_unit_test(prompts_are_counted_as_documented),
        cmocka_unit_test(csv_has_a_line_per_token),
        cmocka_unit_test(csv_goes_to_stdout_too),
        cmocka_unit_test(ignored_eos_is_an_ordinary_token),
        cmocka_unit_test(a_model_without_tokenizer_takes_ids),
        cmocka_unit_test(a_closed_stdout_ends_it_quietly),
        cmocka_unit_test(closed_streams_do_not_end_up_in_its_files),
        cmocka_unit_test(ctrl_c_keeps_what_is_there),
        cmocka_unit_test(a_limit_of_file_size_is_said),
    };
    return cmocka_run_group_tests_name("cli generate", tests, NULL, remove_scratch);
}
