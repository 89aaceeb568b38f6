/* figures.c: the figures and the CSV of an answer. Nothing is estimated: what was not measured is NAN. */
#include <math.h>
#include <stdlib.h>

#include "host/cli/answer.h"
#include "host/cli/output.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest-rank percentile of values[count], ascending. */
static double percentile(const double *values, size_t count, double p)
{
    size_t rank = (size_t)ceil(p / 100 * (double)count);
    return values[rank ? rank - 1 : 0];
}

static void measure_tpot(const struct answer *a, struct answer_figures *out)
{
    size_t n = a->count - 1; // intervals between tokens
    double *t = malloc(n * sizeof *t);
    if (!t) return;
    for (size_t i = 0; i < n; i++) t[i] = a->token[i + 1].tpot_ms;
    qsort(t, n, sizeof *t, by_value);
    out->tpot_p50 = percentile(t, n, 50);
    out->tpot_p90 = percentile(t, n, 90);
    out->tpot_p99 = percentile(t, n, 99);
    free(t);
}

/* Backend and ducks are busy gpu + flock within rounds that took as long as their tokens' intervals; what
 * does not fit one after the other ran at the same time. An accepted draft shares its round with the token
 * before. */
static double measure_overlap(const struct answer *a)
{
    double busy = 0, wall = 0;
    for (size_t i = 1; i < a->count; i++) {
        const struct answer_token *t = &a->token[i];
        wall += t->tpot_ms;
        if (!t->accepted) busy += t->gpu_ms + t->flock_ms + t->wait_ms;
    }
    if (wall <= 0 || busy <= 0) return NAN;
    return busy > wall ? (busy - wall) / wall : 0;
}

void answer_measure(const struct answer *a, struct answer_figures *out)
{
    const struct generation_result *r = &a->result;
    *out = (struct answer_figures){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (a->count) {
        out->ttft_ms = a->token[0].t_ms;
        if (r->prefill_ms > 0) {
            out->prefill_tok_s = 1000.0 * (r->prompt_tokens - r->cached_tokens) / r->prefill_ms;
        }
    }
    if (a->count > 1) {
        double span = a->token[a->count - 1].t_ms - a->token[0].t_ms;
        out->tpot_ms = span / (double)(a->count - 1);
        out->decode_tok_s = span > 0 ? 1000.0 / out->tpot_ms : NAN;
        measure_tpot(a, out);
        out->overlap = measure_overlap(a);
    }
    if (r->drafts_proposed) out->mtp_accept = (double)r->drafts_accepted / r->drafts_proposed;
}

const char *finish_reason_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_CANCELLED:
        return "cancelled";
    case FINISH_ERROR:
        return "error";
    default:
        return "none";
    }
}

void answer_csv_header(FILE *to)
{
    fputs("index,token_id,text,t_ms,tpot_ms,lane,accepted,gpu_ms,flock_ms,wait_ms\r\n", to);
}

void answer_csv_row(FILE *to, const struct answer *a, size_t index)
{
    const struct answer_token *t = &a->token[index];
    fprintf(to, "%zu,%d,", index, t->id);
    output_csv_field(to, a->pieces.text + t->text_at, t->text_length);
    fprintf(to, ",%.3f,%.3f,%u,%d,%.3f,%.3f,%.3f\r\n", t->t_ms, t->tpot_ms, t->lane, t->accepted, t->gpu_ms,
            t->flock_ms, t->wait_ms);
}
