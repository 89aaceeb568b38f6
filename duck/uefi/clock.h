/* clock.h: time from the TSC, calibrated against one clock of the machine and checked against a second. */
#ifndef DUCK_UEFI_CLOCK_H
#define DUCK_UEFI_CLOCK_H

#include <stdint.h>

#include "duck/uefi/acpi.h"

/* A free-running counter. */
struct clock_counter {
    const char *name;
    void *self;
    uint64_t (*read)(void *self);
    uint64_t mask, hz;
};

struct clock_result {
    uint64_t tsc_hz;             // 0: no counter worked
    const char *by, *checked_by; // checked_by NULL: there is no second clock
    int agree;                   // within 1 %
};

/* TSC rate by the first of `count` counters that counts, checked by the next one that does; measured again a
 * few times if they disagree. `tsc` reads the TSC. */
struct clock_result clock_calibrate(const struct clock_counter *c, uint32_t count, uint64_t (*tsc)(void));

/* The machine's counters (ACPI PM timer, HPET, PIT); starts now(). */
struct clock_result clock_start(const struct acpi *a);
int clock_is_sound(void);        // no second clock has disagreed
uint64_t clock_now(void);        // nanoseconds since clock_start()
uint64_t clock_tsc(uint64_t ns); // TSC ticks in so many nanoseconds
void clock_delay(uint64_t ns);

#endif
