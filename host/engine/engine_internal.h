/* engine_internal.h: what the engine's own files share, and the seam by which tests hand in their own backend
 * and flock. */
#ifndef DUCKD_HOST_ENGINE_ENGINE_INTERNAL_H
#define DUCKD_HOST_ENGINE_ENGINE_INTERNAL_H

#include "host/engine/drafts.h"
#include "host/engine/engine.h"
#include "host/engine/kv_store.h"
#include "host/engine/lanes.h"
#include "host/engine/mtp.h"
#include "host/engine/prefill_share.h"
#include "host/engine/prefix_cache.h"
#include "host/engine/sequence.h"
#include "host/engine/synthetic_flock.h"

#define ENGINE_DEFAULT_LANES 4u
#define ENGINE_DEFAULT_CHUNK 512u
#define ENGINE_DEFAULT_TIMEOUT_MS 60000u

struct engine_settings {
    uint32_t lanes, prefill_chunk, step_timeout_ms;
    bool mtp;
    enum mtp_verify verify;
    uint32_t mtp_window;     // of this many positions the MTP layer knows the last ones at least; 0: all
    bool cut_anywhere;       // prompts may be cut into jobs of any size without changing a bit
    bool adapt;              // drop drafts that do not pay; false: always draft
    uint64_t (*clock)(void); // times rounds; NULL: clock_ns()
    uint64_t prefix_cache_bytes, bytes_per_position;
};

/* What engine_open() opened for its engine; all NULL for one around the caller's parts. */
struct engine_parts {
    struct model *model;
    struct model *held;   // of a synthetic model: what the flock was opened with
    struct model *routed; // what the flock was opened with where the backend has the shared experts
    struct synthetic_flock *synthetic;
    struct pool *pool;
    struct flock *flock;
    struct backend *backend;
};

struct engine {
    const struct model *model;
    struct backend *backend;
    struct engine_parts parts;
    void (*close_parts)(struct engine_parts *parts); // NULL: they are the caller's
    struct engine_settings set;
    struct lanes *lanes;
    struct prefix_cache *prefixes; // NULL: none
    struct kv_store *store;        // behind it; NULL: none
    struct generation **owner;     // (lanes) who uses the lane
    struct generation *first;      // live generations in the order they were started
    bool in_step;
    struct drafts drafts;
    struct prefill_share share;
    uint64_t turns;    // given to prompts, see generation.turn
    uint32_t decoding; // generations that decode in this round
};

/* The engine around parts that are open already and stay the caller's. */
int engine__assemble(struct engine **out, const struct model *model, struct backend *backend,
                     const struct flock_seam *flock, const struct engine_settings *settings,
                     struct error *err);

enum generation_stage { STAGE_WAITING, STAGE_PREFILL, STAGE_DECODE, STAGE_DONE };
enum round_part { ROUND_NONE, ROUND_MAIN, ROUND_MTP };

struct generation {
    struct engine *engine;
    struct generation *next;
    struct generation_request request; // its prompt belongs to `sequence` (or `prompt` while waiting)
    int32_t *prompt;
    struct sampler *sampler;
    struct sequence sequence;
    struct generation_result result;
    enum generation_stage stage;
    bool cancelled, free_wanted;
    uint32_t limit;    // tokens, prompt included
    uint32_t lane[2];  // LANE_NONE where unused
    uint32_t borrowed; // a free lane for the second chunk of this round; LANE_NONE: none

    uint64_t turn; // prompts take theirs in the order of this

    // the round under way
    enum round_part part;
    uint32_t jobs, rows;      // rows: of a prompt, set before generation__begin_round()
    struct mtp_place last;    // where the logits of the round's last row are
    bool verifying, drafting; // the main job has a draft row; the MTP job makes a draft
    bool catching_up;         // an MTP job that only brings the KV up
    int failure;              // of one of the jobs

    struct draft_state drafts;
    bool have_draft;
    int32_t draft;
    struct lane_times times; // since tokens were delivered last
    uint64_t started_ns, prefill_ns, first_token_ns;
};

/* generation.c */
int generation__admit(struct generation *g); // lanes are set; opens the sequence. Failing ends it.
void generation__begin_round(struct generation *g);
void generation__lane_done(struct generation *g, uint32_t lane, int rc, const struct error *err);
void generation__end(struct generation *g, enum finish_reason reason);
void generation__fail(struct generation *g, int rc); // its result has the message already
void generation__release(struct generation *g);      // everything but the result

/* kv_restore.c: files behind the prefix cache. Identity: what makes KV useless to another process. */
uint64_t engine__kv_identity(const struct engine *e, const struct engine_options *o);
int engine__open_store(struct engine *e, const struct kv_store_options *o, struct error *err);
enum prefix_reuse engine__reuse(const struct engine *e); // what a prompt wants of the cache
void engine__restore(struct engine *e, const int32_t *ids,
                     uint32_t count); // a file's positions go into the cache

/* engine.c */
uint32_t engine__borrow_lane(struct engine *e, struct generation *g); // until the round ends; LANE_NONE

#endif
