/* platform_linux.h: a Linux process as the machine under a duck (duck/platform.h). */
#ifndef DUCK_LINUX_PLATFORM_LINUX_H
#define DUCK_LINUX_PLATFORM_LINUX_H

#include "duck/platform.h"

struct linux_options {
    const char *name;
    uint64_t memory_bytes;
    uint32_t cores;
    uint64_t spin_ns;
    int fd; // becomes readable when a frame arrives
    /* The fd has reported an error while the duck slept; from then on asked again, with error 0,
     * whenever a sleep ends without a frame. 1: for good, with a line on stderr. NULL: never. */
    int (*gone)(int error);
};

/* 0, or -1 with a line on stderr. One per process. */
int platform_linux_open(struct platform *out, const struct linux_options *o);
/* Set by SIGTERM, SIGINT and a power request: everything shall end. */
extern _Atomic uint32_t platform_linux_stop;
enum { PLATFORM_LINUX_FAILED = 2 }; // its value when nothing can be received any more

/* The platform's clock. */
uint64_t linux_clock_ns(void);

/* The duck's own exit for messages: "duck-linux NAME: ...". */
void linux_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
