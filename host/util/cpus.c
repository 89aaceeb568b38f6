/* cpus.c: affinity mask and cgroup quota. A container with 2 CPUs' worth of time on a host of 64 must
 * not start 64 spinning workers. */
#include "host/util/cpus.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

#define MASK_CPUS 4096 // more than CPU_SETSIZE: big hosts refuse a mask that is too small

static unsigned mask_cpus(void)
{
    cpu_set_t *set = CPU_ALLOC(MASK_CPUS);
    if (!set) return 1;
    size_t bytes = CPU_ALLOC_SIZE(MASK_CPUS);
    CPU_ZERO_S(bytes, set);
    int n = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 1;
    CPU_FREE(set);
    return n > 0 ? (unsigned)n : 1;
}

void cpus_allowed(uint8_t *allowed, size_t count)
{
    cpu_set_t *set = CPU_ALLOC(MASK_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MASK_CPUS);
    if (set) CPU_ZERO_S(bytes, set);
    bool known = set && sched_getaffinity(0, bytes, set) == 0;
    for (size_t cpu = 0; cpu < count; cpu++)
        allowed[cpu] = !known || (cpu < MASK_CPUS && CPU_ISSET_S(cpu, bytes, set));
    if (set) CPU_FREE(set);
}

/* 0: no quota known. */
static unsigned quota_cpus(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return 0;
    unsigned long long quota, period;
    int n = fscanf(f, "%llu %llu", &quota, &period); // "max 100000" reads nothing: no quota
    fclose(f);
    if (n != 2 || period == 0) return 0;
    unsigned long long cpus = (quota + period - 1) / period;
    return cpus < MASK_CPUS ? (unsigned)cpus : 0;
}

unsigned cpus_available(void)
{
    unsigned mask = mask_cpus(), quota = quota_cpus();
    return quota > 0 && quota < mask ? quota : mask;
}
