/* generate.c: `duckd generate`: one prompt, one answer. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/cli/answer.h"
#include "host/cli/commands.h"
#include "host/cli/input.h"
#include "host/cli/interrupt.h"
#include "host/cli/output.h"
#include "host/cli/prompt.h"
#include "host/util/clock.h"
#include "host/util/log.h"

static int read_prompt(const struct session *s, struct ids *out, double *spent_ms, struct error *err)
{
    const struct options *o = s->options;
    struct prompt_form form = {.system = o->system, .think = o->think, .raw = o->raw};
    char *text = NULL;
    size_t length = o->prompt ? strlen(o->prompt) : 0;
    int rc = 0;
    if (o->tokens) {
        rc = input_ids(o->tokens, out, err);
        if (!rc) rc = input_check_ids(out, s->config.vocab_size, input_name(o->tokens), err);
    } else {
        if (o->prompt_file) rc = input_text(o->prompt_file, &text, &length, err);
        uint64_t start = clock_ns();
        if (!rc) rc = prompt_encode(s, &form, text ? text : o->prompt, length, out, err);
        *spent_ms = (double)(clock_ns() - start) / 1e6;
    }
    if (!rc) rc = session_check_length(s, out->count, "the prompt", err);
    free(text);
    return rc;
}

static int print_text(void *ctx, const char *text, size_t length, struct error *err)
{
    (void)ctx;
    return output_text(text, length, err);
}

static int write_row(void *ctx, const struct answer *a, size_t index, struct error *err)
{
    struct output_file *csv = ctx;
    (void)err; // a full disk is noticed when the file is closed
    answer_csv_row(csv->stream, a, index);
    return 0;
}

static void print_json(const struct session *s, const struct answer *a, const struct ids *prompt)
{
    struct answer_figures f;
    answer_measure(a, &f);
    fputs("{\"text\": ", stdout);
    output_json_string(stdout, a->text.text, a->text.length);
    fputs(", \"tokens\": [", stdout);
    for (size_t i = 0; i < a->count; i++) printf(i ? ", %d" : "%d", a->token[i].id);
    printf("], \"prompt_tokens\": %zu, \"finish_reason\": \"%s\"", prompt->count,
           finish_reason_name(a->result.reason));
    const struct {
        const char *name;
        double value;
        int decimals;
    } numbers[] = {{"ttft_ms", f.ttft_ms, 3},
                   {"tpot_ms", f.tpot_ms, 4},
                   {"decode_tok_s", f.decode_tok_s, 3},
                   {"prefill_tok_s", f.prefill_tok_s, 3},
                   {"mtp_accept", f.mtp_accept, 4}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        printf(", \"%s\": ", numbers[i].name);
        output_json_number(stdout, numbers[i].value, numbers[i].decimals);
    }
    printf(", \"drafts_proposed\": %u, \"drafts_accepted\": %u", a->result.drafts_proposed,
           a->result.drafts_accepted);
    if (s->sampling.temperature > 0) printf(", \"seed\": %" PRIu64, s->sampling.seed);
    puts("}");
}

static void log_figures(const struct answer *a)
{
    struct answer_figures f;
    answer_measure(a, &f);
    log_detail("%u prompt tokens, %zu generated (%s); TTFT %.1f ms, prefill %.1f tok/s, decode %.1f tok/s, "
               "%u of %u drafts accepted",
               a->result.prompt_tokens, a->count, finish_reason_name(a->result.reason), f.ttft_ms,
               f.prefill_tok_s, f.decode_tok_s, a->result.drafts_accepted, a->result.drafts_proposed);
}

static int answer_prompt(struct session *s, const struct ids *prompt, double spent_ms,
                         struct output_file *csv, struct error *err)
{
    const struct options *o = s->options;
    struct answer a;
    struct question q = question_of(s, prompt, spent_ms);
    q.on_text = o->json ? NULL : print_text;
    q.on_token = csv->stream ? write_row : NULL;
    q.ctx = csv;
    interrupt_catch(false);
    int rc = answer_make(s, &q, &a, err);
    interrupt_release();
    if (!rc) {
        if (o->json) {
            print_json(s, &a, prompt);
        } else if (s->tokenizer) {
            putchar('\n');
        }
        rc = output_finish(err);
        log_figures(&a);
    }
    if (!rc && csv->stream) rc = output_commit(csv, err);
    if (!rc && a.interrupted) rc = -EINTR;
    answer_free(&a);
    return rc;
}

int command_generate(const struct options *o, struct error *err)
{
    struct session s;
    struct ids prompt = {0};
    struct output_file csv = {0};
    double spent_ms = 0;
    enum session_text text = o->tokens ? SESSION_TEXT_IF_ANY : o->raw ? SESSION_TEXT : SESSION_CHAT;
    int rc = session_prepare(&s, o, text, err);
    if (rc) return rc;
    rc = read_prompt(&s, &prompt, &spent_ms, err);
    if (!rc && o->csv) {
        rc = output_open(&csv, o->csv, err);
        if (!rc) answer_csv_header(csv.stream, false);
    }
    if (!rc) rc = session_load(&s, err);
    if (!rc) rc = answer_prompt(&s, &prompt, spent_ms, &csv, err);
    output_abandon(&csv);
    ids_free(&prompt);
    session_close(&s);
    return rc;
}
