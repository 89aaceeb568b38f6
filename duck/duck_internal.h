/* duck_internal.h: the state of a duck and what its files ask of each other. Core 0 owns all of it but
 * struct team. */
#ifndef DUCK_DUCK_INTERNAL_H
#define DUCK_DUCK_INTERNAL_H

#include "duck/duck.h"
#include "duck/program.h"
#include "duck/team.h"
#include "duck/wire_unit.h"

enum {
    OUT_FRAMES = 64,           // to send before the link is called
    IN_FRAMES = 8,             // of one recv(): some 8 us of tags
    BLOCKS_MAX = 4096,         // runs of a plan
    PLAN_MAX = 64 << 10,       // bytes of a plan object
    PROGRAM_MAX = 1 << 20,     // of a program
    STAGING_SLOTS_MAX = 16,    // enough to hide a round trip
    STAGING_BYTES = 256 << 20, // for more than two slots
    STEP_SLOTS_MAX = 64,
    LOG_BYTES = 4096,
    COMPUTE_NS = 10000, // after a look at the NIC, until no other task or piece of one (7 us) is begun
};

/* ---- out: datagrams to be sent (out.c) ---- */

struct out {
    struct datagram frame[OUT_FRAMES];
    uint32_t count;
    uint8_t *memory; // OUT_FRAMES pieces of OUT_BYTES
};
#define OUT_BYTES (LINK_HEADROOM + WIRE_DATAGRAM_MAX)

/* ---- receiver: an object arriving in chunks (receiver.c) ---- */

enum receiver_state { RECEIVER_FREE, RECEIVER_PARTIAL, RECEIVER_COMPLETE, RECEIVER_PACKING };

struct receiver {
    enum receiver_state state;
    uint32_t kind, object, total;
    uint64_t hash;
    uint8_t *data;
    uint64_t room;
    uint8_t *bitmap;                          // one bit a chunk
    uint32_t chunk, chunks, have, cumulative; // cumulative: chunks there without a gap
    uint32_t since_ack;
    uint64_t touched; // when the last new chunk came
};

/* ---- blocks: memory of runs, of the plan and of earlier ones (blocks.c) ---- */

/* A run's piece of the arena: hashes of its units, then what duck_core_run_bytes() counts. */
struct block {
    uint64_t at, bytes; // where it is
    uint64_t to;        // where it is to be; never behind `at`
    struct duck_run run;
    uint32_t hidden;
    enum fp9_format format;
    struct duck_bank_shape bank;
    uint32_t index;   // of the run in the plan; BLOCK_OLD: of none
    uint32_t plan_no; // of the last plan that had it
    int fresh;        // has not been cleared yet
};
#define BLOCK_OLD UINT32_MAX

struct blocks {
    struct block *block; // (BLOCKS_MAX) ascending by place
    uint32_t count, plan_no;
    uint32_t cursor; // blocks before it are done, moves first (phase 0), then clearing (1)
    int phase;
    uint64_t done;                 // bytes of the block at the cursor
    uint64_t clean_from, clean_to; // of the arena: not written since the start
};

/* ---- store ---- */

enum store_state { STORE_EMPTY, STORE_CLEARING, STORE_READY };

struct packing { // the receiver being packed
    struct receiver *r;
    struct duck_part part;
    uint32_t pieces, panels, strips, strips_per_task;
    _Atomic uint64_t bad; // smallest index of an element that is no number; UINT64_MAX: none
};

struct store {
    enum store_state state;
    struct receiver plan, program;
    uint64_t plan_hash, program_hash; // held; 0: none
    struct duck_shape shape;          // points into plan.data
    struct duck_core *core;
    uint64_t *unit_hash; // (units); 0: not held
    uint32_t units, units_held;
    uint64_t root_hash; // 0: not known
    struct blocks blocks;
    uint64_t core_bytes; // of the plan's blocks
    uint64_t top;        // of the arena: from here on head of the core and unit_hash
    // of the session
    struct receiver slot[STAGING_SLOTS_MAX];
    uint64_t *piece_hash; // of the unit being packed
    uint32_t slots;
    struct packing packing;
};

/* ---- judge ---- */

enum step_state {
    STEP_EMPTY,
    STEP_EXPECTED,  // a later step arrived, of this one nothing
    STEP_RECEIVING, // some fragments are there
    STEP_QUEUED,
    STEP_RUNNING,
    STEP_COMPUTED, // results stay until the slot is used again
};

