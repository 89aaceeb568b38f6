/* bench.c: `duckd bench`: a suite, case by case. Everything measured lands in the output directory. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/cli/bench_compare.h"
#include "host/cli/bench_report.h"
#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/interrupt.h"
#include "host/cli/output.h"
#include "host/cli/plot.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define WARM_UP_TOKENS 8
#define WARM_UP_SYNTHETIC 3 // a full-size model's tokens can take seconds
#define SYNTHETIC_PROMPT 16
#define SYNTHETIC_TOKENS 32

struct case_progress {
    struct progress progress;
    const char *name;
    uint32_t limit;
    uint64_t first_cpu_ns;     // of the process but for pauses, at the first token
    struct bench_probe *probe; // what the pauses are for; NULL: none
    size_t seen;               // tokens before the round under way
};

static uint64_t case_cpu_ns(const struct case_progress *p)
{
    return clock_cpu_ns() - (p->probe ? p->probe->cpu_ns : 0);
}

static int on_pause(void *ctx, const struct answer *a, struct error *err)
{
    struct case_progress *p = ctx;
    const bool prefill = p->seen == 0;
    p->seen = a->count;
    return bench_probe_round(p->probe, prefill, err);
}

/* Begins with the first token: the prompt shows its own progress. */
static int on_token(void *ctx, const struct answer *a, size_t index, struct error *err)
{
    struct case_progress *p = ctx;
    (void)a;
    (void)err;
    if (index == 0) p->first_cpu_ns = case_cpu_ns(p);
    if (index == 0) progress_begin(&p->progress, p->name, "tokens", p->limit, 1);
    progress_update(&p->progress, (double)index);
    return 0;
}

/* *ttft_cpu_ms, *tpot_cpu_ms: the process's time to the first token and per token; NAN: not measured.
 * `probe`: for the pauses; NULL: without. */
static int run_case(struct session *s, const struct suite_case *c, uint32_t n, struct bench_probe *probe,
                    struct answer *a, double *ttft_cpu_ms, double *tpot_cpu_ms, struct error *err)
{
    struct case_progress progress = {.name = c->name, .limit = n, .probe = probe};
    struct question q = {
        .prompt = &c->prompt,
        .max_tokens = n,
        .ignore_eos = c->ignore_eos || s->options->ignore_eos,
        .sampling = s->sampling,
        .on_token = on_token,
        .on_pause = probe ? on_pause : NULL,
        .ctx = &progress,
    };
    uint64_t began = case_cpu_ns(&progress);
    int rc = answer_make(s, &q, a, err);
    progress_end(&progress.progress);
    *tpot_cpu_ms = NAN;
    *ttft_cpu_ms = a->count ? (double)(progress.first_cpu_ns - began) * 1e-6 : NAN;
    if (a->count > 1)
        *tpot_cpu_ms =
            (double)(case_cpu_ns(&progress) - progress.first_cpu_ns) * 1e-6 / (double)(a->count - 1);
    return rc;
}

static int save_text(const char *dir, const char *name, const struct answer *a, struct error *err)
{
    char path[4096];
    struct output_file f;
    snprintf(path, sizeof path, "%s/%s.txt", dir, name);
    int rc = output_open(&f, path, err);
    if (rc) return rc;
    fwrite(a->text.text, 1, a->text.length, f.stream);
    return output_commit(&f, err);
}

static int save_csv(const char *dir, const char *name, const struct answer *a, struct error *err)
{
    char path[4096];
    struct output_file f;
    snprintf(path, sizeof path, "%s/%s.csv", dir, name);
    int rc = output_open(&f, path, err);
    if (rc) return rc;
    answer_csv_header(f.stream, a->synthetic);
    for (size_t i = 0; i < a->count; i++) answer_csv_row(f.stream, a, i);
    return output_commit(&f, err);
}

/* stdout.txt and stderr.txt: what was said, beside what was measured. */
struct archive {
    struct output_file out, err;
};

static int archive_open(struct archive *a, const char *dir, struct error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/stdout.txt", dir);
    int rc = output_open(&a->out, path, err);
    if (rc) return rc;
    snprintf(path, sizeof path, "%s/stderr.txt", dir);
    rc = output_open(&a->err, path, err);
    if (rc)
        output_abandon(&a->out);
    else
        log_copy(a->err.stream);
    return rc;
}

/* Also of a run that failed: then the reason is its last line. */
static int archive_close(struct archive *a, int rc, struct error *err)
{
    log_copy(NULL);
    if (rc && err->text[0]) fprintf(a->err.stream, "duckd: %s\n", err->text);
    struct error unsaid;
    int out = output_commit(&a->out, rc ? &unsaid : err);
    int end = output_commit(&a->err, rc || out ? &unsaid : err);
    return rc ? rc : out ? out : end;
}

static int save_flock(const struct bench_run *run, const char *dir, const char *when, struct error *err)
{
    char path[4096];
    struct output_file f;
    snprintf(path, sizeof path, "%s/flock-%s.json", dir, when);
    int rc = output_open(&f, path, err);
    if (rc) return rc;
    bench_flock(f.stream, engine_flock(run->session->engine));
    return output_commit(&f, err);
}

/* What the suite says, or less where -n does. */
static uint32_t answer_limit(const struct options *o, const struct suite_case *c)
{
    return o->n && (!c->n || o->n < c->n) ? (uint32_t)o->n : c->n;
}

