/* acpi.h: the few things a duck wants to know from ACPI (ACPI 6.5, chapter 5), and restart and power off.
 *
 * acpi_read() is pure: it reads tables at their physical addresses, checks lengths and checksums, and
 * allocates nothing. A missing or damaged table leaves its part empty. */
#ifndef DUCK_UEFI_ACPI_H
#define DUCK_UEFI_ACPI_H

#include <stdint.h>

enum { ACPI_CORES = 64, ACPI_REMAPPERS = 8 };

struct acpi_register { // generic address structure
    uint8_t space;     // 0: memory, 1: I/O ports, 2: PCI configuration
    uint64_t address;  // 0: none
};

struct acpi {
    uint32_t cores;            // usable ones, in the table's order
    uint32_t core[ACPI_CORES]; // APIC ids
    uint64_t ecam;             // PCI configuration space of segment 0; 0: none
    uint8_t first_bus, last_bus;
    struct acpi_register reset, pm_timer, pm1a, pm1b;
    uint8_t reset_value;
    int pm_timer_32_bits;
    uint64_t hpet; // registers; 0: none
    uint32_t remappers;
    uint64_t remapper[ACPI_REMAPPERS]; // registers of the units that remap DMA
    int can_power_off;
    uint8_t sleep_a, sleep_b; // SLP_TYP of S5
};

/* 0; -1: no valid root table at rsdp. */
int acpi_read(struct acpi *out, uint64_t rsdp);

/* The machine's: from now on acpi_restart() and acpi_power_off() know how. */
void acpi_use(const struct acpi *a);
_Noreturn void acpi_restart(void);
void acpi_power_off(void); // returns where it does not work

#endif
