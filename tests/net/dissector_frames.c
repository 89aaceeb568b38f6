/* dissector_frames.c: a frame of every type, with random contents, as a pcap file, and what a dissector has
 * to say of them by duck/wire.h: tests/net/dissector.sh compares it with what Wireshark says.
 *
 * usage: dissector-frames PCAP    the fields' names to stdout on the first line, then a line per frame */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/fp9/fp9_random.h"
#include "tests/net/capture.h"

enum { EVERY = 0 }; // type: all of them have it
struct field {
    int type;
    const char *name;
    size_t at, bytes; // in the datagram
    bool hex;
};

#define SIZE(s, member) sizeof(((struct s *)0)->member)
#define HEAD(member, hex)                                                                                    \
    {                                                                                                        \
        EVERY, #member, offsetof(struct wire_header, member), SIZE(wire_header, member), hex                 \
    }
#define BODY(type, s, member, name)                                                                          \
    {                                                                                                        \
        WIRE_##type, name, WIRE_HEADER + offsetof(struct s, member), SIZE(s, member), SIZE(s, member) == 8   \
    }
#define STATS(member) BODY(STATS_REPLY, wire_stats, member, "stats." #member)

static const struct field fields[] = {HEAD(version, false),
                                      HEAD(type, false),
                                      HEAD(length, false),
                                      HEAD(session, true),
                                      HEAD(sequence, false),
                                      HEAD(fragment, false),
                                      HEAD(fragments, false),
                                      HEAD(source, true),
                                      HEAD(flags, true),
                                      HEAD(tag, true),
                                      BODY(HELLO, wire_hello, cores, "hello.cores"),
                                      BODY(HELLO, wire_hello, version, "hello.version"),
                                      BODY(HELLO, wire_hello, features, "hello.features"),
                                      BODY(HELLO, wire_hello, memory_total, "hello.memory_total"),
                                      BODY(HELLO, wire_hello, memory_free, "hello.memory_free"),
                                      BODY(HELLO, wire_hello, boot_id, "hello.boot_id"),
                                      BODY(HELLO, wire_hello, tsc_hz, "hello.tsc_hz"),
                                      BODY(HELLO, wire_hello, read_bytes_per_second, "hello.read"),
                                      BODY(HELLO, wire_hello, firmware_hash, "hello.firmware_hash"),
                                      BODY(HELLO, wire_hello, plan_hash, "hello.plan_hash"),
                                      BODY(HELLO, wire_hello, link_mbps, "hello.link"),
                                      BODY(HELLO, wire_hello, payload, "hello.largest_payload"),
                                      BODY(HELLO, wire_hello, holder_session, "hello.holder_session"),
                                      BODY(HELLO, wire_hello, holder_address, "hello.holder_address"),
                                      BODY(OPEN, wire_open, session, "open.session"),
                                      BODY(OPEN, wire_open, duck, "open.duck"),
                                      BODY(OPEN, wire_open, payload, "open.payload"),
                                      BODY(OPEN, wire_open, lease_ms, "open.lease"),
                                      BODY(OPEN, wire_open, gap_us, "open.gap"),
                                      BODY(OPEN, wire_open, max_tokens, "open.max_tokens"),
                                      BODY(OPEN, wire_open, max_top_k, "open.max_top_k"),
                                      BODY(OPEN, wire_open, step_slots, "open.slots"),
                                      BODY(OPEN, wire_open, plan_hash, "open.plan_hash"),
                                      BODY(OPEN, wire_open, program_hash, "open.program_hash"),
                                      BODY(OPEN, wire_open, address, "open.address"),
                                      BODY(OPEN, wire_open, port, "open.port"),
                                      BODY(OPEN, wire_open, element_bytes, "open.element_bytes"),
                                      BODY(OPEN, wire_open, in_turn, "open.in_turn"),
                                      BODY(OPENED, wire_opened, plan_held, "opened.plan"),
                                      BODY(OPENED, wire_opened, program_held, "opened.program"),
                                      BODY(OPENED, wire_opened, units, "opened.units"),
                                      BODY(OPENED, wire_opened, units_held, "opened.held"),
                                      BODY(OPENED, wire_opened, staging_slots, "opened.slots"),
                                      BODY(OPENED, wire_opened, root_hash, "opened.root"),
                                      BODY(OPENED, wire_opened, boot_id, "opened.boot_id"),
                                      BODY(OPENED, wire_opened, memory_free, "opened.free"),
                                      BODY(REFUSED, wire_refused, reason, "refused.reason"),
                                      BODY(REFUSED, wire_refused, session, "refused.session"),
                                      BODY(REFUSED, wire_refused, value, "refused.value"),
                                      BODY(REFUSED, wire_refused, holder_session, "refused.holder"),
                                      BODY(REFUSED, wire_refused, holder_address, "refused.address"),
                                      BODY(REFUSED, wire_refused, remaining_ms, "refused.remaining"),
                                      BODY(PUT, wire_put, kind, "put.kind"),
                                      BODY(PUT, wire_put, object, "put.object"),
                                      BODY(PUT, wire_put, total, "put.total"),
                                      BODY(PUT, wire_put, offset, "put.offset"),
                                      BODY(PUT, wire_put, hash, "put.hash"),
                                      BODY(PUT_ACK, wire_put_ack, kind, "ack.kind"),
                                      BODY(PUT_ACK, wire_put_ack, object, "ack.object"),
                                      BODY(PUT_ACK, wire_put_ack, status, "ack.status"),
                                      BODY(PUT_ACK, wire_put_ack, reason, "ack.reason"),
                                      BODY(PUT_ACK, wire_put_ack, cumulative, "ack.cumulative"),
                                      BODY(PUT_ACK, wire_put_ack, free_slots, "ack.free"),
                                      BODY(PUT_ACK, wire_put_ack, hash, "ack.hash"),
                                      BODY(PUT_ACK, wire_put_ack, value, "ack.value"),
                                      BODY(PUT_ACK, wire_put_ack, available, "ack.available"),
                                      BODY(UNITS, wire_units, first, "units.first"),
                                      BODY(UNITS, wire_units, count, "units.count"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, first, "hashes.first"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, count, "hashes.count"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, units, "hashes.units"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, units_held, "hashes.held"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, staging_slots, "hashes.slots"),
                                      BODY(UNIT_HASHES, wire_unit_hashes, root_hash, "hashes.root"),
                                      BODY(STEP, wire_step, bank, "step.bank"),
                                      BODY(STEP, wire_step, tokens, "step.tokens"),
                                      BODY(STEP, wire_step, top_k, "step.top_k"),
                                      BODY(STEP, wire_step, activation, "step.activation"),
                                      BODY(STEP, wire_step, result, "step.result"),
                                      BODY(STEP, wire_step, lane, "step.lane"),
                                      BODY(STEP, wire_step, bytes, "step.bytes"),
                                      BODY(STEP_ACK, wire_step_ack, status, "step_ack.status"),
                                      BODY(STEP_ACK, wire_step_ack, fragments, "step_ack.fragments"),
                                      BODY(STEP_ACK, wire_step_ack, queued, "step_ack.queued"),
                                      BODY(STEP_ACK, wire_step_ack, done, "step_ack.done"),
                                      BODY(DONE, wire_done, fragments, "done.fragments"),
                                      BODY(DONE, wire_done, experts, "done.experts"),
                                      BODY(DONE, wire_done, bytes, "done.bytes"),
                                      BODY(DONE, wire_done, receive_us, "done.receive"),
                                      BODY(DONE, wire_done, wait_us, "done.wait"),
                                      BODY(DONE, wire_done, compute_us, "done.compute"),
                                      BODY(DONE, wire_done, send_us, "done.send"),
                                      BODY(RESEND, wire_resend, first, "resend.first"),
                                      BODY(RESEND, wire_resend, count, "resend.count"),
                                      BODY(KAT_REPLY, wire_kat, seed, "kat.seed"),
                                      BODY(KAT_REPLY, wire_kat, hash, "kat.hash"),
                                      BODY(KAT_REPLY, wire_kat, compute_us, "kat.compute"),
                                      BODY(KAT_REPLY, wire_kat, format, "kat.format"),
                                      BODY(FAULT, wire_fault, vector, "fault.vector"),
                                      BODY(FAULT, wire_fault, core, "fault.core"),
                                      BODY(FAULT, wire_fault, error_code, "fault.error"),
                                      BODY(FAULT, wire_fault, rip, "fault.rip"),
                                      BODY(FAULT, wire_fault, rsp, "fault.rsp"),
                                      BODY(FAULT, wire_fault, rflags, "fault.rflags"),
                                      BODY(FAULT, wire_fault, cr2, "fault.cr2"),
                                      BODY(FAULT, wire_fault, program, "fault.program"),
                                      BODY(FAULT, wire_fault, frames, "fault.frames"),
                                      BODY(FAULT, wire_fault, gpr[0], "fault.rax"),
                                      BODY(FAULT, wire_fault, gpr[1], "fault.rbx"),
                                      BODY(FAULT, wire_fault, gpr[2], "fault.rcx"),
                                      BODY(FAULT, wire_fault, gpr[3], "fault.rdx"),
                                      BODY(FAULT, wire_fault, gpr[4], "fault.rsi"),
                                      BODY(FAULT, wire_fault, gpr[5], "fault.rdi"),
                                      BODY(FAULT, wire_fault, gpr[6], "fault.rbp"),
                                      BODY(FAULT, wire_fault, gpr[7], "fault.r8"),
                                      BODY(FAULT, wire_fault, gpr[8], "fault.r9"),
                                      BODY(FAULT, wire_fault, gpr[9], "fault.r10"),
                                      BODY(FAULT, wire_fault, gpr[10], "fault.r11"),
                                      BODY(FAULT, wire_fault, gpr[11], "fault.r12"),
                                      BODY(FAULT, wire_fault, gpr[12], "fault.r13"),
                                      BODY(FAULT, wire_fault, gpr[13], "fault.r14"),
                                      BODY(FAULT, wire_fault, gpr[14], "fault.r15"),
                                      BODY(FAULT, wire_fault, backtrace[0], "fault.from0"),
                                      BODY(FAULT, wire_fault, backtrace[15], "fault.from15"),
                                      BODY(POWER, wire_power, action, "power.action"),
                                      STATS(uptime_us),
                                      STATS(frames_in),
                                      STATS(bytes_in),
                                      STATS(frames_out),
                                      STATS(bytes_out),
                                      STATS(steps),
                                      STATS(expert_reads),
                                      STATS(expert_bytes),
                                      STATS(compute_us),
                                      STATS(bad_frame),
                                      STATS(bad_tag),
                                      STATS(stranger),
                                      STATS(duplicate),
                                      STATS(late),
                                      STATS(unexpected),
                                      STATS(resend_asked),
                                      STATS(resend_served),
                                      STATS(nic_dropped),
                                      STATS(send_failed),
                                      STATS(sessions),
                                      STATS(faults),
                                      STATS(units_held),
                                      STATS(bytes_held),
                                      STATS(memory_tested),
                                      STATS(memory_bad),
                                      STATS(care),
                                      STATS(start_ms),
                                      STATS(core_mhz),
                                      STATS(base_mhz),
                                      STATS(celsius),
                                      STATS(celsius_most),
                                      STATS(power_1_mw),
                                      STATS(power_2_mw),
                                      STATS(turbo_mhz),
                                      STATS(loaded_mhz),
                                      STATS(held_format)};
