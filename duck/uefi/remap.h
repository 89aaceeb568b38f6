/* remap.h: DMA reaches memory as it is. Firmware that protects itself against devices may hand the machine
 * over with translation of their addresses still on, or with regions that they cannot reach: a NIC's rings
 * would be dead. Both are switched off, as Linux does when it finds them on and has no use for them
 * (intel/iommu.c). Sources: Intel VT-d specification 4.1, 11.4.4 (global command, status), 11.4.8 (protected
 * memory). Pure but for the accesses. */
#ifndef DUCK_UEFI_REMAP_H
#define DUCK_UEFI_REMAP_H

#include <stdint.h>

struct remap_access {
    void *self;
    uint32_t (*read)(void *self, uint64_t address);
    void (*write)(void *self, uint64_t address, uint32_t value);
    uint64_t (*now)(void *self); // ns
};

enum remap_was { // what a unit did; two bits may be set
    REMAP_TRANSLATED = 1,
    REMAP_PROTECTED = 2,
    REMAP_STAYS = 4, // and goes on doing it
    REMAP_DEAD = 8,  // no unit answers there
};
/* The unit whose registers begin there; bus mastering is off. Waits at most 100 ms for each of the two. */
uint32_t remap_end(const struct remap_access *a, uint64_t registers);

#endif
