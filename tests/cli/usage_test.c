/* usage_test.c: the command line itself: what is refused and how, what --help and --config do. Loads no
 * model. */
#include <stdio.h>
#include <string.h>

#include "tests/cli/support.h"

struct refusal {
    const char *command; // behind duckd
    int status;
    const char *message; // that stderr holds, in its one line
};

static const struct refusal refusals[] = {
    {"", 2, "no command given (try: duckd --help)"},
    {"quack", 2, "unknown command 'quack' (try: duckd --help)"},
    {"--nope", 2, "unknown option '--nope'"},
    {"generate", 2,
     "generate needs a prompt: -p TEXT, --prompt-file F or --tokens F (try: duckd generate --help)"},
    {"generate -p", 2, "-p needs a value: TEXT"},
    {"generate -p x --nope", 2, "unknown option '--nope'"},
    {"generate -p x --nope=1", 2, "unknown option '--nope'"},
    {"generate -p x --dump d", 2, "generate does not take the option '--dump'"},
    {"generate -p x stray", 2, "unexpected argument 'stray'"},
    {"generate -p x -p y --tokens t", 2, "-p and --tokens are given, only one of them can be"},
    {"generate -p x --flock local:0", 2, "flock 'local:0': the number of local ducks must be 1 .. 256"},
    {"chat --flock local:many", 2, "flock 'local:many': the number of local ducks must be 1 .. 256"},
    {"help quack", 2, "unknown command 'quack'"},
    {"help generate chat", 2, "unexpected argument 'chat'"},
    {"generate -p x --temperature warm", 2, "--temperature takes a number, not 'warm'"},
    {"generate -p x --temperature -0.5", 2, "--temperature is -0.5, it can be 0 to 100"},
    {"generate -p x --temperature nan", 2, "--temperature takes a number, not 'nan'"},
    {"generate -p x --top-p 1.01", 2, "--top-p is 1.01, it can be 0 to 1"},
    {"generate -p x --top-k 2.5", 2, "--top-k takes a whole number, not '2.5'"},
    {"generate -p x -n 0", 2, "-n is 0, it can be 1 to"},
    {"generate -p x -n 5x", 2, "-n takes a whole number, not '5x'"},
    {"generate -p x --seed -1", 2, "--seed is '-1'"},
    {"generate -p x --seed 18446744073709551616", 2, "--seed is '18446744073709551616'"},
    {"generate -p x --backend gpu", 2, "--backend is 'gpu', it can be auto|cpu|cuda"},
    {"generate -p x --mtp 2", 2, "--mtp is '2', it can be 0|1"},
    {"generate -p x --wire-result fp8", 2, "--wire-result is 'fp8', it can be f32|bf16"},
    {"generate -p x --expert-format bf16", 2, "--expert-format is 'bf16', it can be fp9|e4m3"},
    {"generate -p x --kv-dtype f16", 2, "--kv-dtype is 'f16', it can be f32|bf16|fp8"},
    {"generate -p x --gpu-shared yes", 2, "--gpu-shared is 'yes', it can be auto|on|off"},
    {"generate -p x --threads 0", 2, "--threads is 0, it can be 1 to 1024"},
    {"generate -p x --logit-bias 7", 2, "--logit-bias takes ID=BIAS, as in 42=-5, not '7'"},
    {"generate -p x --logit-bias 7=101", 2, "--logit-bias of token 7 is 101, it can be -100 to 100"},
    {"generate -p x --stop ''", 2, "--stop is empty"},
    {"generate -p x --json=yes", 2, "--json takes no value"},
    {"generate --raw --think -p x", 2, "--think belongs to the chat encoding, which --raw leaves out"},
    {"generate -p x --config missing.json", 2, "missing.json: cannot be opened: No such file or directory"},
    {"bench", 2, "bench needs a directory for its results: --csv DIR"},
    {"logits --tokens t", 2, "logits needs a file for its result: --out F"},
    {"logits --out t", 2, "logits needs token ids: --tokens F"},
    {"logits --tokens t --out o --last 0", 2, "--last is 0, it can be 1 to"},
    {"eval", 2, "eval needs token ids: --tokens F"},
    {"tokenize", 2, "tokenize needs a text or ids"},
    {"tokenize -p x --decode y", 2, "-p and --decode are given, only one of them can be"},
    {"tokenize --decode y --allow-special", 2, "--allow-special is for text"},
    {"generate -p x --model ''", 2, "--model is empty"},
    {"generate -p x --model nowhere", 1, "nowhere/config.json"},
    {"generate --prompt-file missing.txt", 1, "missing.txt: cannot be opened: No such file or directory"},
    {"generate --tokens missing.json", 1, "missing.json: cannot be opened: No such file or directory"},
    {"generate -p x --logit-bias 6400=1", 1,
     "--logit-bias names token 6400, the model's vocabulary has 6400"},
    {"generate -p x --backend cpu --gpu-shared on", 1,
     "--gpu-shared on: the cpu backend leaves the model's 1 shared experts to the flock"},
    {"generate -p x --csv .", 1, ".: cannot be written: it is a directory"},
    {"generate -p x --csv no/x.csv", 1, "no/x.csv: cannot be written: No such file or directory"},
    {"logits --tokens two.json --out no/x", 1, "no/x: cannot be written: No such file or directory"},
    {"logits --tokens two.json --out x --last 3", 1, "--last is 3, two.json has 2 tokens"},
    {"logits --tokens two.json --out x --dump two.json", 1, "two.json: "},
    {"logits --tokens text.json --out x", 1, "text.json: element 1 is \"a\", not a token id"},
    {"logits --tokens object.json --out x", 1, "object.json: not a JSON array of token ids"},
    {"logits --tokens broken.json --out x", 1, "broken.json: not JSON, see line 2"},
    {"logits --tokens deep.json --out x", 1, "deep.json: nested deeper than 1000 in line 2"},
    {"eval --tokens one.json", 1, "one.json: nothing to predict: an array needs at least 2 tokens"},
    {"eval --tokens large.json", 1,
     "large.json: array 1: element 0 is token 6400, the model's vocabulary has 6400"},
    {"generate --tokens empty.json", 1, "the prompt has no tokens"},
    {"generate --tokens long.json", 1, "the prompt has 4097 tokens, "},
    {"tokenize --decode large1.json", 1,
     "large1.json: element 0 is token 6400, the model's vocabulary has 6400"},
    {"tokenize --file missing.txt", 1, "missing.txt: cannot be opened"},
    {"serve --listen nonsense", 2, "--listen is 'nonsense', it has to be ADDRESS:PORT"},
    {"serve --listen host:80", 2, "--listen is 'host:80': 'host' is no IP address"},
    {"serve --listen 127.0.0.1:99999", 2, "--listen is '127.0.0.1:99999'"},
    {"serve --listen 127.0.0.1:0 --cors nonsense", 2, "--cors is 'nonsense', it can be * or an origin"},
    {"serve --listen 127.0.0.1:0 --cors http://", 2, "--cors is 'http://', it can be * or an origin"},
    {"serve --listen 127.0.0.1:0 --cors https://a.example/", 2, "--cors is 'https://a.example/'"},
    {"serve --listen 127.0.0.1:0 --api-keys .", 1, ".: cannot be read: Is a directory"},
    {"serve --listen 127.0.0.1:0 --api-keys keys.txt", 1, "keys.txt: line 2 has a byte 0x01"},
    {"serve --listen 127.0.0.1:0 --api-keys long-key.txt", 1,
     "long-key.txt: line 2 has 16385 bytes, a key can have 16384"},
    {"serve --api-keys missing.txt", 1, "missing.txt: cannot be opened"},
    {"serve --lanes 0", 2, "--lanes is 0, it can be 1 to 256"},
    {"serve --queue -1", 2, "--queue is -1, it can be 0 to 10000"},
    {"serve --max-body 2000", 2, "--max-body is 2000, it can be 1 to 1024"},
    {"serve --kv-dir-size 0", 2, "--kv-dir-size is 0, it can be 1 to"},
    {"serve --kv-dir d --kv-cache 0", 2, "--kv-dir d: KV comes back through --kv-cache, which is 0"},
    {"serve --temperature 1", 2, "serve does not take the option '--temperature'"},
    {"serve stray", 2, "unexpected argument 'stray'"},
    {"generate -p x --kv-dir d", 2, "generate does not take the option '--kv-dir'"},
    {"bench --compare a", 2, "--compare needs two values: A B"},
    {"bench --compare a b", 1, "a/summary.json"},
    {"bench --csv d --suite broken.json", 1, "broken.json: not JSON, see line 2"},
    {"bench --csv d --suite suite1.json", 1, "suite1.json: case 1 (a): unknown key 'promt'"},
    {"bench --csv d --suite suite2.json", 1, "suite2.json: case 2 (a): its name is taken"},
    {"bench --csv d --suite suite3.json", 1, "suite3.json: case 1 (../a): needs a name of letters"},
    {"bench --csv d --suite suite4.json", 1, "suite4.json: case 1 (a): has 2 prompts, it needs one"},
    {"bench --csv two.json", 1, "two.json: "},
    {"flock", 2, "flock needs what to do: status, doctor, wake, boot, reboot or off"},
    {"flock dance --flock two.json", 2, "flock cannot do 'dance', it can do status, doctor, wake,"},
    {"flock reboot --flock two.json", 2, "flock reboot needs the names of ducks"},
    {"flock status", 2, "flock needs the flock's file: --flock FILE"},
    {"flock status --flock local", 1, "flock status: local has local ducks only"},
    {"generate -p x --csv loop", 1, "loop: cannot be written: a link to nowhere: Too many levels"},
    {"generate -p x --csv dangling", 1, "dangling: cannot be written: a link to nowhere: No such file"},
    {"generate -p x --model pipes", 1, "pipes/tokenizer.json: not a regular file"},
};

