/* msr.c: the machine's registers. Compiled without vector registers: exceptions come here. */
#include "duck/uefi/msr.h"

/* msr_entries.S */
int msr_try_read(uint32_t msr, uint64_t *value);
int msr_try_write(uint32_t msr, uint64_t value);
extern const uint8_t msr_reads_here[], msr_writes_here[], msr_has_failed[];

uint64_t msr_recover(uint64_t rip)
{
    if (rip != (uint64_t)(uintptr_t)msr_reads_here && rip != (uint64_t)(uintptr_t)msr_writes_here) return 0;
    return (uint64_t)(uintptr_t)msr_has_failed;
}

static struct cpuid ask(void *self, uint32_t leaf)
{
    (void)self;
    return cpuid(leaf, 0);
}

static int read(void *self, uint32_t msr, uint64_t *value)
{
    (void)self;
    return msr_try_read(msr, value);
}

static int write(void *self, uint32_t msr, uint64_t value)
{
    (void)self;
    return msr_try_write(msr, value);
}

const struct msr_access msr_machine = {0, ask, read, write};
