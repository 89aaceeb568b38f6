/* answer.h: one generation run to its end: prompt ids in; tokens, text and times out.
 *
 * Joins engine, detokenizer and stop strings for generate, chat and bench, and honours Ctrl-C where the
 * caller has caught it (interrupt.h). */
#ifndef DUCKD_HOST_CLI_ANSWER_H
#define DUCKD_HOST_CLI_ANSWER_H

#include "host/cli/session.h"

struct answer_token {
    int32_t id;
    uint32_t lane;
    bool accepted;
    double t_ms;                      // since the request was read
    double tpot_ms;                   // since the token before (of the first: t_ms)
    double gpu_ms, flock_ms, wait_ms; // of the round it came from
    size_t text_at, text_length; // what it completed, in answer->pieces; UTF-8 characters are never split
};

struct text_buffer {
    char *text; // not NUL-terminated
    size_t length, capacity;
};
int text_append(struct text_buffer *b, const char *text, size_t length); // 0 or -ENOMEM
void text_free(struct text_buffer *b);

struct answer {
    struct answer_token *token; // (count)
    size_t count, capacity;
    struct text_buffer text;   // the answer, without its stop string
    struct text_buffer pieces; // the texts of all tokens, one after the other
    struct generation_result result;
    bool interrupted; // by Ctrl-C; what was there is kept
    bool synthetic;   // of random weights: outputs say so
};

struct question {
    const struct ids *prompt;
    uint32_t max_tokens; // 0: until the model stops
    bool ignore_eos;
    struct sampling sampling;
    struct string_list stop;
    double spent_ms; // before this call on reading the request (encoding it); counts in t_ms
    /* Text as it comes; may be NULL. A negative result ends the generation and is returned. */
    int (*on_text)(void *ctx, const char *text, size_t length, struct error *err);
    /* After each token; may be NULL. */
    int (*on_token)(void *ctx, const struct answer *a, size_t index, struct error *err);
    /* Between two rounds of the engine; may be NULL. The answer's times leave out what it takes. */
    int (*on_pause)(void *ctx, const struct answer *a, struct error *err);
    void *ctx;
};

/* With the session's sampling and its options' limits; who listens is the caller's to add. */
struct question question_of(const struct session *s, const struct ids *prompt, double spent_ms);

/* Also on failure *a holds what came before it; answer_free in any case. */
int answer_make(struct session *s, const struct question *q, struct answer *a, struct error *err);
void answer_free(struct answer *a);

/* Figures of an answer; NAN: not measured (one token has no time per token). */
struct answer_figures {
    double ttft_ms;       // request read to first token
    double prefill_tok_s; // computed prompt tokens (not those found in a cache) per second of prefill
    double tpot_ms;       // mean time from token to token
    double tpot_p50, tpot_p90, tpot_p99;
    double decode_tok_s;
    double mtp_accept;  // accepted / proposed drafts
    double draft_share; // rounds with a draft / rounds of decoding
    double round_ms;    // mean time of such a round
    /* Time that passed over what the lanes spent at backend and ducks one after the other; 1 minus that. A
     * lane that queues behind another spends that time too. */
    double pair_over_serial, overlap_gain;
};
void answer_measure(const struct answer *a, struct answer_figures *out);

const char *finish_reason_name(enum finish_reason reason);

/* The contract's CSV: header, and one line per token. A synthetic answer's has one column more, `synthetic`.
 */
void answer_csv_header(FILE *to, bool synthetic);
void answer_csv_row(FILE *to, const struct answer *a, size_t index);

#endif
