/* net.h: the host's half of the protocol in duck/wire.h: frames in, frames out, the clock as a parameter.
 *
 * A net_flock is one session with all ducks; a net_port is one broadcast domain of it. Every port is driven
 * by one thread (its worker), which hands frames to net_port_input() and calls net_port_work() for everything
 * that has to happen in time; the control calls come from the engine thread, net_load() from several threads
 * at once. Nothing here knows what moves frames: struct net_io does (UDP sockets, DPDK ports, a test's fake
 * network), which is why the whole protocol runs in unit tests with a simulated clock.
 *
 * Steps: the engine thread packs a step into a slot and publishes its number; workers broadcast it, unpack
 * results into the slot, and whoever brings the last part of a block of rows adds that block up along the
 * tree. No locks and no allocation on that path. */
#ifndef DUCKD_HOST_FLOCK_NET_NET_H
#define DUCKD_HOST_FLOCK_NET_NET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "duck/wire.h"
#include "duck/wire_unit.h"
#include "host/flock/flock.h"
#include "host/flock/net/config.h"
#include "host/flock/net/manifest.h"
#include "host/flock/plan.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "host/util/error.h"

struct net_peer {
    uint32_t address; // IPv4, most significant byte first
    uint16_t port;    // UDP
    uint8_t mac[6];
};

/* What moves a port's frames. Called by the port's worker only. */
struct net_io {
    void *self;
    /* Room for the next datagram, WIRE_DATAGRAM_MAX bytes; NULL: none now, try later. Asking again without
     * sending gives the same room. */
    uint8_t *(*buffer)(void *self);
    /* Sends the first `bytes` of the room. `to` NULL: to all ducks of the port. */
    void (*send)(void *self, const struct net_peer *to, uint32_t bytes);
};

enum net_goal {
    NET_REST, // workers touch nothing
    NET_FIND,
    NET_OPEN,
    NET_RUN,
    NET_CLOSE,
};

enum net_duck_state {
    NET_UNKNOWN, // no HELLO yet
    NET_FOUND,   // HELLO is there
    NET_OPENED,  // in the session; program, plan and hashes of units are on their way
    NET_READY,   // known what it holds
    NET_CLOSED,
};

/* What is asked of ducks outside of a session (status.h). */
enum net_want {
    NET_WANT_STATS = 1,
    NET_WANT_KAT = 2,
    NET_WANT_REBOOT = 4,
    NET_WANT_OFF = 8, // not together with REBOOT: both have the same answer
    NET_WANT_WAKE = 16
};

struct net_port;
struct net_put;

/* Written by the duck's worker, read by anybody. */
struct net_counters {
    _Atomic uint64_t frames_in, bytes_in, frames_out, bytes_out; // out: to this duck alone
    _Atomic uint64_t steps, experts, expert_bytes, compute_us, wait_us;
    _Atomic uint64_t duplicates, late, resend_asked, resend_served, steps_repeated, chunks_repeated,
        put_bytes, units_put;
};

/* Results of one step from one duck. */
struct net_result {
    uint32_t step; // 0: none
    bool acked, done;
    uint32_t received, seen; // fragments; fragments up to the highest seen
    struct wire_result_plan plan;
    uint64_t sent_ns, acked_ns; // when the step was sent and acknowledged
    uint64_t gap_ns;            // since when a gap is known; 0: there is none
    uint64_t timer_ns;          // next time to do something about silence
    uint32_t tries;
    uint8_t *bitmap; // (fragments) received
};

#define NET_ACTIVE_PUTS 16u
#define NET_RECENT 256u // steps of a duck whose compute times are remembered

struct net_duck {
    uint32_t index;
    struct net_port *port;
    const struct net_match *match;
    struct net_peer peer;
    _Atomic bool gone;     // lost and dropped: not of the flock any more
    _Atomic uint64_t last; // of a place for any duck: who had it last time (places.c); 0: nobody
    uint32_t place;        // of a guest's duck: its index in the host's flock
    _Atomic int state;     // enum net_duck_state; release: what follows is written
    struct wire_hello hello;
    struct wire_opened opened;