struct step_slot {
    enum step_state state;
    uint32_t sequence;
    uint32_t status;                   // enum wire_step_status
    uint32_t fragments, have, highest; // of the step
    uint32_t last_bytes;               // of the last fragment
    uint8_t *bitmap, *data;
    float *x;              // unpacked activation
    const uint8_t *packed; // the same as it came
    enum wire_dtype activation;
    void *scratch;
    struct duck_work *work;
    struct duck_step step;
    struct wire_result_plan plan;
    enum wire_dtype result;
    _Atomic uint8_t *row_task_done;
    uint32_t sent, again_left; // fragments sent in order; bits set in `again`
    uint8_t *again;            // fragments asked for once more
    int done_sent;
    uint64_t nak_at; // 0: nothing to ask for
    uint32_t naks;
    uint64_t first_at, complete_at, begun_at, computed_at;
};

struct judge {
    struct step_slot slot[STEP_SLOTS_MAX];
    uint32_t slots;   // 0: not laid out
    uint32_t highest; // sequence seen
    int any;          // `highest` is valid
    uint64_t room;    // bytes of a step
    uint64_t scratch_bytes;
    uint32_t max_result_fragments, max_row_tasks;
    struct step_slot *running;
    enum duck_phase phase;
};

/* The known-answer test: a step of its own, computed as the session's are. */
struct known_answer {
    void *core, *scratch;   // KAT_CORE, KAT_SCRATCH
    struct duck_work *work; // under way; NULL: none
    enum duck_phase phase;
    struct wire_kat answer; // of this session's latest; hash 0: none
    struct wire_header request;
    struct peer peer;
    uint64_t begun_at;
};

struct session {
    int open;
    struct wire_open terms;
    struct siphash_key key;
    struct peer holder;
    uint64_t lease_until;
    uint32_t last_ping;
    int faulted; // the program failed: that ended the session
};

struct duck {
    const struct platform *p;
    const struct link *link;
    const struct fp9_kernels *kernels;
    int needs_program;
    struct siphash_key flock_key;
    uint8_t nonce[WIRE_NONCE];
    struct session session;
    struct store store;
    struct judge judge;
    struct out out;
    struct wire_stats stats;
    struct team *team;
    struct team_job job; // the team's; this copy is out of the program's reach
    uint32_t job_tasks;
    uint64_t grain;    // what the program may read or write begins and ends at multiples of it
    uint32_t piece_of; // the task that core 0 is in the middle of; TEAM_CLOSED: none
    uint8_t *arena;    // what is left of the platform's memory
    uint64_t arena_bytes;
    struct wire_fault fault; // of session.faulted
    struct known_answer known;
    char log[LOG_BYTES];
    uint32_t log_end;
    uint64_t now; // of this poll
    int busy;     // this poll did something
};