enum { FIELDS = sizeof fields / sizeof *fields };

/* Bytes of every type's payload; others have none. */
static const size_t payload_bytes[] = {[WIRE_HELLO] = sizeof(struct wire_hello),
                                       [WIRE_OPEN] = sizeof(struct wire_open),
                                       [WIRE_OPENED] = sizeof(struct wire_opened),
                                       [WIRE_REFUSED] = sizeof(struct wire_refused),
                                       [WIRE_PUT] = sizeof(struct wire_put) + 1416,
                                       [WIRE_PUT_ACK] = sizeof(struct wire_put_ack),
                                       [WIRE_UNITS] = sizeof(struct wire_units),
                                       [WIRE_UNIT_HASHES] = sizeof(struct wire_unit_hashes) + 80,
                                       [WIRE_STEP] = WIRE_PAYLOAD,
                                       [WIRE_STEP_ACK] = sizeof(struct wire_step_ack),
                                       [WIRE_RESULT] = WIRE_PAYLOAD,
                                       [WIRE_DONE] = sizeof(struct wire_done),
                                       [WIRE_RESEND] = sizeof(struct wire_resend) + 3,
                                       [WIRE_STATS_REPLY] = sizeof(struct wire_stats),
                                       [WIRE_KAT] = sizeof(struct wire_kat),
                                       [WIRE_KAT_REPLY] = sizeof(struct wire_kat),
                                       [WIRE_LOG_REPLY] = 100,
                                       [WIRE_FAULT] = sizeof(struct wire_fault),
                                       [WIRE_POWER] = sizeof(struct wire_power),
                                       [WIRE_POWER_ACK] = 0};