    // session
    uint64_t heard_ns, timer_ns, ping_ns, busy_ns;
    uint32_t ping, busy_remaining_ms;
    bool plan_asked, program_asked, computes_right;
    uint32_t unit_asked; // hashes of units before this one are known

    // plan
    struct duck_shape shape;
    struct duck_run *run;
    uint64_t *run_unit; // (runs) number of the run's first unit
    uint64_t units;
    uint64_t *unit_hash; // (units) as held by the duck; 0: not held
    uint32_t plan_length;
    uint64_t plan_hash;
    uint8_t *plan_bytes;
    uint32_t *subtrees;   // (banks)
    uint32_t *first_node; // (banks) into node_of
    uint32_t *node_of;    // (banks' subtrees) node of the bank's tree

    // bulk
    struct net_put *queue, **queue_tail; // under the flock's load mutex
    _Atomic uint32_t queued;
    struct net_put *active[NET_ACTIVE_PUTS];
    uint32_t actives, free_slots;
    double window; // chunks
    bool grows_fast;
    uint32_t in_flight;
    uint64_t rtt_ns, shrunk_ns;
    struct duck_loading loading; // under the flock's load mutex, as is:
    uint64_t loading_ns;         // since when something has been on its way; what was before is in `loading`

    struct net_result *result;  // (slots)
    uint64_t ack_ns, answer_ns; // usual times: step sent -> ack, ack -> all results
    bool wanted;
    _Atomic uint32_t other_frames; // of its MAC address that are not the protocol's: it is switched on
    _Atomic uint32_t has;          // enum net_want; release: what belongs to it is written
    struct wire_stats stats;
    struct wire_kat kat;
    uint64_t traced_ns; // end of the last span of a trace
    struct net_counters count;
    _Atomic uint32_t recent_us[NET_RECENT]; // compute times, the newest overwrites the oldest
};

struct net_port {
    struct net_flock *flock;
    uint32_t index;
    struct net_io io;
    uint32_t ducks;
    struct net_duck **duck;
    uint32_t sent;                    // last step broadcast
    uint32_t next_fragment;           // of the step after it
    uint64_t sending_ns;              // since when it is being sent, for a trace
    uint64_t discover_ns, find_ns;    // next DISCOVER; since when ducks are looked for, 0: they are not yet
    bool looked_long;                 // half of the time for finding is over
    _Atomic int seen_goal;            // that the worker has last worked for
    bool awaits;                      // after net_port_work(): ducks owe answers that somebody waits for
    uint32_t request;                 // numbers of requests
    struct tree_node *node;           // (max_nodes)
    _Atomic(struct net_port *) guest; // a second session's port on the same wire; NULL: none
    const struct net_port *host;      // of a guest: the port it shares
    _Atomic uint64_t rounds;          // of net_port_work()
    _Atomic uint64_t frames_in, bytes_in, frames_out, bytes_out, broadcasts;
    _Atomic uint64_t malformed, wrong_tag, stranger;
    _Atomic bool link_down; // as far as the device tells
};

struct net_node {
    uint32_t duck, subtree, first, level;
};
struct net_bank {
    uint32_t slices, nodes;
    struct net_node *node; // (nodes) ascending by first
};

/* A step on its way. The engine thread fills it and publishes; results come in; the engine thread takes it
 * back when there are no users left. */
struct net_slot {
    uint32_t step; // 0: free
    uint32_t lane, bank, tokens, bytes, fragments;
    bool counted; // its lane knows that it is complete
    float *y;
    uint8_t *packed;                 // the step's bytes
    float *values;                   // (nodes, tokens, hidden)
    _Atomic uint32_t *left;          // (blocks * groups) nodes still missing
    _Atomic uint32_t blocks_left;    // blocks not yet added up; 0: y is written
    _Atomic uint32_t users;          // ports that have not sent it and ducks that have not finished it
    uint64_t begun_ns, published_ns; // for timing
    _Atomic uint64_t sent_ns, first_result_ns, last_result_ns, reduced_ns;
};

