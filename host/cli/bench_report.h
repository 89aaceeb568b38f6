/* bench_report.h: what `duckd bench` says: a table for people, summary.json for programs. */
#ifndef DUCKD_HOST_CLI_BENCH_REPORT_H
#define DUCKD_HOST_CLI_BENCH_REPORT_H

#include "host/cli/answer.h"
#include "host/cli/suite.h"
#include "host/engine/probe.h"

struct bench_case {
    const struct suite_case *what;
    struct answer_figures figures;
    struct generation_result result;
    size_t tokens;                   // generated
    double ttft_cpu_ms, tpot_cpu_ms; // of all cores: until the first token, from it on
    double break_even;               // acceptance above which drafts paid by the end of the case
    bool plotted;
};

/* What the ducks did by themselves, before the cases and after them (host/engine/probe.h). */
struct bench_probe {
    struct engine_probe one, many; // steps of one row; of as many as a chunk of the suite's prompts has
};

struct bench_run {
    struct session *session;
    const char *suite_path, *suite_name;
    int argc;
    char **argv;
    char started[40]; // ISO 8601, UTC
    double load_s;
    struct bench_probe probe[2];
    struct bench_case *cases; // (count) that were run
    size_t count;
};

void bench_table_header(FILE *to, const struct session *s);
void bench_table_row(FILE *to, const struct bench_case *c);
/* JSON: an array of the ducks' own counters. */
void bench_flock(FILE *to, struct flock *flock);
void bench_summary(FILE *to, const struct bench_run *run);

#endif
