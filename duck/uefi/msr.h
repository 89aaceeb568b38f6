/* msr.h: registers that a CPU may or may not have. Asking for one that is not there is an exception on real
 * machines; here it only fails (trap.c continues at msr_recover()). Stateless; any core, about itself. */
#ifndef DUCK_UEFI_MSR_H
#define DUCK_UEFI_MSR_H

#include <stdint.h>

#include "duck/uefi/cpu.h"

/* The CPU; a model of one in tests. read and write return 0 where there is no such register, or where it does
 * not take the value. */
struct msr_access {
    void *self;
    struct cpuid (*cpuid)(void *self, uint32_t leaf);
    int (*read)(void *self, uint32_t msr, uint64_t *value);
    int (*write)(void *self, uint32_t msr, uint64_t value);
};
extern const struct msr_access msr_machine;

/* Where a general protection exception at `rip` goes on; 0: it was none of ours. */
uint64_t msr_recover(uint64_t rip);

#endif
