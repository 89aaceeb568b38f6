/* clock.h: the host's clocks: one that only goes on, and what this process or thread has computed. */
#ifndef DUCKD_HOST_UTIL_CLOCK_H
#define DUCKD_HOST_UTIL_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t clock__read(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds since an arbitrary start, never going back. */
static inline uint64_t clock_ns(void)
{
    return clock__read(CLOCK_MONOTONIC);
}

/* Waits for the condition until clock_ns() is `until`, whatever the time of day is set to meanwhile. False:
 * it is late. */
static inline bool clock_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t until)
{
    const struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &t) == 0;
}

/* Of all threads of this process, on a CPU: on a busy machine it says more than the clock. */
static inline uint64_t clock_cpu_ns(void)
{
    return clock__read(CLOCK_PROCESS_CPUTIME_ID);
}

/* The same of the calling thread alone. */
static inline uint64_t clock_thread_cpu_ns(void)
{
    return clock__read(CLOCK_THREAD_CPUTIME_ID);
}

#endif