static void write_inputs(void)
{
    write_scratch("two.json", "[1, 2]");
    write_scratch("one.json", "[1]");
    write_scratch("empty.json", "[]");
    write_scratch("text.json", "[1, \"a\"]");
    write_scratch("object.json", "{}");
    write_scratch("broken.json", "[1,\n2,");
    char deep[1100];
    snprintf(deep, sizeof deep, "[\n%01000d", 0);
    memset(deep + 2, '[', 1000);
    write_scratch("deep.json", deep);
    write_scratch("large.json", "[[1, 2], [6400, 1]]");
    write_scratch("large1.json", "[6400]");
    write_scratch("suite1.json", "{\"cases\": [{\"name\": \"a\", \"promt\": \"x\"}]}");
    write_scratch(
        "suite2.json",
        "{\"cases\": [{\"name\": \"a\", \"prompt\": \"x\"}, {\"name\": \"a\", \"prompt\": \"x\"}]}");
    write_scratch("suite3.json", "{\"cases\": [{\"name\": \"../a\", \"prompt\": \"x\"}]}");
    write_scratch("suite4.json", "{\"cases\": [{\"name\": \"a\", \"prompt\": \"x\", \"tokens\": [1]}]}");
    write_scratch("keys.txt", "key\nk\001ey\n");
    struct outcome o =
        run("(printf '[1'; for i in $(seq 4096); do printf ',1'; done; printf ']') > long.json;"
            "for n in 16384 16385; do head -c $n /dev/zero | tr '\\0' k; echo; done > long-key.txt;"
            "ln -s loop loop; ln -s nothing dangling; mkdir pipes; mkfifo pipes/tokenizer.json;"
            "cp $S/models/duckling/config.json pipes");
    assert_int_equal(o.status, 0);
    outcome_free(&o);
}

