/* speed.h: a core runs as fast as it can, and says how fast that is. Firmware may hand a machine over at its
 * lowest clock, with turbo switched off, or leave the choice to an operating system that never comes.
 * Intel CPUs only, never in a virtual machine. Pure but for the accesses.
 * Sources: Intel SDM vol. 3, 15.1 (IA32_PERF_CTL), 15.3 (turbo), 15.4 (hardware-controlled performance), vol.
 * 2 (CPUID 06H, 16H), vol. 4 (MSRs); Linux tools/power/x86/turbostat (how 1ADH and 1AEH are read, and for
 * which CPUs: Gracemont has a ratio for each number of active cores, at a bus clock of 100 MHz). */
#ifndef DUCK_UEFI_SPEED_H
#define DUCK_UEFI_SPEED_H

#include <stdint.h>

#include "duck/uefi/msr.h"

enum speed_means {      // what a core was asked with
    SPEED_HARDWARE = 1, // hardware-controlled performance: lowest = highest
    SPEED_RATIO = 2,    // the highest ratio, where there is no such thing
    SPEED_BIAS = 4,     // performance before energy
    SPEED_TURBO = 8,    // turbo had been switched off, and is on now
};

/* 1: an Intel CPU that is not a virtual one. */
int speed_is_known(const struct msr_access *a);
/* This core, from now on at its highest clock: enum speed_means. Sleep (hlt) saves power as before. */
uint32_t speed_raise(const struct msr_access *a);

struct speed {
    uint32_t base_mhz, turbo_mhz; // nominal; with `cores` cores busy; 0: not told
    int turbo_off;                // and it stayed so
};
struct speed speed_stated(const struct msr_access *a, uint32_t cores);

/* The real clock between two looks: APERF counts at it, MPERF at the TSC's rate, both only while the core is
 * awake. */
struct speed_look {
    uint64_t aperf, mperf; // both 0: the CPU does not count
};
struct speed_look speed_look(const struct msr_access *a);
/* 0: not to be known. */
uint32_t speed_mhz(uint64_t aperf, uint64_t mperf, uint64_t tsc_hz);

#endif
