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

/* The lanes' times at backend and ducks, one after the other, would have been the serial time of the rounds.
 * An accepted draft shares its round with the token before. */
static double measure_pair(const struct answer *a)
{
    double serial = 0, passed = 0;
    for (size_t i = 1; i < a->count; i++) {
        const struct answer_token *t = &a->token[i];
        passed += t->tpot_ms;
        if (!t->accepted) serial += t->gpu_ms + t->flock_ms;
    }
    return passed > 0 && serial > 0 ? passed / serial : NAN;
}

void answer_measure(const struct answer *a, struct answer_figures *out)
{
    const struct generation_result *r = &a->result;
    *out = (struct answer_figures){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
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
        if (r->rounds) out->round_ms = span / r->rounds;
        measure_tpot(a, out);
        out->pair_over_serial = measure_pair(a);
        out->overlap_gain = 1 - out->pair_over_serial;
    }
    if (r->rounds) out->draft_share = (double)r->drafts_proposed / r->rounds;
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

void answer_csv_header(FILE *to, bool synthetic)
{
    fputs("index,token_id,text,t_ms,tpot_ms,lane,accepted,gpu_ms,flock_ms,wait_ms", to);
    fputs(synthetic ? ",synthetic\r\n" : "\r\n", to);
}

void answer_csv_row(FILE *to, const struct answer *a, size_t index)
{
    const struct answer_token *t = &a->token[index];
    fprintf(to, "%zu,%d,", index, t->id);
    output_csv_field(to, a->pieces.text + t->text_at, t->text_length);
    fprintf(to, ",%.3f,%.3f,%u,%d,%.3f,%.3f,%.3f%s\r\n", t->t_ms, t->tpot_ms, t->lane, t->accepted, t->gpu_ms,
            t->flock_ms, t->wait_ms, a->synthetic ? ",1" : "");
}
