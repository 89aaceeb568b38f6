/* trace_test.c: `--trace FILE`: valid JSON, every row there, spans of a row nest, work lies inside its job.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"
#include "host/util/trace.h"
#include "tests/cli/support.h"

struct event {
    double from, to;
    int row;
    const char *name;
};

static int by_start(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->row != y->row) return x->row - y->row;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->to < y->to) - (x->to > y->to); // the longer one first: it is the outer one
}

static const char *text(const cJSON *event, const char *key)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(event, key));
    return s ? s : "";
}

static double number(const cJSON *event, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(event, key));
}

/* Every span ends before the one around it does. Timestamps have three decimals. */
static void expect_nesting(struct event *events, size_t count)
{
    struct event *open[16];
    size_t depth = 0;
    qsort(events, count, sizeof *events, by_start);
    for (size_t i = 0; i < count; i++) {
        struct event *e = &events[i];
        while (depth > 0 && (open[depth - 1]->row != e->row || open[depth - 1]->to <= e->from + 0.0015))
            depth--;
        if (depth > 0 && e->to > open[depth - 1]->to + 0.0015)
            print_error("row %d: %s [%.3f, %.3f] in %s [%.3f, %.3f]\n", e->row, e->name, e->from, e->to,
                        open[depth - 1]->name, open[depth - 1]->from, open[depth - 1]->to);
        assert_true(depth == 0 || e->to <= open[depth - 1]->to + 0.0015);
        assert_true(depth < 16);
        open[depth++] = e;
    }
}

struct expected {
    const char *name;
    int row, least;
};

/* 24 tokens through 6 layers with drafts; rows: engine 0, lanes 1000 .., ducks 5000 .. */
static const struct expected expected[] = {
    {"prefill chunk", 1000, 1}, {"decode", 1000, 10},        {"mtp", 1000, 10},
    {"backend", 1000, 60},      {"flock", 1000, 60},         {"sample", 0, 24},
    {"round of prefill", 0, 1}, {"round with drafts", 0, 8}, {"compute", 5000, 60},
    {"compute", 5001, 60},      {"compute", 5002, 60},
};

static void check_events(const cJSON *list)
{
    struct event *events = calloc((size_t)cJSON_GetArraySize(list), sizeof *events);
    size_t count = 0;
    int open = 0, names = 0;
    double last = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, list)
    {
        const char *phase = text(e, "ph");
        if (!strcmp(phase, "M")) names++;
        if (!strcmp(phase, "b")) open++;
        if (!strcmp(phase, "e")) open--;
        assert_true(open == 0 || open == 1); // written in pairs
        if (strcmp(phase, "X") != 0) continue;
        double from = number(e, "ts"), span = number(e, "dur");
        assert_true(from >= 0 && span >= 0 && span < 60e6);
        events[count++] = (struct event){from, from + span, (int)number(e, "tid"), text(e, "name")};
        last = fmax(last, from + span);
    }
    assert_int_equal(open, 0);
    assert_true(names >= 1 + 5); // the process and each row
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        int seen = 0;
        for (size_t j = 0; j < count; j++)
            seen += events[j].row == expected[i].row && !strcmp(events[j].name, expected[i].name);
        if (seen < expected[i].least) print_error("%s: %d\n", expected[i].name, seen);
        assert_true(seen >= expected[i].least);
    }
    expect_nesting(events, count);
    free(events);
}

static void a_trace_has_every_row_and_nests(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p 'What is a duck?' -n 24 --ignore-eos --flock local:3 --drafts "
                           "always --trace t.json -q");
    assert_int_equal(o.status, 0);
    size_t length;
    char *json = read_scratch("t.json", &length);
    cJSON *j = cJSON_ParseWithLength(json, length);
    assert_non_null(j);
    check_events(cJSON_GetObjectItem(j, "traceEvents"));
    cJSON_Delete(j);
    free(json);
    outcome_free(&o);
}

static void an_answer_does_not_depend_on_being_traced(void **state)
{
    (void)state;
    struct outcome o =
        run("$D generate -p duck -n 12 -q > a; $D generate -p duck -n 12 -q --trace t > b; cmp a b");
    assert_int_equal(o.status, 0);
    outcome_free(&o);
}

static void an_unwritable_trace_is_refused_first(void **state)
{
    (void)state;
    struct outcome o = run("$D generate -p duck --trace /nowhere/t.json");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "");
    assert_non_null(strstr(o.err, "/nowhere/t.json"));
    outcome_free(&o);
}

/* CPU time of a span, its share of wrapping around in the ring included: the least of many blocks, each long
 * beside the clock. */
static double span_s(void)
{
    enum { BLOCKS = 40, SPANS = 1 << 17 };
    struct error err;
    double least = INFINITY;
    assert_int_equal(trace_start(&err), 0);
    for (int b = 0; b < BLOCKS; b++) {
        uint64_t began = clock_thread_cpu_ns();
        for (uint32_t i = 0; i < SPANS; i++) trace_span(TRACE_LANE, i & 1, "span", i, i + 1, i, i, 1);
        least = fmin(least, (double)(clock_thread_cpu_ns() - began) * 1e-9 / SPANS);
    }
    FILE *nowhere = fopen("/dev/null", "w");
    trace_write(nowhere);
    fclose(nowhere);
    return least;
}

/* All spans of a run, those of its warm-up and prompt too, times the cost of one, beside the CPU time of its
 * tokens. No two runs are compared: the machine's noise is larger than what is asked. */
static void tracing_costs_less_than_2_percent(void **state)
{
    (void)state;
    enum { TOKENS = 200 };
    struct outcome o = run("$D bench --synthetic $S/models/duckling/config.json -n %d --threads 1 --drafts "
                           "always --trace t.json --csv d -q >&2 && cat d/summary.json",
                           TOKENS);
    assert_int_equal(o.status, 0);
    cJSON *j = json_of(&o);
    const cJSON *one = cJSON_GetObjectItem(j, "cases")->child;
    assert_int_equal((int)number(one, "output_tokens"), TOKENS);
    double token_s = number(one, "tpot_cpu_ms") * 1e-3;
    cJSON_Delete(j);
    outcome_free(&o);
    size_t length, spans = 0;
    char *trace = read_scratch("t.json", &length);
    for (const char *at = trace; (at = strstr(at, "\"ph\": \"")); at += 7)
        spans += at[7] == 'X' || at[7] == 'b';
    free(trace);
    double each = (double)spans / TOKENS, share = each * span_s() / token_s;
    print_message("%.0f spans a token of %.0f us, %.1f ns each: %.3f %%\n", each, token_s * 1e6,
                  span_s() * 1e9, share * 100);
    assert_true(each > 20 && token_s > 0);
    assert_true(share < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_has_every_row_and_nests),
        cmocka_unit_test(an_answer_does_not_depend_on_being_traced),
        cmocka_unit_test(an_unwritable_trace_is_refused_first),
        cmocka_unit_test(tracing_costs_less_than_2_percent),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
