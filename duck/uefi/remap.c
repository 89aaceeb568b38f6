/* remap.c: switching off what stands between devices and memory. */
#include "duck/uefi/remap.h"

enum {
    VERSION = 0x00,
    CAPABILITY = 0x08,
    CAPABILITY_PROTECTS = 3 << 5, // low, high regions
    COMMAND = 0x18,
    STATUS = 0x1c,
    PROTECT = 0x64,
    PROTECT_STATUS = 1 << 0,
};
#define TRANSLATES (1u << 31) // of command and status
#define PROTECT_ENABLE (1u << 31)
#define COMMAND_KEEPS 0x96ffffffu // bits of the status that a command repeats; the others act once
#define PATIENCE_NS ((uint64_t)100000000)

static int clears(const struct remap_access *a, uint64_t address, uint32_t bit)
{
    uint64_t start = a->now(a->self);
    while (a->read(a->self, address) & bit)
        if (a->now(a->self) - start > PATIENCE_NS) return 0;
    return 1;
}

uint32_t remap_end(const struct remap_access *a, uint64_t registers)
{
    uint32_t was = 0, version = a->read(a->self, registers + VERSION);
    if (version == 0 || version == UINT32_MAX) return REMAP_DEAD;
    uint32_t status = a->read(a->self, registers + STATUS);
    if (status & TRANSLATES) {
        was |= REMAP_TRANSLATED;
        a->write(a->self, registers + COMMAND, status & COMMAND_KEEPS & ~TRANSLATES);
        if (!clears(a, registers + STATUS, TRANSLATES)) was |= REMAP_STAYS;
    }
    if (!(a->read(a->self, registers + CAPABILITY) & CAPABILITY_PROTECTS)) return was;
    uint32_t protect = a->read(a->self, registers + PROTECT);
    if (!(protect & (PROTECT_ENABLE | PROTECT_STATUS))) return was;
    was |= REMAP_PROTECTED;
    a->write(a->self, registers + PROTECT, protect & ~PROTECT_ENABLE);
    if (!clears(a, registers + PROTECT, PROTECT_STATUS)) was |= REMAP_STAYS;
    return was;
}
