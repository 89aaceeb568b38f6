/* numa.h: which memory is near which CPU, where pages are to come from, and who takes which work.
 *
 * Work is cut into shares whose memory lies on one node each. A thread takes tasks of shares on the node it
 * runs on, and of others only when those are done: reading from another node's memory is slower than from
 * one's own, and faster than waiting. Threads are not pinned; the kernel moves them rarely, and what a thread
 * takes next follows it. With one node all of this does nothing. */
#ifndef DUCKD_HOST_UTIL_NUMA_H
#define DUCKD_HOST_UTIL_NUMA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

#define NUMA_DIR "/sys/devices/system/node"
#define NUMA_MAX_NODES 64u
#define NUMA_MAX_CPUS 4096u

struct numa {
    unsigned nodes;                 // at least 1
    unsigned id[NUMA_MAX_NODES];    // the kernel's numbers, ascending
    uint8_t near_of[NUMA_MAX_CPUS]; // the node of each CPU, an index of id[]; 0 where nothing is known
};

/* Nodes with CPUs that this process may run on (allowed[cpu] != 0; NULL: any), out of `dir` as NUMA_DIR is
 * laid out. A kernel without nodes has no such directory: one node. */
int numa_read(struct numa *out, const char *dir, const uint8_t *allowed, struct error *err);

/* The node of the CPU that the caller runs on. */
unsigned numa_here(const struct numa *n);

/* The node of share `share` of `shares`: neighbours together, as many on each node as on any other. */
unsigned numa_node_of(const struct numa *n, unsigned share, unsigned shares);

/* Pages of this range that nobody has touched come from the node as long as it has any (numa_bind), or from
 * all nodes in turn (numa_spread). Whole pages. 0 or -errno; the memory is good in any case. */
int numa_bind(const struct numa *n, unsigned node, void *memory, size_t bytes);
int numa_spread(const struct numa *n, void *memory, size_t bytes);

struct numa_share {
    _Atomic uint32_t next;
    uint32_t tasks;
    unsigned node;
};

/* A task that nobody has taken, *share says of which share; tasks on `node` come first. Called once for each
 * task of all shares together, by any thread; *share is `shares` when all are taken. */
uint32_t numa_take(struct numa_share *s, unsigned shares, unsigned node, unsigned *share);

#endif