/* Runs all cases; on Ctrl-C what is there is reported and -EINTR returned. */
static int run_cases(struct bench_run *run, const struct suite *suite, const char *dir,
                     struct archive *archive, struct error *err)
{
    struct session *s = run->session;
    bool gnuplot = true;
    bench_table_header(stdout, s);
    bench_table_header(archive->out.stream, s);
    int rc = output_finish(err);
    for (size_t i = 0; !rc && i < suite->count; i++) {
        struct answer a = {0};
        struct bench_case *c = &run->cases[run->count++];
        c->what = &suite->cases[i];
        rc = bench_probe_begin(&run->probe, err);
        if (!rc)
            rc = run_case(s, c->what, answer_limit(s->options, c->what), &run->probe, &a, &c->ttft_cpu_ms,
                          &c->tpot_cpu_ms, err);
        c->result = a.result;
        c->tokens = a.count;
        answer_measure(&a, &c->figures);
        c->break_even = engine_break_even(s->engine);
        if (!rc) rc = save_csv(dir, c->what->name, &a, err);
        if (!rc && !s->synthetic) rc = save_text(dir, c->what->name, &a, err);
        if (!rc && gnuplot) rc = plot_latency(dir, c->what->name, &a, &c->plotted, err);
        if (!rc && a.count > 1 && !c->plotted && gnuplot) {
            log_notice("no plots: gnuplot is not installed (apt-get install gnuplot-nox)");
            gnuplot = false;
        }
        if (!rc) {
            bench_table_row(stdout, c);
            bench_table_row(archive->out.stream, c);
            rc = output_finish(err);
        }
        if (!rc && interrupt_seen()) rc = -EINTR;
        answer_free(&a);
    }
    return rc;
}

/* First touch of weights and caches is no model's speed. */
static int warm_up(struct session *s, const struct suite *suite, struct error *err)
{
    struct answer a;
    double unused[2];
    struct suite_case c = suite->cases[0];
    c.name = "warming up";
    if (c.prompt.count > 64) c.prompt.count = 64;
    int rc = run_case(s, &c, s->synthetic ? WARM_UP_SYNTHETIC : WARM_UP_TOKENS, NULL, &a, &unused[0],
                      &unused[1], err);
    answer_free(&a);
    return rc;
}

static uint32_t longest_prompt(const struct suite *suite)
{
    size_t rows = 0;
    for (size_t i = 0; i < suite->count; i++)
        if (suite->cases[i].prompt.count > rows) rows = suite->cases[i].prompt.count;
    return (uint32_t)rows;
}

static int save_summary(const struct bench_run *run, const char *dir, struct error *err)
{
    char path[4096];
    struct output_file f;
    snprintf(path, sizeof path, "%s/summary.json", dir);
    int rc = output_open(&f, path, err);
    if (rc) return rc;
    bench_summary(f.stream, run);
    return output_commit(&f, err);
}

static int run_suite(struct bench_run *run, const struct suite *suite, const char *dir,
                     struct archive *archive, struct error *err)
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(run->started, sizeof run->started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    run->cases = calloc(suite->count, sizeof *run->cases);
    if (!run->cases) return error_set(err, -ENOMEM, "out of memory");
    int rc = save_flock(run, dir, "before", err);
    interrupt_catch(false); // to the end: what is asked for between two cases counts, too
    if (!rc) rc = warm_up(run->session, suite, err);
    if (!rc) rc = bench_probe_open(&run->probe, run->session->engine, longest_prompt(suite), err);
    if (!rc) rc = interrupt_seen() ? -EINTR : run_cases(run, suite, dir, archive, err);
    interrupt_release();
    if (!rc || rc == -EINTR) {
        int saved = save_flock(run, dir, "after", err);
        if (!saved) saved = save_summary(run, dir, err);
        if (saved) rc = saved;
    }
    if (!rc) log_notice("results are in %s", dir);
    bench_probe_close(&run->probe);
    free(run->cases);
    return rc;
}

static int prepare(struct session *s, struct suite *suite, char path[4096], const struct options *o,
                   struct error *err)
{
    int rc;
    if (o->synthetic) {
        snprintf(path, 4096, "synthetic");
        rc = session_prepare_synthetic(s, o, err);
        if (rc) return rc;
        return suite_synthetic(suite, s, o->prompt_tokens ? (uint32_t)o->prompt_tokens : SYNTHETIC_PROMPT,
                               o->n ? (uint32_t)o->n : SYNTHETIC_TOKENS, err);
    }
    rc = session_prepare(s, o, SESSION_CHAT, err);
    if (rc) return rc;
    if (o->suite)
        snprintf(path, 4096, "%s", o->suite);
    else
        input_find_shared("configs/suite-duckling.json", path);
    return suite_read(suite, path, s, err);
}

int command_bench(const struct options *o, int argc, char **argv, struct error *err)
{
    if (o->compare.count) return bench_compare(stdout, o->compare.item[0], o->compare.item[1], err);
    struct session s = {0};
    struct suite suite = {0};
    char path[4096] = "";
    int rc = prepare(&s, &suite, path, o, err);
    if (!rc) rc = output_directory(o->csv, err);
    struct archive archive;
    bool archived = false;
    if (!rc) {
        rc = archive_open(&archive, o->csv, err);
        archived = !rc;
    }
    uint64_t start = clock_ns();
    if (!rc) rc = session_load(&s, err);
    struct bench_run run = {.session = &s,
                            .suite_path = path,
                            .suite_name = suite.name,
                            .argc = argc,
                            .argv = argv,
                            .load_s = (double)(clock_ns() - start) / 1e9};
    if (!rc) rc = run_suite(&run, &suite, o->csv, &archive, err);
    suite_free(&suite);
    session_close(&s); // with -v it says what the ducks have done
    return archived ? archive_close(&archive, rc, err) : rc;
}
