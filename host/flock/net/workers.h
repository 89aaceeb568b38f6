/* workers.h: what moves the frames of a net_flock's ports: threads that call net_port_input() and
 * net_port_work(). Chosen by the flock's transport, known to host/flock/net/transport.c only. */
#ifndef DUCKD_HOST_FLOCK_NET_WORKERS_H
#define DUCKD_HOST_FLOCK_NET_WORKERS_H

#include "host/flock/net/net.h"

struct net_workers {
    /* Fills the ports' io and the flock's wake, and starts the workers. */
    int (*start)(void **out, struct net_flock *f, struct error *err);
    void (*stop)(void *self); // the workers have ended when it returns
};

extern const struct net_workers net_workers_udp;
extern const struct net_workers net_workers_dpdk;

#endif
