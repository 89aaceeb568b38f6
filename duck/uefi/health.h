/* health.h: what an Intel CPU and the board say of themselves: clock, temperature, throttling, power limits,
 * the real-time clock's battery. Sources: Intel SDM vol. 2 (CPUID 06H), vol. 3, 15.8 (thermal, and limits of
 * power), 15.10 (RAPL); MC146818A data sheet (register D). Pure but for the accesses; core 0. */
#ifndef DUCK_UEFI_HEALTH_H
#define DUCK_UEFI_HEALTH_H

#include <stdint.h>

#include "duck/uefi/speed.h"
#include "duck/wire.h"

/* How the machine is asked; a model of it in tests. Nothing is read in a virtual machine. */
struct health_access {
    const struct msr_access *cpu;
    uint8_t (*cmos)(void *self, uint8_t index); // self: the CPU's
};

struct health {
    const struct health_access *a;
    uint64_t tsc_hz;
    struct speed stated;
    int counts;              // clocks can be measured
    struct speed_look since; // when core 0 was last woken, or last asked while awake
    uint64_t aperf, mperf;   // of its long times awake since it was last asked
};

/* cores: that run. */
void health_start(struct health *h, const struct health_access *a, uint64_t tsc_hz, uint32_t cores);
/* Core 0 falls asleep, and is awake again: its clock is measured where it works for a while, because a clock
 * needs a millisecond to rise. */
void health_asleep(struct health *h);
void health_awake(struct health *h);
/* Fills the machine's part of *out but for what its start has shown; what cannot be known is 0. */
void health_read(struct health *h, struct wire_stats *out);

#endif
