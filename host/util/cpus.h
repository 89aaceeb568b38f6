/* cpus.h: how many threads of arithmetic this process can really run at once. */
#ifndef DUCKD_HOST_UTIL_CPUS_H
#define DUCKD_HOST_UTIL_CPUS_H

/* CPUs of the affinity mask, fewer if a cgroup v2 quota grants less time than that. At least 1. */
unsigned cpus_available(void);

#endif
