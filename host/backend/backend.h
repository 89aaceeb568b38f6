/* backend.h: the seam between the engine and whatever runs attention, router and lm_head.
 *
 * The engine does not know which backend it drives. Work comes in jobs: consecutive positions of one
 * sequence on one lane. A job is started once and then alternates: backend_poll() says BACKEND_MLP when
 * a layer's activation and expert ids are published; the engine has the flock fill `y` and calls
 * backend_resume(); after the last layer poll says BACKEND_DONE and logits can be read. This is the
 * shape of a chain of CUDA graphs that meets the host by flags, so the CPU backend has it too (it
 * computes inside poll). All calls come from the engine thread.
 *
 * Numeric contract: a row's results depend only on its own sequence: not on the other rows of its job,
 * on the number of lanes, or on the number of threads. One exception: a backend may give jobs of more than 16
 * rows (prompts) another arithmetic; then the size of the jobs that a prompt is cut into changes rounding,
 * and through the KV what comes later, within the backend's documented error, but the same jobs still give
 * the same bits.
 *
 * Sequences own their KV: for every layer and position the normed latent, the roped key part and the index
 * key; for the MTP layer as well; and the final-norm hidden state of recent positions, which MTP jobs
 * read. Positions are simply overwritten: a rejected draft needs no call to undo it. A job at position p
 * may rely on every position < p having been written, in a layer by the time it enters that layer: two lanes
 * may carry neighbouring positions of one sequence if the later one never overtakes. So that the engine can
 * see to that, a lane advances in poll only: start and resume do not let it enter a layer. */
#ifndef DUCKD_HOST_BACKEND_BACKEND_H
#define DUCKD_HOST_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/flock/mlp_step.h"
#include "host/model/model.h"
#include "host/util/pool.h"

/* The one switch for what the MTP layer is fed: the main model's hidden state after (1) or before (0) its
 * final norm. A wrong choice costs acceptance silently; after is what the published weights were trained
 * with.
 */
#define BACKEND_MTP_HIDDEN_AFTER_FINAL_NORM 1

#define BACKEND_KEY_UNIT 8u // positions; see backend_job.first_key

enum kv_dtype { KV_F32, KV_BF16, KV_FP8 };

/* Who computes shared experts: the backend where its memory allows, it or nothing, or the flock. */
enum shared_experts { SHARED_AUTO, SHARED_BACKEND, SHARED_FLOCK };

/* What `logits --dump` and tests look at; called as the values are made, rows in ascending position.
 * name: "hidden" (layer 0 = embedding, i + 1 = output of layer i), "final_norm", "router_ids",
 * "router_weights", "index_scores", "index_topk", "mtp_hidden", "mtp_router_ids", "mtp_router_weights".
 * Exactly one of f and i is set. index_scores has position + 1 values, index_topk has min(index_topk,
 * position + 1) ascending positions. */
struct backend_probe {
    void (*row)(void *ctx, const char *name, uint32_t layer, uint32_t position, const float *f,
                const int32_t *i, size_t n);
    void *ctx;
};

struct backend_options {
    const struct model *model; // must outlive the backend
    struct pool *pool;         // for arithmetic on the CPU
    uint32_t lanes;            // lanes that may have a job at a time
    uint32_t max_tokens;       // largest job
    enum kv_dtype kv_dtype;
    bool kv_dtype_set; // false: the backend's own default
    bool mtp;          // load the MTP layer
    enum shared_experts shared;
};

struct backend;
typedef uint32_t backend_seq; // handle of a sequence

enum backend_job_kind {
    BACKEND_MAIN, // embed -> all layers -> final norm -> logits
    BACKEND_MTP, // the MTP layer: row i combines hidden[position + i] with tokens[i], the token at position +
                 // i + 1
};

struct backend_job {
    enum backend_job_kind kind;
    backend_seq seq;
    uint32_t position;    // of row 0
    uint32_t tokens;      // rows
    const int32_t *ids;   // (tokens), copied by backend_start
    uint32_t logits_from; // logits are made for rows >= this; = tokens: for none
    bool best_only;       // of rows with logits best() is asked for instead of logits()
    bool candidates;   // of up to 16 rows with logits candidates() is asked for, logits() seldom: it may take
                       // time. Only where ops->candidates
    float temperature; // of candidates' second sum; 0 counts as 1
    uint32_t hidden_from; // MAIN: rows >= this leave their hidden state for MTP jobs, others need not
    uint32_t first_key;   // MTP: attention begins at this position, a multiple of BACKEND_KEY_UNIT. Not 0:
                          // only where ops->mtp_window
};

