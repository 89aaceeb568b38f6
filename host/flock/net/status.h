/* status.h: what the ducks of a network flock say and do without a session: nobody is disturbed, a duck that
 * works for another host says what it is and what it has counted, and does nothing else. */
#ifndef DUCKD_HOST_FLOCK_NET_STATUS_H
#define DUCKD_HOST_FLOCK_NET_STATUS_H

#include <stdbool.h>

#include "host/flock/net/boot_log.h"
#include "host/flock/net/net.h"
#include "host/flock/spec.h"

struct net_status {
    char name[48];                // of the flock's file
    uint32_t port;                // index of its port
    bool wanted;                  // was to be asked
    bool found, counted;          // HELLO is there; STATS is there
    bool tested, sound;           // the known-answer test was answered; and right
    enum fp9_format format;       // that it was asked for
    bool obeys;                   // has promised to restart, to switch off
    double found_s;               // after the beginning
    bool has_mac;                 // in the flock's file
    bool serves;                  // this flock boots its ducks: `boot` is known
    bool port_down;               // its port has no link
    uint32_t other_frames;        // from its MAC address that are not the protocol's: it is switched on
    struct net_boot_history boot; // since the beginning if it was to be woken, else all
    uint32_t address;
    uint16_t udp;
    struct wire_hello hello;
    struct wire_stats stats;
};

/* Asks for `wants` (enum net_want) of the ducks that are wanted: `wanted` (spec->ducks), NULL: all. The known
 * answer is asked for with weights in `format`; of a duck that can keep none in it, as fp9. One entry per
 * duck of the specification; the caller frees *out. Takes up to `ms` when not all is answered; ducks that
 * another host holds are waited for only for what they do. */
int net_look(const struct flock_spec *spec, uint32_t wants, enum fp9_format format, const bool *wanted,
             uint32_t ms, struct net_status **out, struct error *err);

#endif
