/* bench_test.c: `duckd bench --synthetic` and what a run leaves behind. */
#include "support.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define RUN                                                                                                  \
    "$D bench --synthetic $S/models/duckling/config.json --synthetic-layers 1 --synthetic-experts 8 -n 12 "  \
    "-q "

static void every_output_of_a_synthetic_run_says_so(void **state)
{
    (void)state;
    struct outcome o = run(RUN "--csv d");
    assert_int_equal(o.status, 0);
    assert_int_equal(strncmp(o.out, "SYNTHETIC: random weights", 25), 0);
    outcome_free(&o);
    char *csv = read_scratch("d/synthetic.csv", NULL), *script = read_scratch("d/synthetic.gp", NULL),
         *summary = read_scratch("d/summary.json", NULL);
    assert_non_null(strstr(csv, ",wait_ms,synthetic\r\n"));
    assert_int_equal(lines_in(csv), 1 + 12);
    int marked = 0;
    for (const char *at = csv; (at = strstr(at, ",1\r\n")); at++) marked++;
    assert_int_equal(marked, 12);
    assert_non_null(strstr(script, "title = 'synthetic (synthetic: random weights)'"));
    cJSON *j = cJSON_Parse(summary);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(j, "synthetic")));
    assert_int_equal(cJSON_GetObjectItem(j, "distinct_experts")->valueint, 8);
    const cJSON *duck = cJSON_GetObjectItem(j, "ducks")->child;
    assert_true(cJSON_GetObjectItem(duck, "expert_reads")->valueint > 12 * 5 * 4);
    cJSON_Delete(j);
    free(csv);
    free(script);
    free(summary);
}

/* What was said, by what and to whom is beside what was measured; of a run that failed, why. */
static void a_run_is_archived_whole(void **state)
{
    (void)state;
    struct outcome o =
        run("$D bench --synthetic $S/models/duckling/config.json -n 5 -v --csv e > said 2> log;"
            "cmp said e/stdout.txt && grep -v '^duckd: \\|/s  ETA ' log > l2; cmp l2 e/stderr.txt && cat "
            "e/summary.json");
    assert_int_equal(o.status, 0);
    cJSON *j = json_of(&o);
    static const char *const keys[] = {"command", "started", "machine", "versions", "ducks", "cases"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(cJSON_GetObjectItem(j, keys[i]));
    outcome_free(&o);
    double steps[2];
    static const char *const states[] = {"e/flock-before.json", "e/flock-after.json"};
    for (int i = 0; i < 2; i++) {
        char *text = read_scratch(states[i], NULL);
        cJSON *flock = cJSON_Parse(text);
        assert_int_equal(cJSON_GetArraySize(flock), 1);
        steps[i] = cJSON_GetObjectItem(flock->child, "steps")->valuedouble;
        cJSON_Delete(flock);
        free(text);
    }
    assert_true(steps[0] == 0 &&
                steps[1] ==
                    cJSON_GetObjectItem(cJSON_GetObjectItem(j, "ducks")->child, "steps")->valuedouble);
    cJSON_Delete(j);

    o = run("$D bench --synthetic $S/models/duckling/config.json --csv f --flock nowhere.json");
    assert_int_equal(o.status, 1);
    char *text = read_scratch("f/stderr.txt", NULL);
    assert_string_equal(text, o.err);
    free(text);
    outcome_free(&o);
}

/* The model's path in summary.json holds wherever it is read. */
static void plan_reads_a_run_from_another_directory(void **state)
{
    (void)state;
    struct outcome o = run("here=$PWD; (cd $S && $D bench --synthetic models/duckling/config.json -n 2 -q "
                           "--csv \"$here/g\" > /dev/null) && "
                           "$D plan --hardware $S/configs/hardware-reference.json --bench g --json");
    if (o.status) print_error("%s", o.err);
    assert_int_equal(o.status, 0);
    cJSON_Delete(json_of(&o));
    outcome_free(&o);
}

/* Ctrl-C ends the suite in whichever step of a case it comes: in the only one of an answer of one token, too.
 */
static void an_interrupted_suite_ends(void **state)
{
    static const char *const bench[] = {
        "bench", "--csv", "i", "--suite", "i.json", "--model", SOURCE_DIR "/models/duckling", NULL};
    (void)state;
    struct outcome made =
        run("(printf '{\"cases\": ['; for i in $(seq 400); do [ $i = 1 ] || printf ,; printf "
            "'{\"name\": \"case-%%s\", \"n\": 1, \"tokens\": [0' $i; for t in $(seq 400); do printf "
            "',%%s' $t; done; printf ']}'; done; printf ']}') > i.json");
    assert_int_equal(made.status, 0);
    outcome_free(&made);
    struct child c = child_start(0, bench);
    child_expect(&c, 0, "case-1 ");
    kill(c.pid, SIGINT);
    assert_int_equal(child_end(&c), 130);
    made = run("ls i");
    assert_null(strstr(made.out, "case-400.csv"));
    assert_non_null(strstr(made.out, "summary.json"));
    outcome_free(&made);
}

/* Whose weights are shared decides what is computed; who computes it does not. */
static void a_synthetic_text_does_not_depend_on_the_ducks(void **state)
{
    (void)state;
    struct outcome o =
        run("for f in local:1 local:3 'local:2 --mtp 0'; do " RUN
            "--csv d --flock $f > /dev/null || exit 1; cut -d, -f2 d/synthetic.csv > \"t$f\"; done;"
            "cmp tlocal:1 tlocal:3 && cmp tlocal:1 'tlocal:2 --mtp 0' && sort -u tlocal:1 | wc -l");
    assert_int_equal(o.status, 0);
    assert_true(atoi(o.out) > 6); // ids differ: it is no loop of one
    outcome_free(&o);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int status;
        const char *says;
    } cases[] = {
        {"--synthetic nowhere.json", 1, "nowhere.json"},
        {"--synthetic $S/models/duckling/config.json --synthetic-experts 3", 1,
         "3 experts are held, but a token chooses 4"},
        {"--synthetic $S/models/duckling/config.json --prompt-tokens 5000", 1, "holds 4096 positions"},
        {"--synthetic $S/models/duckling/config.json --suite s.json", 2, "--synthetic has no --suite"},
        {"--synthetic-layers 2", 2, "--synthetic-layers needs --synthetic"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o = run("$D bench --csv d %s", cases[i].arguments);
        if (o.status != cases[i].status || !strstr(o.err, cases[i].says))
            print_error("%s: status %d, %s\n", cases[i].arguments, o.status, o.err);
        assert_int_equal(o.status, cases[i].status);
        assert_non_null(strstr(o.err, cases[i].says));
        outcome_free(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_output_of_a_synthetic_run_says_so),
        cmocka_unit_test(a_run_is_archived_whole),
        cmocka_unit_test(plan_reads_a_run_from_another_directory),
        cmocka_unit_test(an_interrupted_suite_ends),
        cmocka_unit_test(a_synthetic_text_does_not_depend_on_the_ducks),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("cli bench", tests, NULL, remove_scratch);
}
