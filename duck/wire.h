/* wire.h: the protocol between a host and its ducks, defined here and nowhere else. Why: docs/protocol.md.
 *
 * Freestanding; shared by the host, by duck-linux and by the firmware. Holds no state, does no I/O and never
 * allocates. Everything travels over UDP/IPv4, little-endian, naturally aligned, so that both ends read these
 * structs in place. A datagram is struct wire_header and `length` bytes of payload.
 *
 * KEYS  Frames with session 0 are tagged with the flock key (16 bytes that host and ducks were configured
 * with), all others with the session key, made from the flock key and the nonce in OPEN. Replies to a frame
 * use the key of that frame, OPENED (session key) and REFUSED (flock key) aside.
 *
 * REPLAY  A duck's nonce changes with every session it accepts; OPEN and POWER outside a session echo it.
 * Inside a session frames are idempotent; the lease is renewed only by PING with a number that grew and by
 * steps not seen before. An answer repeats the `sequence` of what it answers.
 *
 * LOSS  Nothing is assumed to arrive. Requests are repeated by the host until answered. Steps and results
 * are numbered fragments that either side asks for again with RESEND. */
#ifndef DUCK_WIRE_H
#define DUCK_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "duck/duck_core.h"
#include "duck/siphash.h"
#include "duck/wire_dtype.h"

#define WIRE_MAGIC 0x4b435544u // "DUCK"
#define WIRE_VERSION 1u
#define WIRE_DUCK_PORT 21210u // ducks listen here
#define WIRE_HOST_PORT 21211u // the host sends from here; ducks answer to the port a frame came from
#define WIRE_HOST 0xffffu     // wire_header.source of everything the host sends

#define WIRE_HEADER 32u          // bytes
#define WIRE_PAYLOAD 1440u       // largest payload of a 1500-byte IP packet: 360 floats
#define WIRE_PAYLOAD_JUMBO 8928u // of a 9000-byte one
#define WIRE_DATAGRAM_MAX (WIRE_HEADER + WIRE_PAYLOAD_JUMBO)

enum wire_type {
    WIRE_DISCOVER = 1, // host -> all: who is there?                  no payload
    WIRE_HELLO,        // duck -> host: answer                        struct wire_hello
    WIRE_OPEN,         // host -> duck                                struct wire_open
    WIRE_OPENED,       // duck -> host: answer                        struct wire_opened
    WIRE_REFUSED,      // duck -> host: answer                        struct wire_refused
    WIRE_CLOSE,        // host -> duck: ends the session              no payload
    WIRE_CLOSED,       // duck -> host: answer                        no payload
    WIRE_PING,         // host -> duck: renews the lease              no payload
    WIRE_PONG,         // duck -> host: answer                        no payload
    WIRE_PUT,          // host -> duck: a chunk of an object          struct wire_put, bytes
    WIRE_PUT_ACK,      // duck -> host                                struct wire_put_ack
    WIRE_UNITS,        // host -> duck: what do you hold?             struct wire_units
    WIRE_UNIT_HASHES,  // duck -> host: answer                        struct wire_unit_hashes, u64 hashes
    WIRE_STEP,         // host -> all: sequence = step number         a fragment of a step
    WIRE_STEP_ACK,     // duck -> host: has all of the step           struct wire_step_ack
    WIRE_RESULT,       // duck -> host: sequence = step number        a fragment of a result
    WIRE_DONE,         // duck -> host: all results have been sent    struct wire_done
    WIRE_RESEND,       // both ways: sequence = step number           struct wire_resend, bitmap
    WIRE_STATS,        // host -> duck                                no payload
    WIRE_STATS_REPLY,  // duck -> host: answer                        struct wire_stats
    WIRE_KAT,          // host -> duck: known-answer test             struct wire_kat
    WIRE_KAT_REPLY,    // duck -> host: answer                        struct wire_kat
    WIRE_LOG,          // host -> duck                                no payload
    WIRE_LOG_REPLY,    // duck -> host: its last lines                text, at most one payload
    WIRE_FAULT,        // duck -> host: the program failed            struct wire_fault
    WIRE_POWER,        // host -> duck: reboot or power off           struct wire_power
    WIRE_POWER_ACK,    // duck -> host: answer, then it happens       no payload
    WIRE_TYPES
};

