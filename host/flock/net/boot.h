/* boot.h: what bare-metal ducks boot from: a dnsmasq (DHCP and TFTP) behind the taps of a DPDK flock's ports,
 * configured, started and watched by us from the flock's file alone. Only the ducks of that file are served:
 * those with a MAC address get their own address and nobody else does; for the others of a port there are as
 * many addresses as ducks. The flock's key travels in duck.conf, beside the image (docs/firmware.md). Owned
 * by the thread of a port's worker; never on a step's path. */
#ifndef DUCKD_HOST_FLOCK_NET_BOOT_H
#define DUCKD_HOST_FLOCK_NET_BOOT_H

#include <stdio.h>

#include "host/flock/net/config.h"

struct net_boot;

/* The taps duckd0 .. are there: gives them the ports' addresses, fills config->boot_dir, starts dnsmasq. */
int net_boot_start(struct net_boot **out, const struct net_config *config, struct error *err);
/* About once a second: says when dnsmasq has ended, and starts it again. */
void net_boot_watch(struct net_boot *b);
void net_boot_stop(struct net_boot *b); // NULL: nothing to do

/* Fills config->boot_dir: dnsmasq's configuration and what ducks fetch. */
int net_boot_fill(const struct net_config *config, struct error *err);
/* dnsmasq's configuration. */
void net_boot_write(const struct net_config *config, FILE *out);

#endif
