/* numa.c: the kernel's list of nodes, and mbind() without libnuma: two system calls' worth of it. */
#include "host/util/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MASK_BITS (8 * sizeof(unsigned long))
#define MOST_IDS 1024u // of the kernel: CONFIG_NODES_SHIFT is 10 at most

/* The next run of numbers of a list such as "0-3,8"; 1, or 0 at its end, or -1. */
static int next_run(const char **at, unsigned long *first, unsigned long *last)
{
    char *end;
    if (**at == '\0' || **at == '\n') return 0;
    *first = *last = strtoul(*at, &end, 10);
    if (end == *at) return -1;
    if (*end == '-') {
        const char *from = end + 1;
        *last = strtoul(from, &end, 10);
        if (end == from || *last < *first) return -1;
    }
    if (*end != ',' && *end != '\n' && *end != '\0') return -1;
    *at = *end == ',' ? end + 1 : end;
    return 1;
}

/* The first line of a file. */
static int read_list(const char *path, char *line, size_t size, struct error *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return error_set(err, -errno, "%s: %s", path, strerror(errno));
    size_t n = fread(line, 1, size - 1, f);
    fclose(f);
    line[n] = '\0';
    return 0;
}

/* CPUs of node `id`: they are near the next node of `out`. Returns how many of them are allowed, or -1. */
static int read_cpus(struct numa *out, const char *list, const uint8_t *allowed)
{
    unsigned long first, last;
    int usable = 0, rc;
    while ((rc = next_run(&list, &first, &last)) == 1) {
        if (last >= NUMA_MAX_CPUS) return -1;
        for (unsigned long cpu = first; cpu <= last; cpu++) {
            out->near_of[cpu] = (uint8_t)out->nodes;
            usable += !allowed || allowed[cpu];
        }
    }
    return rc == 0 ? usable : -1;
}

static int read_node(struct numa *out, const char *dir, unsigned id, const uint8_t *allowed,
                     struct error *err)
{
    char path[512], list[4096] = "";
    snprintf(path, sizeof path, "%s/node%u/cpulist", dir, id);
    int rc = read_list(path, list, sizeof list, err);
    if (rc != 0) return rc;
    int usable = read_cpus(out, list, allowed);
    if (usable < 0)
        return error_set(err, -EINVAL, "%s is '%.60s', it must be a list of CPUs below %u", path, list,
                         NUMA_MAX_CPUS);
    if (usable > 0) out->id[out->nodes++] = id; // else its CPUs are counted as the next node's: nobody asks
    return 0;
}

int numa_read(struct numa *out, const char *dir, const uint8_t *allowed, struct error *err)
{
    char path[512], list[4096] = "";
    *out = (struct numa){.nodes = 0};
    snprintf(path, sizeof path, "%s/online", dir);
    if (access(path, F_OK) != 0) {
        out->nodes = 1;
        return 0;
    }
    int rc = read_list(path, list, sizeof list, err), more;
    const char *at = list;
    unsigned long first = 0, last = 0;
    while (rc == 0 && (more = next_run(&at, &first, &last)) != 0) {
        if (more < 0 || last >= MOST_IDS)
            return error_set(err, -EINVAL, "%s is '%.60s', it must be a list of nodes below %u", path, list,
                             MOST_IDS);
        for (unsigned long id = first; rc == 0 && id <= last && out->nodes < NUMA_MAX_NODES; id++)
            rc = read_node(out, dir, (unsigned)id, allowed, err);
    }
    if (out->nodes == 0) out->nodes = 1;
    return rc;
}

unsigned numa_here(const struct numa *n)
{
    int cpu = n->nodes > 1 ? sched_getcpu() : 0;
    unsigned node = cpu >= 0 && (unsigned)cpu < NUMA_MAX_CPUS ? n->near_of[cpu] : 0;
    return node < n->nodes ? node : 0;
}

unsigned numa_node_of(const struct numa *n, unsigned share, unsigned shares)
{
    return (unsigned)((uint64_t)share * n->nodes / shares);
}

static int policy(int mode, const struct numa *n, unsigned first, unsigned count, void *memory, size_t bytes)
{
    unsigned long mask[MOST_IDS / MASK_BITS + 1] = {0};
    for (unsigned i = first; i < first + count; i++)
        mask[n->id[i] / MASK_BITS] |= 1ul << n->id[i] % MASK_BITS;
    return syscall(SYS_mbind, memory, bytes, mode, mask, MOST_IDS + 1, 0) == 0 ? 0 : -errno;
}

int numa_bind(const struct numa *n, unsigned node, void *memory, size_t bytes)
{
    return policy(MPOL_PREFERRED, n, node, 1, memory, bytes);
}

int numa_spread(const struct numa *n, void *memory, size_t bytes)
{
    return policy(MPOL_INTERLEAVE, n, 0, n->nodes, memory, bytes);
}

uint32_t numa_take(struct numa_share *s, unsigned shares, unsigned node, unsigned *share)
{
    for (int far = 0; far < 2; far++)
        for (unsigned i = 0; i < shares; i++) {
            if ((s[i].node != node) != far ||
                atomic_load_explicit(&s[i].next, memory_order_relaxed) >= s[i].tasks)
                continue;
            uint32_t task = atomic_fetch_add_explicit(&s[i].next, 1, memory_order_relaxed);
            *share = i;
            if (task < s[i].tasks) return task;
        }
    *share = shares;
    return 0;
}
