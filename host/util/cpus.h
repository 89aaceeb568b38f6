/* cpus.h: how many threads of arithmetic this process can really run at once. */
#ifndef DUCKD_HOST_UTIL_CPUS_H
#define DUCKD_HOST_UTIL_CPUS_H

#include <stddef.h>
#include <stdint.h>

/* CPUs of the affinity mask, fewer if a cgroup v2 quota grants less time than that. At least 1. */
unsigned cpus_available(void);
/* allowed[cpu] = 1 for those of the affinity mask, else 0; all 1 if it cannot be read. */
void cpus_allowed(uint8_t *allowed, size_t count);

#endif