struct net_lane {
    struct mlp_step step;
    bool busy;
    uint64_t number;              // order of submission
    uint32_t next_token, pending; // tokens not yet published from here on; blocks on their way
};

/* Where steps spend their time, summed over steps: what `-v` shows. */
struct net_times {
    uint64_t steps;
    uint64_t prepare_ns;    // rounding and packing, engine thread
    uint64_t send_ns;       // published -> last frame handed to the last port's device
    uint64_t judge_wait_ns; // -> first result: the ducks compute
    uint64_t fetch_ns;      // -> last result
    uint64_t reduce_ns;     // adding up the last block of rows
    uint64_t
        judge_gap_ns; // last result of one step -> the next one is published: the ducks have nothing to do
};

struct net_flock {
    struct net_config *config;
    uint32_t ports, ducks, live; // live: ducks that are not gone
    uint32_t wires;              // ports that workers drive
    struct net_port *port;       // (ports)
    struct net_duck *duck;       // (ducks)

    struct siphash_key flock_key, key;
    uint32_t session, payload;
    uint64_t sessions; // opened so far
    uint8_t nonce[WIRE_NONCE];
    uint8_t *program;
    uint32_t program_length;
    uint64_t program_hash;
    struct wire_kat kat; // what sound ducks answer in this session

    const struct plan *plan;
    uint32_t hidden, banks, lanes, slots, block_tokens, max_top_k, max_nodes, element_bytes;
    enum wire_dtype activation, result;
    bool in_turn;
    struct net_bank *bank; // (banks)
    uint32_t *bank_run;    // (banks + 1) first run of the plan
    uint32_t *duck_run;    // (plan's runs) as which run its duck has it
    struct net_slot *slot; // (slots)
    struct net_lane *lane; // (lanes)
    uint32_t last_step;    // engine thread's
    uint64_t submissions;
    _Atomic uint32_t published;
    struct net_times times;
    uint64_t last_done_ns; // when the newest step that has been taken back was done

    bool is_guest;
    uint32_t wants; // while finding: enum net_want, of the ducks that are `wanted`
    _Atomic bool failed;
    _Atomic bool waiting; // the engine thread sleeps in wait
    _Atomic int goal;
    _Atomic int lost; // the duck whose silence was the failure; -1: none
    pthread_mutex_t failure_mutex;
    struct error failure;
    int failure_rc;

    pthread_mutex_t load_mutex;
    pthread_cond_t load_cond;
    uint64_t queued_bytes;            // of puts that are not yet held
    struct manifest manifest, *known; // known: this one, or the host flock's
    _Atomic uint64_t kept_ns;         // when it was written last
    _Atomic uint64_t units_kept, units_sent;

    pthread_mutex_t wait_mutex; // of the engine thread's sleep
    pthread_cond_t wait_cond;

    void (*wake)(void *self); // ends the workers' sleep; NULL: they do not sleep
    void *wake_self;
};

/* ---- control: engine thread ---- */

int net_flock_init(struct net_flock *f, struct net_config *config, struct error *err);
void net_flock_free(struct net_flock *f);

struct net_session {
    const struct plan *plan;
    uint32_t lanes, max_tokens, max_top_k;
    uint32_t element_bytes; // largest of the weights: 1, 2, 4
    enum wire_dtype activation, result;
    bool in_turn; // ducks neither receive nor send while they compute: what overlap saves is measured so
};
/* After all ducks are found, before the goal NET_OPEN: everything that a session needs in memory. */
int net_flock_prepare(struct net_flock *f, const struct net_session *s, const uint8_t nonce[WIRE_NONCE],
                      struct error *err);
void net_set_goal(struct net_flock *f, enum net_goal goal);
/* Whether all ducks are in `state` (or beyond); else the first that is not, in *missing. */
bool net_all_reached(const struct net_flock *f, enum net_duck_state state, const struct net_duck **missing);
/* Tells every duck that is not gone that the session is over and waits for them, so long at most: whoever has
 * not heard of it frees itself when its lease ends. A failure, old or of this moment, keeps nobody from being
 * told. */
