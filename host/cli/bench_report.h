/* bench_report.h: what `duckd bench` says: a table for people, summary.json for programs. */
#ifndef DUCKD_HOST_CLI_BENCH_REPORT_H
#define DUCKD_HOST_CLI_BENCH_REPORT_H

#include "host/cli/answer.h"
#include "host/cli/bench_probe.h"
#include "host/cli/suite.h"

struct bench_case {
    const struct suite_case *what;
    struct answer_figures figures;
    struct generation_result result;
    size_t tokens;                   // generated
    double ttft_cpu_ms, tpot_cpu_ms; // of all cores: until the first token, from it on
    double break_even;               // acceptance above which drafts paid by the end of the case
    bool plotted;
};

struct bench_run {
    struct session *session;
    const char *suite_path, *suite_name;
    int argc;
    char **argv;
    char started[40]; // ISO 8601, UTC
    double load_s;
    struct bench_probe probe;
    struct bench_case *cases; // (count) that were run
    size_t count;
};

void bench_table_header(FILE *to, const struct session *s);
void bench_table_row(FILE *to, const struct bench_case *c);
/* JSON: an array of the ducks' own counters. */
void bench_flock(FILE *to, struct flock *flock);
void bench_summary(FILE *to, const struct bench_run *run);

#endif
