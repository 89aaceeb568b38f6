/* tco.h: the watchdog of Intel chipsets ("total cost of ownership" timer): restarts the machine unless it is
 * fed.
 *
 * Two places where it is found: the LPC bridge of the ICH9 (QEMU's q35), and the SMBus controller of chipsets
 * from Cannon Lake on (N100). Sources: Intel 82801I (ICH9) datasheet, 13.9 (TCO), 10.1.75 (GCS); for the
 * newer ones Linux, drivers/i2c/busses/i2c-i801.c and drivers/watchdog/iTCO_wdt.c ("version 6"). Pure but for
 * the accesses. */
#ifndef DUCK_UEFI_TCO_H
#define DUCK_UEFI_TCO_H

#include <stdint.h>

/* How registers are reached: the machine, or a model of it in tests. */
struct tco_access {
    void *self;
    uint32_t (*config)(void *self, uint32_t device, uint32_t function, uint32_t offset); // of bus 0
    uint16_t (*in)(void *self, uint16_t port);
    void (*out)(void *self, uint16_t port, uint16_t value);
    uint32_t (*read)(void *self, uint64_t address);
    void (*write)(void *self, uint64_t address, uint32_t value);
};

struct tco {
    struct tco_access access;
    uint16_t base;
};

/* 0: found, and it may restart the machine; else -1 and why not. */
int tco_find(struct tco *t, const struct tco_access *access, const char **why);
/* From now on it restarts the machine `seconds` after it was last fed (1 .. 1200). */
void tco_start(const struct tco *t, uint32_t seconds);
void tco_feed(const struct tco *t);

#endif
