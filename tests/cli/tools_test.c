/* tools_test.c: wrong options of the benches beside duckd: one line that names what cannot be and what can.
 */
#include <string.h>

#include "tests/cli/support.h"

struct refusal {
    const char *command, *message;
};

static const struct refusal refusals[] = {
    {"bench-duck --format fp8",
     "bench-duck: --format can be fp9 or e4m3, not 'fp8' (try: bench-duck --help)"},
    {"bench-duck --kernels sse", "--kernels can be scalar, avx2, avx2-l2 or avx512, not 'sse'"},
    {"bench-duck --hidden 100", "--hidden is 100, it must be a multiple of 32"},
    {"bench-duck --width 0", "--width is 0, it can be 8 to 131072"},
    {"bench-duck --tokens 12x", "--tokens takes a number, not '12x'"},
    {"bench-duck --threads -1", "--threads takes a number, not '-1'"},
    {"bench-duck --threads ''", "--threads takes a number, not ''"},
    {"bench-duck --repeat 18446744073709551617", "--repeat is 18446744073709551617, it can be 1 to 101"},
    {"bench-duck --experts 4 --top-k 8", "--top-k is 8, --experts 4"},
    {"bench-duck --threads 2 --cpu-time", "--cpu-time is for one thread, --threads is 2"},
    {"bench-duck stray", "there is no use for 'stray'"},
    {"bench-duck --nope", "--nope"},
    {"bench-duck --hidden", "--hidden"},
    {"synth-model --out /tmp/x", "synth-model: --config CONFIG.json is missing (try: synth-model --help)"},
    {"synth-model --config x --out /tmp/x y", "synth-model: there is no use for y"},
    {"synth-model --config x --out /tmp/x --shards 0", "--shards 0: must be an integer 1 to 1000"},
    {"bench-wire --help", "bench-wire: there is no use for '--help', it takes no arguments"},
    {"bench-net", "bench-net: --flock FILE is missing (try: bench-net --help)"},
    {"bench-net --flock f --lanes 5", "--lanes is 5, it can be 1 to 4"},
    {"bench-net --flock f --result fp8", "--result can be f32 or bf16, not 'fp8'"},
    {"bench-net --flock f --compare 3 --steps 10", "--compare needs --steps 256 or more, not 10"},
    {"bench-net --flock nowhere", "flock 'nowhere' is neither local, local:N nor a file"},
    {"duck-linux --udp", "duck-linux: this option needs a value: '--udp' (try: duck-linux --help)"},
    {"duck-linux -xy", "duck-linux: unknown option: '-x' (try: duck-linux --help)"},
    {"duck-linux --nope", "duck-linux: unknown option: '--nope' (try: duck-linux --help)"},
    {"duck-linux --udp 127.0.0.1 stray", "duck-linux: unexpected argument: 'stray' (try: duck-linux --help)"},
    {"duck-linux --udp 127.0.0.1", "duck-linux: --key FILE is missing (try: duck-linux --help)"},
#ifdef HAS_BENCH_GPU
    {"bench-gpu stray", "bench-gpu: there is no use for 'stray' (try: bench-gpu --help)"},
    {"bench-gpu --chunk 0", "--chunk is 0, it can be 1 to 65536"},
    {"bench-gpu --context 2048,3", "--context is 3, it can be 5 to 1048576"},
    {"bench-gpu --context 2048,", "--context takes a number, not ''"},
    {"bench-gpu --context 9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9", "it can be 16 numbers at most"},
    {"bench-gpu --ducks 2 many", "--ducks takes a number, not 'many'"},
    {"bench-gpu --ducks 2", "--ducks takes 2 values, there is 1"},
    {"bench-gpu --delay", "--delay takes 1 value, there are 0"},
#endif
};

static void bad_options_get_one_line(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct outcome o = run("${D%%/*}/%s", r->command);
        if (o.status == 0 || !strstr(o.err, r->message) || lines_in(o.err) != 1 || o.out_length) {
            print_error("%s\n  status %d\n  stdout: %s\n  stderr: %s  expected: %s\n", r->command, o.status,
                        o.out, o.err, r->message);
            wrong++;
        }
        outcome_free(&o);
    }
    assert_int_equal(wrong, 0);
}

static void help_is_on_stdout(void **state)
{
    (void)state;
    struct outcome o =
        run("for b in bench-duck bench-net synth-model; do ${D%%/*}/$b --help || echo BAD; done");
    assert_string_equal(o.err, "");
    assert_null(strstr(o.out, "BAD"));
    assert_non_null(strstr(o.out, "usage: bench-duck"));
    assert_non_null(strstr(o.out, "usage: bench-net"));
    assert_non_null(strstr(o.out, "usage: synth-model"));
    outcome_free(&o);
#ifdef HAS_BENCH_GPU
    o = run("${D%%/*}/bench-gpu --help");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "usage: bench-gpu"));
    outcome_free(&o);
#endif
}

/* All of a bank's experts at once in 8 bits a weight: the plain rows, in 9, must stay within its memory. */
static void plain_rows_stay_within_the_bank(void **state)
{
    (void)state;
    struct outcome o = run("${D%%/*}/bench-duck --format e4m3 --experts 2 --top-k 2 --width 64 --hidden 4096 "
                           "--repeat 1 --csv");
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    assert_non_null(strstr(o.out, "plain F16C GEMV"));
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_get_one_line),
        cmocka_unit_test(help_is_on_stdout),
        cmocka_unit_test(plain_rows_stay_within_the_bank),
    };
    return cmocka_run_group_tests_name("cli tools", tests, NULL, remove_scratch);
}