static void bad_input_gets_one_line_and_a_status(void **state)
{
    (void)state;
    int wrong = 0;
    write_inputs();
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct outcome o = run("$D %s", r->command);
        if (o.status != r->status || !strstr(o.err, r->message) || lines_in(o.err) != 1 || o.out_length ||
            strncmp(o.err, "duckd: ", 7) != 0) {
            print_error("duckd %s\n  status %d, expected %d\n  stdout: %s\n  stderr: %s  expected: %s\n",
                        r->command, o.status, r->status, o.out, o.err, r->message);
            wrong++;
        }
        outcome_free(&o);
    }
    assert_int_equal(wrong, 0);
}

/* What has not been opened yet must not be closed: that would end the process by an assertion of libuv. */
static void few_descriptors_are_said(void **state)
{
    (void)state;
    struct outcome o = run("for f in 3 4 5 6 7 8 9; do eval \"exec $f<&-\"; done; ulimit -n 8; "
                           "$D serve --listen 127.0.0.1:0");
    if (o.status != 1) print_error("status %d: %s\n", o.status, o.err);
    assert_int_equal(o.status, 1);
    assert_int_equal(lines_in(o.err), 1);
    assert_non_null(strstr(o.err, "too many open files"));
    outcome_free(&o);
}

/* With less than a kernel takes of it there would be a fault. */
static void a_small_stack_is_said(void **state)
{
    (void)state;
    struct outcome o = run("ulimit -s 256; $D generate --model $S/models/duckling -p hi -n 2");
    assert_int_equal(o.status, 1);
    assert_int_equal(lines_in(o.err), 1);
    assert_non_null(strstr(o.err, "the stack may grow to 256 KiB, 768 are needed (ulimit -s 768)"));
    outcome_free(&o);
    o = run("ulimit -s 768; $D generate --model $S/models/duckling -p hi -n 2 --threads 2");
    assert_int_equal(o.status, 0);
    outcome_free(&o);
}