/* A piece of memory at *at, 64-byte aligned; with base NULL it only counts. */
static inline void *carve(uint8_t *base, uint64_t *at, uint64_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

static inline void align_to(uint64_t *at, uint64_t grain)
{
    *at = (*at + grain - 1) / grain * grain;
}

/* out.c */
/* Payload room for one frame; NULL: full, try again at the next poll. */
uint8_t *duck__out(struct duck *d, const struct peer *to);
/* Sends the frame duck__out() gave; the header's length is set. */
void duck__send(struct duck *d, struct wire_header h, const struct siphash_key *key);
void duck__flush(struct duck *d);
/* An answer to a request: same sequence, same key. */
void duck__answer(struct duck *d, const struct peer *to, const struct wire_header *request,
                  enum wire_type type, const void *payload, uint32_t bytes);
/* A frame of the session to its holder. 0: no room now. */
int duck__tell(struct duck *d, enum wire_type type, uint32_t sequence, const void *payload, uint32_t bytes);
void duck__log(struct duck *d, const char *text, uint64_t number);
void duck__log_session(struct duck *d, const char *text); // its number as hosts show it

/* session.c */
void duck__frame(struct duck *d, const struct datagram *in);
void duck__end_session(struct duck *d);
void duck__renew_lease(struct duck *d);
/* program_host.c */
void duck__program_arrived(struct duck *d, struct wire_put_ack *ack);
/* known_answer.c */
void duck__kat(struct duck *d, const struct peer *from, const struct wire_header *h, const uint8_t *payload);
/* Its job is over: the next phase, or the answer. */
void duck__kat_advance(struct duck *d);
/* Whoever waits asks again. */
void duck__kat_forget(struct duck *d);

/* receiver.c */
enum receiver_chunk { CHUNK_NEW, CHUNK_DUPLICATE, CHUNK_BAD };
int duck__receiver_begin(struct receiver *r, const struct wire_put *put, uint32_t chunk);
enum receiver_chunk duck__receiver_chunk(struct receiver *r, const struct wire_put *put, const uint8_t *bytes,
                                         uint32_t count);
void duck__receiver_report(const struct receiver *r, struct wire_put_ack *ack);

/* store.c */
void duck__store_start(struct duck *d, uint64_t *at);
/* The plan has arrived: checks it and begins to make room. 0: `ack` says why not. */
int duck__plan_arrived(struct duck *d, struct wire_put_ack *ack);
/* Forgets the plan. The weights stay: the next plan's runs that are the same keep them. */
void duck__store_drop(struct duck *d);
/* Places staging slots and step slots of the session behind the weights. Returns 0, or the bytes needed. May
 * drop the plan: then weights are in the way and the next plan moves them. */
uint64_t duck__lay_out_session(struct duck *d);
/* Moves and clears memory in pieces. 1: did something. */
int duck__store_poll(struct duck *d);
void duck__store_status(struct duck *d, struct wire_opened *out);
uint64_t duck__root_hash(struct duck *d);
int duck__store_complete(const struct duck *d);

/* blocks.c */
uint64_t duck__block_bytes(const struct duck_shape *shape, uint32_t run);
/* A block for each of the plan's runs below `limit`: what is there already stays; blocks of earlier plans
 * give way, the oldest first. The plan's blocks together fit. */
void duck__blocks_place(struct duck *d, uint64_t limit);
/* Moves and clears one piece. 0: there is nothing left to do. */
int duck__blocks_poll(struct duck *d);
/* Blocks that were to be moved or cleared and are not; the others are where they say. */
void duck__blocks_forget_unfinished(struct duck *d);
/* Blocks of no plan that reach beyond `limit` go. 0: a block of the plan does. */
int duck__blocks_cut(struct duck *d, uint64_t limit);
/* Hashes of the plan's units: from their blocks to store.unit_hash, and back. */
void duck__blocks_gather(struct duck *d);
void duck__blocks_scatter(struct duck *d);
/* Tells the core where its runs are. */
void duck__blocks_tell_core(struct duck *d);

/* put.c */
void duck__put(struct duck *d, const struct wire_header *h, const uint8_t *payload, const struct peer *from);
void duck__units(struct duck *d, const struct wire_header *h, const uint8_t *payload);
/* pack.c: 1: a job has been started. */
int duck__pack_next(struct duck *d);
void duck__pack_over(struct duck *d);

/* judge.c */
void duck__judge_lay_out(struct duck *d, uint8_t *base, uint64_t *at);
void duck__judge_reset(struct duck *d);
void duck__step_fragment(struct duck *d, const struct wire_header *h, const uint8_t *payload);
/* Asks for what is missing; returns when to look again. */
uint64_t duck__judge_timers(struct duck *d);
/* Starts and ends jobs: steps, then packing. 1: did something. */
int duck__judge_advance(struct duck *d);

/* results.c */
void duck__results_send(struct duck *d);
int duck__results_pending(const struct duck *d);
void duck__results_resend(struct duck *d, const struct wire_header *h, const uint8_t *payload);
void duck__step_acknowledge(struct duck *d, uint32_t sequence, const struct step_slot *s, uint32_t status);

/* work.c */
void duck__start_job(struct duck *d, const struct team_job *job, uint32_t tasks);
/* Finishes the running job, however it ends, and calls everybody back: before memory under it changes. A
 * program that fails meanwhile ends the session. */
void duck__drain(struct duck *d);
/* Core 0: does some tasks of the team's job, or a piece of one: about DUCK_PIECE_WORK. 0: there was none. */
int duck__work_once(struct duck *d);
/* 1: the program had failed; the session has ended. */
int duck__check_program(struct duck *d);

#endif