enum { WIRE_ACK_NOW = 1 }; // flag of PUT: acknowledge at once (set on the last frame of a burst)

struct wire_header {
    uint32_t magic;
    uint8_t version;
    uint8_t type;
    uint16_t length;    // of the payload
    uint32_t session;   // 0: none
    uint32_t sequence;  // step number, or number of a request
    uint16_t fragment;  // 0 ..
    uint16_t fragments; // 1 for everything but STEP and RESULT
    uint16_t source;    // the duck's index in the session (0 outside one); WIRE_HOST
    uint16_t flags;
    uint64_t tag; // SipHash-2-4 of the header with tag 0 and the payload
};
_Static_assert(sizeof(struct wire_header) == WIRE_HEADER, "header");
_Static_assert(offsetof(struct wire_header, sequence) == 12 && offsetof(struct wire_header, tag) == 24,
               "header");

/* ---- admission ---- */

enum { WIRE_NONCE = 16 };

enum wire_feature {
    WIRE_AVX2 = 1,
    WIRE_FMA = 2,
    WIRE_F16C = 4,
    WIRE_AVX512 = 8,
    WIRE_BARE_METAL = 16, // needs a program; a Linux duck may compute without
    WIRE_JUMBO = 32,
    WIRE_TAKES_PROGRAM = 64, // can be sent one
    WIRE_E4M3 = 128,         // can keep weights as e4m3 (wire_plan.format)
};

struct wire_hello {
    uint8_t nonce[WIRE_NONCE]; // to be echoed by OPEN
    uint8_t mac[6];
    uint16_t cores;
    uint32_t version; // of the protocol; the rest of HELLO is the same in all versions
    uint32_t features;
    uint64_t memory_total, memory_free;   // bytes for weights and steps
    uint64_t boot_id;                     // a new one with every start
    uint64_t tsc_hz;                      // 0: unknown
    uint64_t read_bytes_per_second;       // of memory, measured at start; 0: not measured
    uint64_t firmware_hash, plan_hash;    // plan_hash 0: holds no weights
    uint32_t link_mbps;                   // 0: unknown
    uint32_t payload;                     // largest it can take: WIRE_PAYLOAD .. WIRE_PAYLOAD_JUMBO
    uint32_t holder_session;              // 0: free
    uint32_t holder_address;              // IPv4, most significant byte first; 0: free
    char name[32], cpu[48], firmware[24]; // zero-terminated
};
_Static_assert(sizeof(struct wire_hello) == 208 && offsetof(struct wire_hello, memory_total) == 32, "hello");

struct wire_open {
    uint8_t duck_nonce[WIRE_NONCE]; // from HELLO
    uint8_t nonce[WIRE_NONCE];      // the host's, the same for all ducks of its session; makes the key
    uint32_t session;               // not 0, the same for all ducks
    uint16_t duck;                  // the duck's index
    uint16_t payload;               // of every fragment but the last, a multiple of 32
    uint32_t lease_ms;              // so long after the last sign of life the duck turns others away
    uint32_t gap_us;                // wait so long for late frames before asking for what is missing
    uint32_t max_tokens;            // of a step
    uint16_t max_top_k;
    uint16_t step_slots;              // W, a power of two: step s may be sent once s - W is complete
    uint64_t plan_hash, program_hash; // program_hash 0: the duck's own kernels
    uint32_t address;                 // of the host: what others are told while the lease runs
    uint16_t port;
    uint8_t element_bytes; // largest of the weights to come (1, 2, 4): sizes the staging slots
    uint8_t in_turn;       // 1: receive, compute, send one after the other, to measure what overlap saves
};
_Static_assert(sizeof(struct wire_open) == 80 && offsetof(struct wire_open, plan_hash) == 56, "open");

