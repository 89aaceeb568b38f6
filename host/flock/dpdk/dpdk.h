/* dpdk.h: shared by the files of host/flock/dpdk only: the ports of a net_flock as DPDK devices. */
#ifndef DUCKD_HOST_FLOCK_DPDK_DPDK_H
#define DUCKD_HOST_FLOCK_DPDK_DPDK_H

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "host/flock/dpdk/frame.h"
#include "host/flock/net/workers.h"

#define DPDK_BURST 32u
#define DPDK_PENDING 128u // frames handed over and not yet taken by the device

enum dpdk_link { DPDK_UP, DPDK_DOWN, DPDK_GONE };

/* One port: a device, its worker's state, and the tap behind it. Owned by the worker while it runs. */
struct dpdk_port {
    struct net_port *port;
    const struct net_port_config *config;
    uint16_t device, tap; // RTE_MAX_ETHPORTS: none
    struct rte_mempool *pool;
    struct frame_self self;
    struct rte_mbuf *room; // for the next frame
    struct rte_mbuf *pending[DPDK_PENDING];
    uint16_t pendings;
    bool poll;            // never sleep
    enum dpdk_link link;  // as last said
    char interface[16];   // of the kernel, that net_af_packet sends through; empty: another device
    int interface_number; // of it, when it was opened
    _Atomic bool *stop;
    _Atomic uint32_t bell;           // changes when the engine thread has work for the worker
    _Atomic bool asleep;             // until it does
    _Atomic uint64_t other, dropped; // frames that were not ours; that the device did not take
};

/* device.c */
int dpdk_port_open(struct dpdk_port *p, struct error *err);
void dpdk_port_close(struct dpdk_port *p);
/* Says when the link has changed. */
void dpdk_port_watch(struct dpdk_port *p);

/* That an lcore's main function has ended orders what it did before what follows rte_eal_mp_wait_lcore();
 * ThreadSanitizer, which does not see into DPDK, has to be told. */
#ifdef __SANITIZE_THREAD__
void __tsan_release(void *address);
void __tsan_acquire(void *address);
#define DPDK_WORKER_ENDS(port) __tsan_release(port)
#define DPDK_WORKER_ENDED(port) __tsan_acquire(port)
#else
#define DPDK_WORKER_ENDS(port) ((void)(port))
#define DPDK_WORKER_ENDED(port) ((void)(port))
#endif

/* worker.c */
int dpdk_work(void *port);                // an lcore's main function
void dpdk_port_wake(struct dpdk_port *p); // ends its sleep; without a system call if it is awake

/* eal.c: makes the arguments of rte_eal_init(); lcores of the ports are mapped onto the CPUs there are. */
#define EAL_ARGUMENTS 96
struct eal_arguments {
    int count;
    char *argument[EAL_ARGUMENTS];
    char text[EAL_ARGUMENTS][192];
    unsigned main_lcore;
};
int eal_arguments_make(struct eal_arguments *a, const struct net_config *c, struct error *err);

#endif
