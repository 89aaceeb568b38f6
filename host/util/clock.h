/* clock.h: the one monotonic clock of the host. */
#ifndef DUCKD_HOST_UTIL_CLOCK_H
#define DUCKD_HOST_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since an arbitrary start, never going back. */
static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
