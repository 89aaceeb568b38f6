/* platform.h: what a duck needs from the machine under it. Implemented by platform_linux.c and by the
 * firmware; chosen by file, never by #ifdef. No PCI, UEFI or POSIX type passes it.
 *
 * Two parts. struct platform: time, cores, log, randomness, power. struct link: datagrams in and out; either
 * duck/net.c over a raw-frame NIC (struct nic below) or a UDP socket. All calls of struct link, struct nic
 * and of the duck itself come from core 0; cores 1 .. run duck_worker() (duck/duck.h) and touch nothing of
 * these but now() and sleep(). */
#ifndef DUCK_PLATFORM_H
#define DUCK_PLATFORM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct wire_stats;

/* ---- the machine ---- */

struct platform {
    void *self;                  // first argument of the functions below
    uint64_t (*now)(void *self); // nanoseconds since start, the same clock on all cores
    void (*random)(void *self, uint8_t *out, size_t bytes); // unpredictable: nonces
    void (*log)(void *self, const char *line);              // one line without newline
    /* A worker has had no work for a while: sleep until *word is no longer `seen`, at most `ns`. May wake
     * early. Called by any core but 0. */
    void (*sleep)(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns);
    /* Core 0 changed *word: end the sleep of whoever waits on it. Called at most once per step. */
    void (*wake)(void *self, const _Atomic uint32_t *word);
    /* Core 0 has nothing to do: sleep until a frame arrives, at most `ns`. May wake early. */
    void (*idle)(void *self, uint64_t ns);
    /* Fills what the machine knows of itself; NULL: nothing. */
    void (*health)(void *self, struct wire_stats *out);
    void (*power)(void *self, int off); // reboots (0) or switches off (1); may return where it cannot
    /* The judge's program (duck/program.h); NULL where only linked-in kernels are used. */
    const struct program_ops *program;

    uint64_t spin_ns; // cores sleep after so long without work (10 ms on a machine of its own)
    uint32_t cores;   // that compute, core 0 included
    /* Memory for weights and steps: one piece, 64-byte aligned, all zero at start; the duck owns it. */
    uint8_t *memory;
    uint64_t memory_bytes;
    uint64_t memory_total; // of the machine, for HELLO

    // What HELLO says; constant after start.
    uint64_t tsc_hz, boot_id, firmware_hash, read_bytes_per_second;
    uint32_t features; // enum wire_feature
    char name[32], cpu[48], firmware[24];
};

/* ---- datagrams ---- */

/* Where a datagram comes from or goes to. The MAC address is kept beside the IP address, so that an answer
 * never waits for ARP; sockets ignore it. */
struct peer {
    uint32_t address; // IPv4, most significant byte first: 10.21.1.5 is 0x0a150105
    uint16_t port;
    uint8_t mac[6];
};

enum {
    LINK_HEADROOM = 64
}; // writable bytes in front of a datagram that is sent: Ethernet, IP and UDP headers

struct datagram {
    struct peer peer;
    uint32_t bytes;
    uint8_t *data; // receive: valid until the next recv(); send: LINK_HEADROOM writable bytes in front
};

struct link_state {
    uint32_t mbps;    // 0: unknown or down
    uint32_t payload; // largest datagram payload behind struct wire_header (wire_payload_of_mtu())
    uint8_t mac[6];
    uint64_t dropped; // frames lost before recv() saw them
};

struct link {
    void *self;
    uint32_t (*recv)(void *self, struct datagram *out, uint32_t max); // never blocks; 0: nothing there
    /* Returns how many were taken (copied or queued), the first ones; the rest may be tried again. */
    uint32_t (*send)(void *self, struct datagram *d, uint32_t count);
    void (*state)(void *self, struct link_state *out);
};

/* ---- raw frames ---- */

struct frame {
    uint8_t *data; // from the Ethernet header on, no FCS
    uint32_t bytes;
};

/* Counters of a driver, for STATS and doctor. */
struct nic_stats {
    uint64_t in, out, dropped, errors;
};

struct nic {
    void *self;
    uint8_t mac[6];
    uint32_t mtu; // largest IP packet
    /* As in struct link: received frames stay valid until the next recv(); send copies or queues. One
     * doorbell per call. */
    uint32_t (*recv)(void *self, struct frame *out, uint32_t max);
    uint32_t (*send)(void *self, const struct frame *f, uint32_t count);
    uint32_t (*link_mbps)(void *self); // 0: down
    void (*stats)(void *self, struct nic_stats *out);
    /* Before the machine is switched off: ends all traffic, and lets the device ask for power when a magic
     * packet for its address arrives. No other call after it. 0, or -1: it does not answer. NULL: a driver
     * or a device that cannot. */
    int (*arm_wake)(void *self);
};

#endif
