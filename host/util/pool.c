/* pool.c: the worker threads.
 *
 * One word carries a job: `claim` = generation << 32 | tasks not yet claimed. A thread claims a task by
 * lowering it with a compare-and-swap; because the generation is part of the word, a thread that was held up
 * between reading the job and claiming fails instead of running a task of the next job. A claim that
 * succeeds proves that the job was unfinished at that moment, so fn, arg and tasks read before it are its
 * own. `pending` counts tasks not yet finished; whoever takes it to 0 wakes the caller. */
#include "host/util/pool.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/util/clock.h"
#include "host/util/cpus.h"

#define POOL_MAX_THREADS 1024u
/* Decode issues jobs microseconds apart; waking a sleeper costs 5 .. 50 us. Spinning longer than a wake-up
 * costs gains nothing. The second half of the wait yields between looks, so that a thread with work gets the
 * CPU at once when there are fewer CPUs than busy threads. */
#define SPIN_NS 20000u
#define YIELD_NS 60000u
#define PAUSES_PER_LOOK 8u

struct worker {
    struct pool *pool;
    pthread_t thread;
    unsigned index;
};

struct pool {
    _Alignas(64) _Atomic uint64_t claim;
    _Alignas(64) _Atomic uint32_t pending; // a futex: the caller sleeps on it
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t wake; // a futex: idle workers sleep on it
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    // the job; written by the caller while no task is pending
    _Alignas(64) _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t tasks;
    uint32_t generation;
    bool active;
    unsigned threads;
    struct worker *workers; // (threads - 1)
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

static bool has_tasks(const struct pool *p)
{
    return (uint32_t)atomic_load(&p->claim) != 0;
}

static bool worker_has_reason(const struct pool *p)
{
    return has_tasks(p) || atomic_load(&p->stop);
}

static bool caller_has_reason(const struct pool *p)
{
    return atomic_load(&p->pending) == 0;
}

/* Looks until there is a reason to go on; false: it is time to sleep. */
static bool spin(const struct pool *p, bool (*reason)(const struct pool *))
{
    uint64_t start = clock_ns(), waited;
    do {
        for (unsigned i = 0; i < PAUSES_PER_LOOK; i++) {
            if (reason(p)) return true;
            __builtin_ia32_pause();
        }
        waited = clock_ns() - start;
        if (waited > SPIN_NS) sched_yield();
    } while (waited < SPIN_NS + YIELD_NS);
    return reason(p);
}

/* Claims and runs tasks until none is left. */
static void work(struct pool *p, unsigned index)
{
    uint32_t done = 0;
    uint64_t claim = atomic_load(&p->claim);
    while ((uint32_t)claim != 0) {
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t tasks = atomic_load_explicit(&p->tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&p->claim, &claim, claim - 1)) continue;
        fn(arg, tasks - (uint32_t)claim, index);
        done++;
        claim = atomic_load(&p->claim);
    }
    // What was done belongs to one job: the next cannot begin before this has been subtracted.
    if (done > 0 && atomic_fetch_sub(&p->pending, done) == done && atomic_load(&p->caller_sleeps)) {
        futex_wake(&p->pending, 1);
    }
}

static void worker_sleep(struct pool *p)
{
    uint32_t seen = atomic_load(&p->wake);
    atomic_fetch_add(&p->sleepers, 1);
    // The caller publishes first and looks for sleepers second, this thread the other way round: one of the
    // two sees the other.
    if (!worker_has_reason(p)) futex_wait(&p->wake, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        if (has_tasks(p)) {
            work(p, w->index);
        } else if (!spin(p, worker_has_reason)) {
            worker_sleep(p);
        }
    }
    return NULL;
}

static void wake_workers(struct pool *p, uint32_t most)
{
    if (atomic_load(&p->sleepers) == 0) return;
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, most > INT_MAX ? INT_MAX : (int)most);
}

static int start_workers(struct pool *p, struct error *err)
{
    for (unsigned i = 1; i < p->threads; i++) {
        struct worker *w = &p->workers[i - 1];
        *w = (struct worker){.pool = p, .index = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            unsigned wanted = p->threads;
            p->threads = i; // pool_close() joins those that exist
            return error_set(err, -rc, "cannot start worker thread %u of %u: %s", i + 1, wanted,
                             strerror(rc));
        }
        char name[16];
        snprintf(name, sizeof name, "duckd-pool-%u", i);
        pthread_setname_np(w->thread, name);
    }
    return 0;
}

int pool_open(struct pool **out, unsigned threads, struct error *err)
{
    *out = NULL;
    if (threads == 0) threads = cpus_available();
    if (threads > POOL_MAX_THREADS) {
        return error_set(err, -EINVAL, "%u threads asked for, at most %u are possible", threads,
                         POOL_MAX_THREADS);
    }
    struct pool *p = aligned_alloc(_Alignof(struct pool), sizeof *p);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return error_set(err, -ENOMEM, "no memory for a pool of %u threads", threads);
    }
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->workers = workers;
    int rc = start_workers(p, err);
    if (rc != 0) {
        pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    assert(!p->active);
    atomic_store(&p->stop, true);
    wake_workers(p, UINT32_MAX);
    for (unsigned i = 1; i < p->threads; i++) pthread_join(p->workers[i - 1].thread, NULL);
    free(p->workers);
    free(p);
}

unsigned pool_threads(const struct pool *p)
{
    return p->threads;
}

static void publish(struct pool *p, pool_fn *fn, void *arg, size_t tasks)
{
    assert(!p->active && tasks <= UINT32_MAX);
    p->active = true;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->tasks, (uint32_t)tasks, memory_order_relaxed);
    atomic_store(&p->pending, (uint32_t)tasks);
    atomic_store(&p->claim, (uint64_t)++p->generation << 32 | (uint32_t)tasks);
}

/* The caller's part: runs what is left and waits for what others are at. */
static void finish(struct pool *p)
{
    work(p, 0);
    while (!spin(p, caller_has_reason)) {
        atomic_store(&p->caller_sleeps, 1);
        uint32_t left = atomic_load(&p->pending);
        if (left != 0) futex_wait(&p->pending, left);
        atomic_store(&p->caller_sleeps, 0);
    }
    p->active = false;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, size_t tasks)
{
    if (p->threads == 1 || tasks <= 1) { // not worth another thread
        assert(!p->active);
        for (size_t i = 0; i < tasks; i++) fn(arg, i, 0);
        return;
    }
    publish(p, fn, arg, tasks);
    wake_workers(p, (uint32_t)tasks - 1);
    finish(p);
}