static void say(const struct field *f, const uint8_t *datagram)
{
    uint64_t value = 0;
    memcpy(&value, datagram + f->at, f->bytes);
    if (f->hex) {
        printf("0x%0*llx", (int)(2 * f->bytes), (unsigned long long)value);
    } else {
        printf("%llu", (unsigned long long)value);
    }
}

static void write_frame(FILE *out, int type, uint32_t fragment, uint64_t *seed)
{
    static uint8_t datagram[WIRE_DATAGRAM_MAX];
    static const struct net_peer host = {0x0a150001, WIRE_HOST_PORT, {2, 0, 0, 0, 0, 1}},
                                 duck = {0x0a150065, WIRE_DUCK_PORT, {2, 0, 0, 0, 0, 2}};
    size_t bytes = payload_bytes[type];
    for (size_t i = 0; i < bytes; i++) datagram[WIRE_HEADER + i] = (uint8_t)(32 + random_below(seed, 95));
    struct wire_header h = {.type = (uint8_t)type,
                            .length = (uint16_t)bytes,
                            .session = (uint32_t)random_next(seed),
                            .sequence = (uint32_t)random_next(seed),
                            .fragment = (uint16_t)fragment,
                            .fragments = type == WIRE_STEP || type == WIRE_RESULT ? 7 : 1,
                            .source = (uint16_t)random_next(seed),
                            .flags = (uint16_t)random_next(seed)};
    const struct siphash_key key = {random_next(seed), random_next(seed)};
    uint32_t length = wire_seal(datagram, h, &key);
    bool from_host = type == WIRE_OPEN || type == WIRE_PUT || type == WIRE_STEP || type == WIRE_UNITS;
    capture_add(out, from_host ? &host : &duck, from_host ? &duck : &host, datagram, length,
                (uint64_t)type * 1000);
    for (int i = 0; i < FIELDS; i++) {
        bool there = fields[i].type == EVERY || (fields[i].type == type && fragment == 0);
        if (there) say(&fields[i], datagram);
        putchar(i + 1 < FIELDS ? ';' : '\n');
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: dissector-frames PCAP\n");
        return 2;
    }
    for (int i = 0; i < FIELDS; i++) printf("duckd.%s%c", fields[i].name, i + 1 < FIELDS ? ';' : '\n');
    FILE *out = capture_open(argv[1]);
    uint64_t seed = 7;
    for (int type = WIRE_DISCOVER; type <= WIRE_POWER_ACK; type++)
        if (type != WIRE_KAT) write_frame(out, type, 0, &seed); // KAT_REPLY has the same fields
    write_frame(out, WIRE_STEP, 3, &seed);
    write_frame(out, WIRE_RESULT, 6, &seed);
    capture_close(out);
    return 0;
}
