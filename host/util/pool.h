/* pool.h: the worker threads of this process's own arithmetic (CPU backend, local ducks).
 *
 * A job is `tasks` independent calls fn(arg, task, worker). The caller of pool_run() works too, so a
 * pool of one thread runs everything inline and owns no other thread. Workers spin for a short while
 * after a job (decode issues a job every few microseconds) and then sleep in the kernel. One job at a time,
 * from one thread only (the engine). Results never depend on the number of threads: a task writes only what
 * is its own. */
#ifndef DUCKD_HOST_UTIL_POOL_H
#define DUCKD_HOST_UTIL_POOL_H

#include <stddef.h>

#include "host/util/error.h"

struct pool;
typedef void pool_fn(void *arg, size_t task,
                     unsigned worker); // worker < pool_threads(), unique while running

/* threads = 0: one per CPU this process may run on. */
int pool_open(struct pool **out, unsigned threads, struct error *err);
void pool_close(struct pool *pool);
unsigned pool_threads(const struct pool *pool); // the caller included

void pool_run(struct pool *pool, pool_fn *fn, void *arg, size_t tasks);

#endif