/* State of what a session needs; also the answer to every OPEN repeated. */
struct wire_opened {
    uint8_t plan_held, program_held; // 1: yes; 0: PUT it
    uint16_t reserved;
    uint32_t units, units_held; // once the plan is there
    uint32_t staging_slots;     // units that may be on their way to this duck at once
    uint64_t root_hash;         // wire_root_hash() over all units; 0 while any is missing
    uint64_t boot_id;
    uint64_t memory_free;
};
_Static_assert(sizeof(struct wire_opened) == 40, "opened");

enum wire_refusal {
    WIRE_BUSY = 1,    // another host's lease runs; session, address, remaining_ms say whose
    WIRE_BAD_VERSION, // value: the duck's version
    WIRE_BAD_NONCE,   // OPEN echoes an old nonce: DISCOVER again
    WIRE_BAD_OPEN,    // a field is out of range; value: its offset in struct wire_open
    WIRE_NO_PROGRAM,  // this duck needs one, or takes none (value 1)
    WIRE_NO_MEMORY,   // for the steps of this session beside the weights; value: bytes needed in all
};

struct wire_refused {
    uint32_t reason, session; // of the OPEN that is refused
    uint64_t value;
    uint32_t holder_session, holder_address; // WIRE_BUSY
    uint32_t remaining_ms, reserved;
};
_Static_assert(sizeof(struct wire_refused) == 32, "refused");

/* ---- objects: program, plan, weights ---- */

enum wire_object { WIRE_PROGRAM, WIRE_PLAN, WIRE_UNIT };

/* A chunk is WIRE_CHUNK(payload) bytes, the last one of an object shorter. */
struct wire_put {
    uint32_t kind;   // enum wire_object
    uint32_t object; // WIRE_UNIT: its number, else 0
    uint32_t total;  // bytes of the object
    uint32_t offset; // of this chunk, a multiple of the chunk's size
    uint64_t hash;   // wire_object_hash() of the whole object: tells a new version from a late duplicate
};
_Static_assert(sizeof(struct wire_put) == 24, "put");
#define WIRE_CHUNK(payload) ((payload)-24u)

enum wire_put_status {
    WIRE_PUT_PARTIAL,  // chunks are missing: cumulative and bitmap say which
    WIRE_PUT_RECEIVED, // all there, being checked and packed; ask again with WIRE_ACK_NOW on any chunk
    WIRE_PUT_HELD,     // done; `hash` is wire_object_hash() of the bytes
    WIRE_PUT_NO_ROOM,  // all staging slots are taken: wait for one to be held
    WIRE_PUT_REFUSED,  // see `reason`; start the object again to try again
};

enum wire_put_reason {
    WIRE_PUT_BAD_OBJECT =
        1, // no such unit, no plan yet, or its size is not what the plan says; value: bytes expected
    WIRE_PUT_BAD_HASH,    // the bytes have another hash, or not that of OPEN; value: the hash
    WIRE_PUT_BAD_PLAN,    // impossible shape
    WIRE_PUT_NO_MEMORY,   // value: bytes needed; available: bytes there are
    WIRE_PUT_BAD_WEIGHT,  // value: element's index in the unit
    WIRE_PUT_BAD_SCALE,   // value: scale's index in the unit
    WIRE_PUT_BAD_PROGRAM, // value: what the loader found (duck/program.h)
};

enum { WIRE_SACK_BYTES = 64 };

struct wire_put_ack {
    uint32_t kind, object;
    uint32_t status, reason;
    uint32_t cumulative; // bytes there without a gap
    uint32_t free_slots; // staging slots free right now
    uint64_t hash;
    uint64_t value, available;
    uint8_t bitmap[WIRE_SACK_BYTES]; // bit i (LSB first): chunk cumulative / chunk + 1 + i is there
};
_Static_assert(sizeof(struct wire_put_ack) == 112 && offsetof(struct wire_put_ack, bitmap) == 48, "put_ack");

