/* job.h: one generation on its way between the HTTP thread and the engine thread.
 *
 * Made, filled and freed by the HTTP thread. Between worker_submit() and the moment the HTTP thread takes its
 * `finished` output, the engine thread uses the upper part; `cancelled` may be set by anyone at any time.
 * Output waits in `out` under the worker's mutex until the HTTP thread takes it, one piece for each token, so
 * that a stream's chunks do not depend on when that thread gets a CPU. Beyond JOB_MAX_WAITING pieces the last
 * one grows: what a slow reader has not taken piles up in one place. */
#ifndef DUCKD_HOST_HTTP_JOB_H
#define DUCKD_HOST_HTTP_JOB_H

#include <stdatomic.h>

#include "host/engine/engine.h"
#include "host/engine/stop_strings.h"
#include "host/text/buffer.h"
#include "host/text/tokenizer.h"
#include "host/text/tool_parser.h"

#define JOB_MAX_TOP_LOGPROBS 20u
#define JOB_MAX_WAITING 64u

struct token_logprob {
    int32_t id;
    float logprob;
    uint32_t top_count;
    int32_t top_id[JOB_MAX_TOP_LOGPROBS];
    float top[JOB_MAX_TOP_LOGPROBS];
};

struct call_piece {
    uint32_t index;
    char *name; // NULL: more arguments of a call that was begun
    struct buffer arguments;
};

struct job_output {
    struct buffer reasoning, content; // whole UTF-8 characters; reasoning comes before content
    struct token_logprob *logprob;    // (logprob_count)
    size_t logprob_count, logprob_capacity;
    struct call_piece *call; // (call_count) in order
    size_t call_count, call_capacity;
    uint32_t prefill_done, prefill_total;
    bool finished; // the last output; result is set
    struct generation_result result;
    uint32_t reasoning_tokens, calls; // calls: that are complete
    struct job_output *next;          // of the same job, while they wait
};
void job_output_free(struct job_output *o);

struct job {
    // what is asked: set before worker_submit()
    struct ids prompt;
    uint32_t max_tokens; // 0: as many as positions allow
    struct sampling sampling;
    struct logit_bias *bias;
    struct stop_strings *stop;
    struct tool_parser *tools; // NULL: what looks like a call is text
    bool logprobs;
    uint32_t top_logprobs;
    bool thinking; // the prompt ends inside <think>
    bool plain;    // thoughts and their marks are text like any other
    void *owner;   // the HTTP thread's; the engine thread never looks

    // the engine thread's
    struct generation *generation;
    struct job *next;
    struct worker *worker;
    struct job_output *telling; // where the parser of calls puts what it finds
    struct detokenizer detokenizer;
    bool in_reasoning;
    uint32_t reasoning_tokens;

    _Atomic bool cancelled;
    struct job_output out;   // under the worker's mutex: the first piece
    struct job_output *last; // of its list; NULL: `out`
    uint32_t waiting;        // pieces behind `out`
    bool ready;              // in the list of jobs with output
    struct job *next_ready;
};

void job_free(struct job *j); // not while the worker has it

/* ---- what the engine thread does with tokens (job.c) ---- */

struct job_text {
    const struct tokenizer *tokenizer;
    const struct chat_encoding *chat;
    char *piece; // tokenizer_max_text() + 32 bytes
    uint32_t vocab;
};
/* Text, thoughts and log-probabilities of a token go to *out. True: the answer is complete (a stop
 * string, the last call wanted). */
bool job_token(struct job *j, const struct job_text *t, const struct generated *g, struct job_output *out);
/* What detokenizer and stop strings still hold, once the model has ended by itself. */
void job_flush(struct job *j, const struct job_text *t, struct job_output *out);
/* The sink for j->tools; its ctx is the job. */
struct tool_sink job_tool_sink(struct job *j);
/* Moves what is new behind what is there. */
void job_output_add(struct job_output *to, struct job_output *from);

#endif