/* A row's largest logits in falling order, of equal ones (-0 equals 0) the lower id first, a NaN before
 * everything, and sums over all ids in double precision. */
#define BACKEND_CANDIDATES 256u
struct backend_candidates {
    uint32_t count;
    int32_t id[BACKEND_CANDIDATES];
    float logit[BACKEND_CANDIDATES];
    double mass, tempered; // of exp(logit - largest), and of exp((logit - largest) / temperature)
};

enum backend_event { BACKEND_BUSY, BACKEND_MLP, BACKEND_DONE, BACKEND_FAILED };

struct backend_ops {
    const char *name; // "cpu", "cuda"
    int (*open)(struct backend **out, const struct backend_options *o, struct error *err);
    void (*close)(struct backend *b);
    /* capacity: positions the sequence may ever hold. -EBUSY, -ENOMEM: closing another may make room. */
    int (*seq_open)(struct backend *b, backend_seq *out, uint32_t capacity, struct error *err);
    /* Opens a sequence that begins with positions [0, positions) of another, at least 1, of which no job is
     * under way; either may go on and be closed as if it were alone. The MTP layer's entry of position p has
     * seen token p + 1: where the fork goes on with another token than the original, the MTP job of position
     * positions - 1 must be run again. Its hidden state comes along if `from` still remembers it; else the
     * main job of that position comes first. Errors as of seq_open. */
    int (*seq_fork)(struct backend *b, backend_seq *out, backend_seq from, uint32_t positions,
                    uint32_t capacity, struct error *err);
    void (*seq_close)(struct backend *b, backend_seq seq);
    int (*start)(struct backend *b, uint32_t lane, const struct backend_job *job, struct error *err);
    /* BACKEND_MLP fills *step; stays in that state until resume. FAILED fills err. A step may carry fewer
     * rows than the job, and a layer may have none: rows that nobody reads need no feed-forward. */
    enum backend_event (*poll)(struct backend *b, uint32_t lane, struct mlp_step *step, struct error *err);
    void (*resume)(struct backend *b, uint32_t lane);
    /* After DONE of a job without best_only: (vocab) fp32 logits of row `row` >= logits_from, valid until the
     * lane's next start. */
    const float *(*logits)(struct backend *b, uint32_t lane, uint32_t row);
    /* After DONE of a job with best_only: the token that such a row's logits like best, as largest_logit()
     * finds it. The MTP layer's comes of an arithmetic that may be rougher than its logits': a draft is
     * verified. */
    int32_t (*best)(struct backend *b, uint32_t lane, uint32_t row);
    /* Drop a started job wherever it is; the lane is free afterwards. */
    void (*cancel)(struct backend *b, uint32_t lane);
    void (*set_probe)(struct backend *b, const struct backend_probe *probe); // NULL: none
    uint64_t (*memory_bytes)(const struct backend *b);                       // resident weights and KV
    /* KV [0, positions) of all layers as bytes that mean something to the same backend with the same model
     * and kv_dtype only; hidden states are not part of it. kv_load: into a sequence that was just opened.
     * Negative, err filled: the image, or the sequence, is not to be used. NULL, all three: this backend
     * cannot. */
    uint64_t (*kv_bytes)(const struct backend *b, uint32_t positions);
    int (*kv_save)(struct backend *b, backend_seq seq, uint32_t positions, void *image, struct error *err);
    int (*kv_load)(struct backend *b, backend_seq seq, uint32_t positions, const void *image,
                   struct error *err);
    /* After DONE of a job with `candidates`; valid until the lane's next start. NULL: this backend has none.
     */
    const struct backend_candidates *(*candidates)(struct backend *b, uint32_t lane, uint32_t row);
    bool mtp_window; // the MTP layer can do without the positions before a job's first_key
};

/* Every backend's first member. */
struct backend {
    const struct backend_ops *ops;
    /* Set by open: the backend adds the shared experts itself, steps ask for routed ones only. They join the
     * residual stream before the flock's answer does. */
    bool shared;
};

extern const struct backend_ops backend_cpu;

#endif
