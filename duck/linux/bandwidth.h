/* bandwidth.h: how fast this machine's cores read memory together: what a plan's weights are about. */
#ifndef DUCK_LINUX_BANDWIDTH_H
#define DUCK_LINUX_BANDWIDTH_H

#include <stdint.h>

/* Bytes per second of `cores` threads that each read memory of their own, larger than caches; some 0.2 s. 0:
 * no memory or threads for it. */
uint64_t bandwidth_measure(uint32_t cores);

#endif
