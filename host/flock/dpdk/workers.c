/* workers.c: EAL in a thread of its own, because it pins the thread that starts it and threads inherit that;
 * a worker on an lcore for every port. EAL cannot be started twice in a process. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>

#include "host/flock/dpdk/dpdk.h"
#include "host/flock/net/boot.h"

struct dpdk {
    struct net_flock *flock;
    struct dpdk_port port[NET_MAX_PORTS];
    struct net_boot *boot; // NULL: ducks boot from elsewhere
    pthread_t thread;
    sem_t started, ended;
    _Atomic bool stop; // of the workers
    bool initialised;  // EAL is
    int rc;
    struct error err;
};

static _Atomic bool eal_used;

static void wake(void *self)
{
    struct dpdk *d = self;
    for (uint32_t i = 0; i < d->flock->wires; i++) dpdk_port_wake(&d->port[i]);
}

static int open_ports(struct dpdk *d)
{
    int rc = 0;
    for (uint32_t i = 0; i < d->flock->wires; i++) d->port[i].device = d->port[i].tap = RTE_MAX_ETHPORTS;
    for (uint32_t i = 0; i < d->flock->wires && !rc; i++) {
        struct dpdk_port *p = &d->port[i];
        p->port = &d->flock->port[i];
        p->config = &d->flock->config->port[i];
        p->poll = d->flock->config->poll;
        p->stop = &d->stop;
        rc = dpdk_port_open(p, &d->err);
    }
    for (uint32_t i = 0; i < d->flock->wires && !rc; i++) {
        rc = rte_eal_remote_launch(dpdk_work, &d->port[i], d->port[i].config->lcore);
        if (rc)
            error_set(&d->err, rc, "lcore %u cannot work: %s", d->port[i].config->lcore, rte_strerror(-rc));
    }
    if (!rc && d->flock->config->boot) rc = net_boot_start(&d->boot, d->flock->config, &d->err);
    return rc;
}

static int start_eal(struct dpdk *d)
{
    static struct eal_arguments a; // EAL keeps pointers into it
    if (atomic_exchange(&eal_used, true))
        return error_set(&d->err, -EALREADY, "DPDK was started before in this process");
    int rc = eal_arguments_make(&a, d->flock->config, &d->err);
    if (rc) return rc;
    if (rte_eal_init(a.count, a.argument) < 0) {
        return error_set(&d->err, -rte_errno,
                         "DPDK does not start: %s (see the lines above; \"memory_mb\" and \"huge_pages\" "
                         "in the flock's file say which memory it takes)",
                         rte_strerror(rte_errno));
    }
    d->initialised = true;
    return open_ports(d);
}

/* Until stop(): sleeps, and looks at the links once a second. */
static void watch(struct dpdk *d)
{
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        if (sem_clockwait(&d->ended, CLOCK_MONOTONIC, &until) == 0) return;
        for (uint32_t i = 0; i < d->flock->wires; i++) dpdk_port_watch(&d->port[i]);
        if (d->boot) net_boot_watch(d->boot);
    }
}

static void *eal_main(void *arg)
{
    struct dpdk *d = arg;
    d->rc = start_eal(d);
    bool running = d->rc == 0;
    sem_post(&d->started);
    if (running) watch(d);
    net_boot_stop(d->boot);
    atomic_store(&d->stop, true);
    if (d->initialised) {
        rte_eal_mp_wait_lcore();
        for (uint32_t i = 0; i < d->flock->wires; i++) {
            DPDK_WORKER_ENDED(&d->port[i]);
            dpdk_port_close(&d->port[i]);
        }
        rte_eal_cleanup();
    }
    return NULL;
}

static void stop(void *self)
{
    struct dpdk *d = self;
    d->flock->wake = NULL;
    sem_post(&d->ended);
    pthread_join(d->thread, NULL);
    sem_destroy(&d->started);
    sem_destroy(&d->ended);
    free(d);
}

static int start(void **out, struct net_flock *f, struct error *err)
{
    struct dpdk *d = calloc(1, sizeof *d);
    if (!d) return error_set(err, -ENOMEM, "no memory for %u ports", f->wires);
    d->flock = f;
    sem_init(&d->started, 0, 0);
    sem_init(&d->ended, 0, 0);
    int rc = -pthread_create(&d->thread, NULL, eal_main, d);
    if (rc) {
        free(d);
        return error_set(err, rc, "no thread for DPDK: %s", strerror(-rc));
    }
    while (sem_wait(&d->started) != 0) continue; // EAL's start is bounded; signals are not an answer
    if (d->rc) {
        rc = d->rc;
        if (err) *err = d->err;
        stop(d);
        return rc;
    }
    if (!f->config->poll) {
        f->wake = wake;
        f->wake_self = d;
    }
    *out = d;
    return 0;
}

const struct net_workers net_workers_dpdk = {.start = start, .stop = stop};