/* Plan object: struct wire_plan, banks x struct wire_bank, runs x struct wire_run. Its hash is the plan hash.
 */
struct wire_plan {
    uint32_t hidden, banks, runs;
    uint32_t format; // enum fp9_format, of all weights; other than FP9_FP9 only to a duck that says WIRE_E4M3
};
struct wire_bank {
    uint32_t routed, always, width;
};
struct wire_run {
    uint32_t bank, first, count;
};
_Static_assert(sizeof(struct wire_plan) == 16 && sizeof(struct wire_bank) == 12 &&
                   sizeof(struct wire_run) == 12,
               "plan");

/* A weight unit is one duck's part of one matrix of one expert of one run. Numbered by run of the plan, then
 * expert, then matrix (gate, up, down); see wire_unit.h for its bytes. */

struct wire_units {
    uint32_t first, count; // count 0: only the totals
};
struct wire_unit_hashes {
    uint32_t first, count; // hashes that follow; at most (payload - 32) / 8
    uint32_t units, units_held;
    uint32_t staging_slots, reserved;
    uint64_t root_hash;
}; // then count x u64: wire_object_hash() of the unit as received; 0: not held
_Static_assert(sizeof(struct wire_units) == 8 && sizeof(struct wire_unit_hashes) == 32, "units");

/* ---- steps ---- */

/* A step's bytes: struct wire_step; ids (tokens, top_k) int32, ascending within a token; weights (tokens,
 * top_k) float; activation: f32 or bf16 (tokens, hidden), or fp8: scales (tokens, ceil(hidden / 128)) float
 * and then e4m3 (tokens, hidden). Fragment i holds bytes from i * payload on. */
struct wire_step {
    uint32_t bank, tokens, top_k;
    uint8_t activation, result; // enum wire_dtype
    uint16_t lane;
    uint32_t bytes; // of the whole step, this struct included
    uint32_t reserved[3];
};
_Static_assert(sizeof(struct wire_step) == 32, "step");

enum wire_step_status {
    WIRE_STEP_QUEUED,
    WIRE_STEP_NOT_READY, // plan, program or weights are missing
    WIRE_STEP_BAD,       // impossible: bank, ids, sizes
};

struct wire_step_ack {
    uint32_t status;
    uint32_t fragments; // results to expect
    uint32_t queued;    // steps complete and not yet computed, this one included
    uint32_t done;      // 1: computed already, DONE has been sent
};
_Static_assert(sizeof(struct wire_step_ack) == 16, "step_ack");

/* Result fragments: wire_result_plan() below. DONE makes the loss of the last ones visible. */
struct wire_done {
    uint32_t fragments;
    uint32_t experts;    // expert reads
    uint64_t bytes;      // of packed weights read for them
    uint32_t receive_us; // first fragment -> step complete
    uint32_t wait_us;    // complete -> begun (another step was being computed)
    uint32_t compute_us; // begun -> last row
    uint32_t send_us;    // last row -> last fragment handed to the NIC
};
_Static_assert(sizeof(struct wire_done) == 32, "done");

/* Bit i of the bitmap (LSB first): fragment first + i is missing. count 0: all fragments are, even their
 * number is unknown. From a duck it asks for parts of STEP, from the host for parts of RESULT (and DONE). */
struct wire_resend {
    uint16_t first, count;
    uint32_t reserved;
};
_Static_assert(sizeof(struct wire_resend) == 8, "resend");

/* ---- care ---- */

