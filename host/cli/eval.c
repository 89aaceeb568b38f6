/* eval.c: `duckd eval`: how well the model predicts given tokens. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/logprob.h"
#include "host/cli/output.h"
#include "host/cli/session.h"
#include "host/util/log.h"

struct evaluation {
    struct ids *lists;
    size_t count, positions, tokens; // lists; their positions in all; those that are predicted
    // the list under way
    const struct ids *ids;
    uint32_t vocab;
    size_t before; // tokens of the lists before
    double nll;
    struct progress progress;
};

static void on_row(void *ctx, uint32_t position, const float *logits)
{
    struct evaluation *e = ctx;
    if (position + 1 < e->ids->count) e->nll -= logprob(logits, e->vocab, e->ids->id[position + 1]);
}

static void on_progress(void *ctx, uint32_t done, uint32_t total)
{
    struct evaluation *e = ctx;
    (void)total;
    progress_update(&e->progress, (double)(e->before + done));
}

static int check_lists(const struct session *s, struct evaluation *e, struct error *err)
{
    size_t all = 0;
    for (size_t i = 0; i < e->count; i++) {
        char name[64] = "the array";
        if (e->count > 1) snprintf(name, sizeof name, "array %zu", i);
        int rc = input_check_ids(&e->lists[i], s->config.vocab_size, name, err);
        if (!rc) rc = session_check_length(s, e->lists[i].count, name, err);
        if (rc) {
            error_prefix(err, "%s", input_name(s->options->tokens));
            return rc;
        }
        e->tokens += e->lists[i].count - 1;
        all += e->lists[i].count;
    }
    if (e->tokens == 0) {
        return error_set(err, -EINVAL, "%s: nothing to predict: an array needs at least 2 tokens",
                         input_name(s->options->tokens));
    }
    e->positions = all;
    return 0;
}

static int evaluate(struct session *s, struct evaluation *e, struct error *err)
{
    struct engine_rows rows = {.row = on_row, .progress = on_progress, .ctx = e};
    e->vocab = s->config.vocab_size;
    progress_begin(&e->progress, "evaluating", "tokens", (double)e->positions, 1);
    int rc = 0;
    for (size_t i = 0; !rc && i < e->count; i++) {
        e->ids = &e->lists[i];
        if (e->ids->count > 1)
            rc = engine_evaluate(s->engine, e->ids->id, (uint32_t)e->ids->count, 0, &rows, err);
        e->before += e->ids->count;
    }
    progress_end(&e->progress);
    if (rc) return rc;
    double mean = e->nll / (double)e->tokens;
    printf("{\"tokens\": %zu, \"nll\": ", e->tokens);
    output_json_number(stdout, mean, 9);
    fputs(", \"perplexity\": ", stdout);
    output_json_number(stdout, exp(mean), 6);
    puts("}");
    return output_finish(err);
}

int command_eval(const struct options *o, struct error *err)
{
    struct session s;
    struct evaluation e = {0};
    int rc = session_prepare(&s, o, SESSION_IDS, err);
    if (rc) return rc;
    s.mtp = false; // nothing looks at it
    rc = input_id_lists(o->tokens, &e.lists, &e.count, err);
    if (!rc) rc = check_lists(&s, &e, err);
    if (!rc) rc = session_load(&s, err);
    if (!rc) rc = evaluate(&s, &e, err);
    for (size_t i = 0; i < e.count; i++) ids_free(&e.lists[i]);
    free(e.lists);
    session_close(&s);
    return rc;
}
