/* engine.h: sequences, lanes, sampling, MTP: from prompt ids to generated ids.
 *
 * Owns the backend, the flock and every sequence; one thread (the engine thread) makes all calls. Generations
 * are started and then advanced together by engine_step(), which runs one round of every active lane: a
 * decode step each, and as much of the prompts, which take turns, as keeps others from stalling
 * (prefill_share.h). Generations beyond the lanes wait in order. Callbacks run inside engine_step(). Nothing
 * a generation does can fail another one. */
#ifndef DUCKD_HOST_ENGINE_ENGINE_H
#define DUCKD_HOST_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/backend/backend.h"
#include "host/engine/lanes.h"
#include "host/engine/sampler.h"
#include "host/flock/flock.h"
#include "host/model/model.h"

/* Random weights of a config.json's shape; layers share them so that they fit. 0: as many as the shape has.
 */
struct synthetic_options {
    const char *config;
    uint32_t layers, experts; // dense and MoE layers, and experts of a layer, with weights of their own
};

struct engine_options {
    const struct synthetic_options *synthetic; // NULL: model_dir is a checkpoint
    const char *model_dir;
    const char *flock;   // "local", "local:N" or the path of a JSON file (host/flock/spec.h)
    const char *backend; // "auto", "cpu", "cuda"; NULL: "auto"
    unsigned threads;    // 0: one per CPU
    bool mtp;
    bool mtp_always; // draft in every round, also where drafts cost more than they bring
    enum wire_dtype wire_activation, wire_result;
    enum fp9_format expert_format; // of the experts in the ducks' memory
    enum kv_dtype kv_dtype;
    bool kv_dtype_set;
    enum shared_experts gpu_shared;
    uint32_t lanes, prefill_chunk; // 0: defaults
    uint64_t prefix_cache_bytes;   // KV of ended generations kept for those that begin alike; 0: none
    const char *kv_dir;            // where KV outlives the process, behind the prefix cache; NULL: nowhere
    uint64_t kv_dir_bytes;         // of files there
    uint32_t step_timeout_ms;      // longest wait for one step of ducks or backend; 0: default
};

struct engine;
int engine_open(struct engine **out, const struct engine_options *o, struct error *err);
void engine_close(struct engine *e);

const struct model *engine_model(const struct engine *e);
struct flock *engine_flock(struct engine *e);
struct backend *engine_backend(struct engine *e);
uint32_t engine_lanes(const struct engine *e);
/* Of the first `count` lanes, all at the same moment. */
void engine_lane_totals(const struct engine *e, struct lane_totals *out, uint32_t count);
/* The acceptance above which drafts pay for a generation that is alone, as measured; NAN: not known. */
double engine_break_even(const struct engine *e);

/* One generated token, as it is decided. */
struct generated {
    uint32_t index; // 0, 1, ... within the generation
    int32_t id;
    bool stop;                        // an end-of-sequence token (and ignore_eos is off)
    uint32_t lane;                    // that computed the logits it came from
    bool accepted;                    // it came from an accepted draft
    double t_ms;                      // since the generation was started
    double gpu_ms, flock_ms, wait_ms; // of the round it came from: backend, ducks computing, engine idle
    // Where it came from, valid during the callback. One of them, none with request.ids_only.
    const float *logits; // (vocab)
    const struct backend_candidates *candidates;
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

struct generation_request {
    const int32_t *prompt; // (prompt_count) at least one id, all < vocab
    uint32_t prompt_count;
    uint32_t max_tokens; // 0: as many as positions allow
    bool ignore_eos;
    bool ids_only; // on_token does not look at logits, so that they may stay where they are
    struct sampling sampling;
    /* false ends the generation (stop string, client gone); reason becomes FINISH_STOP. */
    bool (*on_token)(void *ctx, const struct generated *token);
    void (*on_prefill)(void *ctx, uint32_t done, uint32_t total); // may be NULL
    void *ctx;
};

struct generation_result {
    enum finish_reason reason;
    uint32_t prompt_tokens, cached_tokens, generated_tokens;
    uint32_t rounds; // of decoding; drafts_proposed of them had a draft
    uint32_t drafts_proposed, drafts_accepted;
    double ttft_ms, prefill_ms, decode_ms; // decode_ms: first token to last
    int code; // negative errno of `error` with FINISH_ERROR; -EHOSTDOWN: see flock_poll()
    struct error error;
};

struct generation;
int engine_start(struct engine *e, struct generation **out, const struct generation_request *r,
                 struct error *err);
bool engine_step(struct engine *e); // false: nothing active
/* With kv_dir: hands KV of what has ended to the thread that writes it, one text at a time. Returns when to
 * call it again although nothing is active, in ns; UINT64_MAX: no need. */
uint64_t engine_write_behind(struct engine *e);
bool generation_done(const struct generation *g);
const struct generation_result *generation_result(const struct generation *g);
/* Both may be called from callbacks too; a round under way is finished first. */
void generation_cancel(struct generation *g);
void generation_free(struct generation *g); // cancels if still active; no callback comes afterwards

/* Teacher-forced pass over ids[count]: row(ctx, position, logits[vocab]) for positions >= from, in order.
 * The MTP layer runs iff mtp_row is set (and fails where the engine has none); mtp_row comes after the rows
 * of its chunk, for positions from .. count - 2. Not from callbacks. */
struct engine_rows {
    void (*row)(void *ctx, uint32_t position, const float *logits);
    void (*mtp_row)(void *ctx, uint32_t position,
                    const float *logits); // position t has seen tokens 0 .. t + 1
    void (*progress)(void *ctx, uint32_t done, uint32_t total);
    void *ctx;
};
int engine_evaluate(struct engine *e, const int32_t *ids, uint32_t count, uint32_t from,
                    const struct engine_rows *rows, struct error *err);

#endif