void net_close_session(struct net_flock *f, uint64_t ms);
/* The first failure, if there is one: rc and *err, else 0. */
int net_failure(struct net_flock *f, struct error *err);
void net_fail(struct net_flock *f, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Where the file gives no weights and all ducks have measured their memory: the bandwidth is the weight.
 * Ducks near the median count as equal: what differs between two starts of the same machine must not move
 * slices. */
void net_weigh_ducks(const struct net_flock *f, struct spec_duck *duck);

/* Which duck was lost, if that is the failure; else -1. */
int net_lost(const struct net_flock *f);
/* Forgets a session that has been closed, and the failure, with `duck` gone from now on or back again. Goes
 * on with NET_FIND and net_flock_prepare() with a plan that fits. */
int net_flock_drop(struct net_flock *f, uint32_t duck, struct error *err);
int net_flock_take_back(struct net_flock *f, uint32_t duck, struct error *err);

/* ---- a second session beside the first, with a duck that the first has dropped ---- */

/* The guest has one duck, the host flock's `duck`, whose port's worker from now on works for both. */
void net_guest_attach(struct net_flock *guest, struct net_flock *host, uint32_t duck);
/* The worker has let go of the guest when it returns 0. */
int net_guest_detach(struct net_flock *guest, struct net_flock *host, uint32_t index, struct error *err);
/* All ducks of the session hold their weights: their places are theirs next time as well. */
void net_keep_places(struct net_flock *f, struct net_flock *host); // host: of a guest, else NULL
/* What a HELLO must say to be the duck that was lost. */
struct net_match net_duck_again(const struct net_duck *d);

/* ---- weights: any thread ---- */

struct net_unit_source {
    uint64_t key; // identifies the tensor's bytes: file, size, time, place
    uint32_t bank, expert;
    uint32_t column; // of the expert's column 0 in the tensor
    const struct duck_tensor *tensor;
    const char *file, *name; // of the tensor, for messages; both outlive the session, NULL: unknown
};
/* What net_load() will be given, all of it before the first; and how far a duck is since. */
void net_expect(struct net_flock *f, const struct net_unit_source *s);
void net_loading(struct net_flock *f, uint32_t duck, struct duck_loading *out);
/* Cuts the matrix for all ducks that want a part of it and hold it not yet, and queues the parts; blocks
 * while too much is queued. DUCK_BAD_WEIGHT with *where as wire_unit_cut(); other negative: failed. */
int net_load(struct net_flock *f, const struct net_unit_source *s, uint64_t *where, struct error *err);
/* Everything queued is held. */
int net_load_finish(struct net_flock *f, struct error *err);
/* What ducks hold is known to the next daemon; happens now and then while weights are sent. */
void net_keep_manifest(struct net_flock *f);

/* ---- steps: engine thread ---- */

int net_submit(struct net_flock *f, uint32_t lane, const struct mlp_step *step, uint64_t now,
               struct error *err);
int net_poll(struct net_flock *f, uint32_t lane, uint64_t now, struct error *err); // never blocks
/* Whether every duck has said all it has to say of the steps that were published. */
bool net_settled(const struct net_flock *f);
/* Waits until a worker has completed a step or for a millisecond: sleeping, or spinning if workers do too
 * (poll). */
void net_wait(struct net_flock *f);

/* ---- what has been counted (figures.c): engine thread ---- */

void net_duck_figures(const struct net_duck *d, struct duck_stats *out);
void net_flock_figures(const struct net_flock *f, struct flock_times *out);
void net_say_figures(const struct net_flock *f); // with -v

/* ---- the port's worker ---- */

void net_port_input(struct net_port *p, const struct net_peer *from, const uint8_t *datagram, size_t bytes,
                    uint64_t now);
/* A frame that is not the protocol's came from this MAC address. */
void net_port_heard(struct net_port *p, const uint8_t mac[6]);
/* Returns how many ns may pass until the next call, frames aside. */
uint64_t net_port_work(struct net_port *p, uint64_t now);

/* For messages: "duck-3 (10.21.1.101)". */
struct net_name {
    char s[96];
};
struct net_name net_duck_name(const struct net_duck *d);

#endif
