/* apic.h: the local APIC (Intel SDM vol. 3, chapter 11) in both of its modes: xAPIC (registers in memory) and
 * x2APIC (MSRs), whichever the firmware left on. Used by every core for itself. */
#ifndef DUCK_UEFI_APIC_H
#define DUCK_UEFI_APIC_H

#include <stdint.h>

/* How registers are reached: the machine, or a model of it in tests. */
struct apic_access {
    void *self;
    uint32_t (*read)(void *self, uint32_t offset); // xAPIC
    void (*write)(void *self, uint32_t offset, uint32_t value);
    uint64_t (*read_msr)(void *self, uint32_t msr);
    void (*write_msr)(void *self, uint32_t msr, uint64_t value);
};

struct apic {
    struct apic_access access;
    int x2; // 1: x2APIC
};

enum { APIC_INIT = 0x500, APIC_STARTUP = 0x600, APIC_FIXED = 0x000 }; // delivery modes; | vector

/* Looks which mode is on. Returns -1: the APIC is switched off. */
int apic_start(struct apic *a, const struct apic_access *access);
/* Every core: enables its APIC, timer one-shot with `timer` as vector, nothing else comes in. */
void apic_enable(const struct apic *a, uint8_t timer, uint8_t spurious);
uint32_t apic_id(const struct apic *a);
/* Sends to one core. Returns -1: the APIC did not take it within about 100 ms. */
int apic_send(const struct apic *a, uint32_t to, uint32_t mode_and_vector);
int apic_send_others(const struct apic *a, uint32_t mode_and_vector);
void apic_end_of_interrupt(const struct apic *a);
/* Interrupts this core once after `ticks` of its timer (bus clock / 16); 0: never. */
void apic_timer(const struct apic *a, uint32_t ticks);
uint32_t apic_timer_left(const struct apic *a);

#endif
