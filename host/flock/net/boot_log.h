/* boot_log.h: how far each duck has come in booting, from what dnsmasq has written (boot.h: log-dhcp). Only
 * ducks with a MAC address in the flock's file are told apart. */
#ifndef DUCKD_HOST_FLOCK_NET_BOOT_LOG_H
#define DUCKD_HOST_FLOCK_NET_BOOT_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "host/flock/net/config.h"
#include "host/flock/spec.h"

/* The furthest step of its last start; later ones include the earlier. */
enum net_boot_stage {
    NET_BOOT_SILENT,  // has asked for nothing
    NET_BOOT_OTHER,   // asked for an address, but not as PXE does: something else is running on it
    NET_BOOT_LEGACY,  // PXE of a BIOS: no UEFI
    NET_BOOT_ASKED,   // PXE asked for an address and has not taken one
    NET_BOOT_ADDRESS, // has an address, has not fetched the image
    NET_BOOT_IMAGE,   // has the whole image, not duck.conf: it was not started
    NET_BOOT_STARTED, // the image runs and has fetched its key
};

struct net_boot_history {
    enum net_boot_stage stage;
    uint32_t starts;   // through PXE, as far back as the log goes
    uint32_t failures; // of TFTP
    char class[32];    // what it calls itself when it asks for an address
};

/* Fills out[0 .. config->ducks). */
void net_boot_read_log(const struct net_config *config, FILE *log, struct net_boot_history *out);
/* The same of the log in config->boot_dir from byte `from` on; no log: nobody has asked for anything. */
void net_boot_look_up(const struct net_config *config, uint64_t from, struct net_boot_history *out);
uint64_t net_boot_log_end(const struct net_config *config);

#endif