static void a_refused_output_leaves_nothing_behind(void **state)
{
    (void)state;
    struct outcome o =
        run("$D logits --tokens large1.json --out left; $D generate --tokens large1.json --csv left; ls");
    assert_null(strstr(o.out, "left"));
    outcome_free(&o);
}

/* Help is for people: on stdout, within 100 columns, naming every option that works. */
static void help_explains_every_command(void **state)
{
    static const struct {
        const char *command, *holds;
    } cases[] = {
        {"", "generate"},         {"", "tokenize"},           {"generate", "--logit-bias ID=BIAS"},
        {"generate", "--raw"},    {"chat", "--no-history"},   {"bench", "--suite F"},
        {"logits", "--dump DIR"}, {"eval", "--tokens F"},     {"tokenize", "--allow-special"},
        {"eval", "--kv-dtype"},   {"generate", "--mtp 0|1"},  {"generate", "models/duckling"},
        {"logits", "--config"},   {"chat", "--system"},       {"bench", "--threads"},
        {"plan", "--bench DIR"},  {"doctor", "--flock FILE"}, {"flock", "--flock FILE"},
        {"serve", "--listen"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o = run("$D %s --help", cases[i].command);
        assert_int_equal(o.status, 0);
        assert_string_equal(o.err, "");
        assert_non_null(strstr(o.out, cases[i].holds));
        int column = 0;
        for (const char *c = o.out; *c; c++) {
            column = *c == '\n' ? 0 : column + 1;
            assert_true(column <= 100);
        }
        outcome_free(&o);
    }
}

static void help_lists_no_command_that_does_not_exist(void **state)
{
    (void)state;
    struct outcome o =
        run("$D --help; for c in $($D --help | sed -n 's/^  \\([a-z]*\\)   *.*/\\1/p'); do "
            "$D $c --help >help1 && $D help $c >help2 && cmp help1 help2 || echo BAD $c; done; "
            "$D --help >help1; $D help | cmp help1 || echo BAD; $D --version");
    assert_int_equal(o.status, 0);
    assert_null(strstr(o.out, "BAD"));
    assert_non_null(strstr(o.out, "\nduckd 0."));
    outcome_free(&o);
}

struct config_case {
    const char *config, *command;
    int status;
    const char *out, *err; // that stdout is and stderr holds
};

/* tokenize shows what was read without a model being run. */
static const struct config_case config_cases[] = {
    {"{\"prompt\": \"<think>\", \"allow-special\": true}", "tokenize", 0, "[6384]\n", ""},
    {"{\"prompt\": \"<think>\", \"allow_special\": true}", "tokenize", 0, "[6384]\n", ""},
    {"{\"p\": \"<think>\", \"allow-special\": true}", "tokenize -p '</think>'", 0, "[6385]\n", ""},
    {"{\"p\": \"<think>\", \"allow-special\": true}", "tokenize --file end.txt", 0, "[6385]\n", ""},
    {"{\"allow-special\": false}", "tokenize -p '' ", 0, "[]\n", ""},
    {"{\"temperature\": 0.5, \"stop\": [\"a\"], \"suite\": \"x\"}", "tokenize -p ''", 0, "[]\n", ""},
    {"{\"tempo\": 1}", "tokenize -p ''", 2, "", "c.json: unknown key 'tempo'"},
    {"{\"config\": \"c.json\"}", "tokenize -p ''", 2, "", "'config' is for the command line alone"},
    {"{\"threads\": 0}", "tokenize -p ''", 2, "", "c.json: --threads is 0, it can be 1 to 1024"},
    {"{\"threads\": [1]}", "tokenize -p ''", 2, "", "threads takes a string or a number"},
    {"{\"threads\": true}", "tokenize -p ''", 2, "", "threads takes a string or a number"},
    {"{\"threads\": {}}", "tokenize -p ''", 2, "", "as a string), not an object (try: "},
    {"{\"model\": 5}", "tokenize -p ''", 2, "", "c.json: model takes a string, not 5 (try: "},
    {"{\"model\": [\"a\"]}", "tokenize -p ''", 2, "", "c.json: model takes a string, not an array (try: "},
    {"{\"stop\": [\"a\", 5]}", "generate -p x", 2, "", "c.json: stop takes a string, not 5 (try: "},
    {"{\"stop\": true}", "generate -p x", 2, "", "c.json: stop takes a string, not true (try: "},
    {"{\"logit-bias\": [5]}", "generate -p x", 2, "", "c.json: logit-bias takes a string, not 5 (try: "},
    {"{\"logit-bias\": {\"5\": 1}}", "generate -p x", 2, "",
     "logit-bias takes a string, not an object (try: "},
    {"{\"mtp\": false}", "tokenize -p ''", 0, "[]\n", ""},
    {"{\"allow-special\": 1}", "tokenize -p ''", 2, "", "allow-special is true or false, not 1 (try: "},
    {"{\"prompt\": \"a\", \"file\": \"b\"}", "tokenize", 2, "", "both prompt and file are given"},
    {"[1]", "tokenize -p ''", 2, "", "c.json: a configuration is one JSON object"},
    {"{\"seed\": 18446744073709551615}", "generate -p x", 2, "", "seed takes a string or a number"},
    {"{\"temperature\": \"x\"}", "generate -p x", 2, "", "--temperature takes a number, not 'x'"},
};

static void config_file_is_read_like_the_command_line(void **state)
{
    (void)state;
    int wrong = 0;
    write_scratch("end.txt", "</think>");
    for (size_t i = 0; i < sizeof config_cases / sizeof config_cases[0]; i++) {
        const struct config_case *c = &config_cases[i];
        write_scratch("c.json", c->config);
        struct outcome o = run("$D %s --config c.json", c->command);
        if (o.status != c->status || strcmp(o.out, c->out) != 0 || !strstr(o.err, c->err)) {
            print_error("%s with %s\n  status %d, stdout %s, stderr %s\n", c->command, c->config, o.status,
                        o.out, o.err);
            wrong++;
        }
        outcome_free(&o);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_input_gets_one_line_and_a_status),
        cmocka_unit_test(few_descriptors_are_said),
        cmocka_unit_test(a_small_stack_is_said),
        cmocka_unit_test(a_refused_output_leaves_nothing_behind),
        cmocka_unit_test(help_explains_every_command),
        cmocka_unit_test(help_lists_no_command_that_does_not_exist),
        cmocka_unit_test(config_file_is_read_like_the_command_line),
    };
    return cmocka_run_group_tests_name("cli usage", tests, NULL, remove_scratch);
}