/* wire_stats.care */
enum wire_care {
    WIRE_THROTTLED = 1,      // hot, the clock is held down right now
    WIRE_WAS_THROTTLED = 2,  // at some time since it was switched on
    WIRE_CLOCK_LOST = 4,     // the real-time clock lost its time: the board's battery is empty
    WIRE_CLOCKS_DIFFER = 8,  // the time stamp counter and a second clock disagree by more than 1 %
    WIRE_TURBO_OFF = 16,     // in its BIOS, and not to be switched on from here
    WIRE_POWER_LIMITED = 32, // the clock is held down by a power limit right now
    WIRE_WAS_POWER_LIMITED = 64,
};

/* Counters since boot, and how the machine is. */
struct wire_stats {
    uint64_t uptime_us, frames_in, bytes_in, frames_out, bytes_out;
    uint64_t steps, expert_reads, expert_bytes, compute_us;
    uint64_t bad_frame;     // no frame of this protocol: magic, version, length, fragment numbers
    uint64_t bad_tag;       // wrong key, or altered
    uint64_t stranger;      // session or sender is not the holder
    uint64_t duplicate;     // fragments and chunks there already
    uint64_t late;          // of steps that are over
    uint64_t unexpected;    // well-formed but impossible now: unknown unit, step before weights
    uint64_t resend_asked;  // RESEND sent
    uint64_t resend_served; // fragments sent again
    uint64_t nic_dropped;   // frames the NIC or the kernel lost
    uint64_t send_failed;   // frames the NIC did not take
    uint64_t sessions, faults;
    uint64_t units_held, bytes_held;
    // What the machine knows of itself; 0: not known, as on Linux.
    uint64_t memory_tested, memory_bad; // bytes; of them 8-byte words that did not keep a pattern at start
    uint32_t care;                      // enum wire_care
    uint32_t start_ms;                  // from the first clock to being a duck
    uint32_t core_mhz, base_mhz;        // core 0 at work since it was last asked; nominal
    uint16_t celsius, celsius_most;     // now; where it throttles
    uint32_t power_1_mw, power_2_mw;    // the limits: for long, for short
    uint32_t turbo_mhz;                 // with all cores busy, as the CPU states it
    uint32_t loaded_mhz;                // the slowest core while all tested memory at start
    uint32_t held_format;               // 1 + enum fp9_format of bytes_held; 0: holds none, or does not tell
    uint32_t reserved[4];
};
_Static_assert(sizeof(struct wire_stats) == 256 && offsetof(struct wire_stats, held_format) == 236, "stats");

/* A fixed pseudo-random layer is made from `seed`, one step is computed, `hash` is that of its result bits
 * (duck/kat.h): the same on every sound machine and of every format. */
struct wire_kat {
    uint64_t seed, hash;
    uint32_t compute_us;
    uint32_t format; // enum fp9_format that the layer's weights are kept in
};
_Static_assert(sizeof(struct wire_kat) == 24, "kat");

struct wire_fault {
    uint32_t vector; // of the CPU; WIRE_FAULT_STUCK: the program did not return in time
    uint32_t core;
    uint64_t error_code, rip, rsp, rflags, cr2;
    uint64_t gpr[15]; // rax rbx rcx rdx rsi rdi rbp r8 .. r15
    uint64_t program; // address it was loaded at
    uint32_t frames;  // of the backtrace
    uint32_t reserved;
    uint64_t backtrace[16];
    char text[72];
};
_Static_assert(sizeof(struct wire_fault) == 384, "fault");
#define WIRE_FAULT_STUCK 0x100u

enum wire_power_action { WIRE_REBOOT = 1, WIRE_POWER_OFF };
struct wire_power {
    uint8_t duck_nonce[WIRE_NONCE]; // of HELLO; outside a session it must match
    uint32_t action, reserved;
};
_Static_assert(sizeof(struct wire_power) == 24, "power");

/* ---- helpers ---- */

/* Largest payload for an IP packet of `mtu` bytes: whole 32-byte units. */
static inline uint32_t wire_payload_of_mtu(uint32_t mtu)
{
    uint32_t payload = mtu < 60 ? 0 : (mtu - 20 - 8 - WIRE_HEADER) / 32 * 32;
    return payload > WIRE_PAYLOAD_JUMBO ? WIRE_PAYLOAD_JUMBO : payload;
}

