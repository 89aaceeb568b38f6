/* nursery.c: one lost duck after the other: find it, open a session with it alone, load, close. */
#include "host/flock/nursery.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/load.h"
#include "host/util/clock.h"
#include "host/util/log.h"

#define PAUSE_S 1          // between two looks for ducks that do not answer
#define REFUSED_PAUSE_S 20 // after one that answers and cannot be used

struct nursery {
    struct nursery_options o;
    pthread_t thread;
    pthread_mutex_t mutex; // of `lost`
    pthread_cond_t cond;
    bool lost[FLOCK_MAX_DUCKS];
    _Atomic int whole; // -1: none
    _Atomic bool stop;
};

/* -ENODEV: it does not answer. */
static int bring_back(struct nursery *n, uint32_t duck, struct error *err)
{
    const struct transport_ops *ops = n->o.host->ops;
    struct transport *guest;
    struct plan plan;
    int rc = ops->guest(&guest, n->o.host, duck, err);
    if (rc) return rc;
    rc = plan_part(&plan, n->o.home, duck, err);
    if (rc == 0) {
        log_notice("%s is there: it gets its weights", n->o.duck[duck].name);
        struct transport_options t = n->o.transport;
        t.plan = &plan;
        rc = ops->open(&guest, &t, err);
        if (rc == 0) rc = flock_load_quietly(guest, &plan, n->o.model, &n->stop, err);
    }
    ops->close(guest);
    plan_free(&plan);
    return rc == -ENODEV ? -EIO : rc;
}

/* Sleeps; with the mutex held. */
static void pause_for(struct nursery *n, uint64_t seconds)
{
    clock_wait(&n->cond, &n->mutex, clock_ns() + seconds * 1000000000u);
}

/* A lost duck after the last one that was tried; -1: none. */
static int next_lost(const struct nursery *n, uint32_t after)
{
    for (uint32_t i = 1; i <= FLOCK_MAX_DUCKS; i++)
        if (n->lost[(after + i) % FLOCK_MAX_DUCKS]) return (int)((after + i) % FLOCK_MAX_DUCKS);
    return -1;
}

static void *work(void *arg)
{
    struct nursery *n = arg;
    uint32_t last = 0;
    pthread_mutex_lock(&n->mutex);
    while (!n->stop) {
        int duck = n->whole >= 0 ? -1 : next_lost(n, last); // one at a time
        if (duck < 0) {
            pause_for(n, PAUSE_S);
            continue;
        }
        last = (uint32_t)duck;
        struct error err = {""};
        pthread_mutex_unlock(&n->mutex);
        int rc = bring_back(n, last, &err);
        pthread_mutex_lock(&n->mutex);
        if (rc == 0) {
            n->lost[duck] = false;
            n->whole = duck;
        } else if (rc != -ECANCELED) {
            if (rc != -ENODEV) log_notice("%s cannot take part again: %s", n->o.duck[duck].name, err.text);
            if (!n->stop) pause_for(n, rc == -ENODEV ? PAUSE_S : REFUSED_PAUSE_S);
        }
    }
    pthread_mutex_unlock(&n->mutex);
    return NULL;
}

int nursery_open(struct nursery **out, const struct nursery_options *o, struct error *err)
{
    struct nursery *n = calloc(1, sizeof *n);
    if (!n) return error_set(err, -ENOMEM, "no memory for ducks on their way back");
    n->o = *o;
    n->whole = -1;
    pthread_mutex_init(&n->mutex, NULL);
    pthread_cond_init(&n->cond, NULL);
    int rc = -pthread_create(&n->thread, NULL, work, n);
    if (rc) {
        free(n);
        return error_set(err, rc, "no thread for ducks on their way back: %s", strerror(-rc));
    }
    *out = n;
    return 0;
}

void nursery_close(struct nursery *n)
{
    if (!n) return;
    atomic_store(&n->stop, true);
    pthread_mutex_lock(&n->mutex);
    pthread_cond_signal(&n->cond);
    pthread_mutex_unlock(&n->mutex);
    pthread_join(n->thread, NULL);
    pthread_mutex_destroy(&n->mutex);
    pthread_cond_destroy(&n->cond);
    free(n);
}

void nursery_add(struct nursery *n, uint32_t duck)
{
    pthread_mutex_lock(&n->mutex);
    n->lost[duck] = true;
    if (n->whole == (int)duck) n->whole = -1;
    pthread_cond_signal(&n->cond);
    pthread_mutex_unlock(&n->mutex);
}

int nursery_take(struct nursery *n)
{
    return atomic_load_explicit(&n->whole, memory_order_relaxed) < 0 ? -1 : atomic_exchange(&n->whole, -1);
}
