/* status.h: what the ducks of a network flock say of themselves, without a session: nobody is disturbed, a
 * duck that works for another host answers as well. */
#ifndef DUCKD_HOST_FLOCK_NET_STATUS_H
#define DUCKD_HOST_FLOCK_NET_STATUS_H

#include <stdbool.h>

#include "duck/wire.h"
#include "host/flock/spec.h"

struct net_status {
    char name[48];       // of the flock's file
    uint32_t port;       // index of its port
    bool found, counted; // HELLO is there; STATS is there
    uint32_t address;
    uint16_t udp;
    struct wire_hello hello;
    struct wire_stats stats;
};

/* One entry per duck of the specification; the caller frees *out. Takes up to find_ms when ducks are missing.
 */
int net_status(const struct flock_spec *spec, struct net_status **out, struct error *err);

#endif