/* Fills magic, version, fragments (if 0) and tag of the header in front of `length` payload bytes. Returns
 * the bytes of the datagram. */
uint32_t wire_seal(uint8_t *datagram, struct wire_header header, const struct siphash_key *key);

enum wire_verdict { WIRE_OK, WIRE_MALFORMED, WIRE_OTHER_VERSION, WIRE_WRONG_TAG };
/* Parses and checks everything but the tag: magic, length == bytes - 32, fragment < fragments, type.
 * The version is checked last, so that the header is readable with WIRE_OTHER_VERSION. */
enum wire_verdict wire_parse(const uint8_t *datagram, size_t bytes, struct wire_header *out);
/* The tag of a parsed datagram. */
enum wire_verdict wire_check_tag(const uint8_t *datagram, const struct siphash_key *key);

struct siphash_key wire_session_key(const struct siphash_key *flock, const uint8_t nonce[WIRE_NONCE]);

/* 64-bit hash of an object's bytes: SipHash over the SipHashes of its pieces of 16 KiB, so that it can be
 * computed in bounded pieces and by several cores. Detects accidents; forgery is the tags' business. Never 0.
 */
enum { WIRE_HASH_PIECE = 16384 };
uint64_t wire_piece_hash(const uint8_t *piece, size_t bytes);
uint64_t wire_hash_of_pieces(const uint64_t *piece_hash, size_t pieces);
uint64_t wire_object_hash(const uint8_t *bytes, size_t count);
/* Over the hashes of all units in order. Never 0. */
uint64_t wire_root_hash(const uint64_t *unit_hash, size_t units);

static inline uint32_t wire_fragments(uint64_t bytes, uint32_t payload)
{
    return (uint32_t)((bytes + payload - 1) / payload);
}

/* Where the parts of a step lie. bytes 0: too large for the protocol (fragment numbers have 16 bits). */
struct wire_step_layout {
    uint64_t ids, weights, scales, x, bytes; // offsets; scales == x unless fp8
};
struct wire_step_layout wire_step_layout(uint32_t hidden, uint32_t tokens, uint32_t top_k,
                                         enum wire_dtype activation, uint32_t payload);

/* Result fragments of a step: the partial sums (subtrees, tokens, hidden) of the duck's subtrees of the bank
 * (duck_core_subtrees() of its plan), cut into blocks of rows that fill a payload. Ordered by row block, then
 * subtree, then token, because a duck finishes row blocks of all tokens one after the other. Where a token's
 * rows fit into a payload several times, a fragment holds neighbouring tokens. */
struct wire_result_plan {
    uint32_t rows_per_block;      // a multiple of 8
    uint32_t tokens_per_fragment; // 1 unless one block holds all rows
    uint32_t blocks, groups;      // ceil(hidden / rows_per_block), ceil(tokens / tokens_per_fragment)
    uint32_t subtrees, tokens, hidden;
    uint32_t fragments; // blocks * subtrees * groups; 0: more than 65535, or nothing to send
};
struct wire_result_plan wire_result_plan(uint32_t hidden, uint32_t tokens, uint32_t subtrees,
                                         enum wire_dtype result, uint32_t payload);
/* The fragment holds tokens x rows values, token after token. */
struct wire_result_part {
    uint32_t subtree, first_token, tokens, first_row, rows;
};
struct wire_result_part wire_result_part(const struct wire_result_plan *p, uint32_t fragment);

/* Bitmaps of fragments and chunks. */
static inline int wire_bit(const uint8_t *bitmap, size_t i)
{
    return bitmap[i / 8] >> (i % 8) & 1;
}
static inline void wire_set_bit(uint8_t *bitmap, size_t i)
{
    bitmap[i / 8] = (uint8_t)(bitmap[i / 8] | 1u << (i % 8));
}

#endif
