/* health.h: what an Intel CPU and the board say of themselves: clock, temperature, throttling, power limits,
 * the real-time clock's battery. Sources: Intel SDM vol. 2 (CPUID 06H, 16H), vol. 3, 15.8 (thermal), 15.10
 * (RAPL), 15.2 (APERF, MPERF); MC146818A data sheet (register D). Pure but for the accesses. */
#ifndef DUCK_UEFI_HEALTH_H
#define DUCK_UEFI_HEALTH_H

#include <stdint.h>

#include "duck/uefi/cpu.h"
#include "duck/wire.h"

/* How the machine is asked; a model of it in tests. A register that CPUID does not promise is never read:
 * that would be an exception. */
struct health_access {
    void *self;
    struct cpuid (*cpuid)(void *self, uint32_t leaf);
    uint64_t (*msr)(void *self, uint32_t msr);
    uint8_t (*cmos)(void *self, uint8_t index);
};

struct health {
    uint64_t aperf, mperf; // when it was last asked
};

/* Fills the machine's part of *out but for what its start has shown; what cannot be known is 0. */
void health_read(struct health *h, const struct health_access *a, uint64_t tsc_hz, struct wire_stats *out);

#endif
