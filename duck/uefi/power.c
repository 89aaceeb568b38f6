/* power.c: restart and power off: ACPI first, then what PCs have always had. */
#include "duck/uefi/acpi.h"
#include "duck/uefi/cpu.h"

static struct acpi the;

void acpi_use(const struct acpi *a)
{
    the = *a;
}

static void delay(void)
{
    enum { PORT_READS = 100000, UNUSED_PORT = 0x80 }; // some 100 ms: time for a reset to happen
    for (int i = 0; i < PORT_READS; i++) (void)in8(UNUSED_PORT);
}

static void write_register(const struct acpi_register *r, uint8_t value)
{
    enum { MEMORY, PORTS };
    if (!r->address) return;
    if (r->space == MEMORY) *(volatile uint8_t *)(uintptr_t)r->address = value;
    if (r->space == PORTS) out8((uint16_t)r->address, value);
    delay();
}

_Noreturn void acpi_restart(void)
{
    enum { CF9 = 0xcf9, FULL_RESET = 6, KEYBOARD = 0x64, PULSE_RESET = 0xfe };
    struct {
        uint16_t limit;
        uint64_t base;
    } __attribute__((packed)) none = {0, 0};
    __asm__ volatile("cli");
    write_register(&the.reset, the.reset_value); // ACPI 6.5, 4.8.3.6
    out8(CF9, FULL_RESET);                       // chipset reset control
    delay();
    out8(KEYBOARD, PULSE_RESET);
    delay();
    __asm__ volatile("lidt %0; int3" : : "m"(none)); // no handler for anything: triple fault
    cpu_stop();
}

void acpi_power_off(void)
{
    enum { PORTS = 1, SLEEP_ENABLE = 1 << 13, TYPE_SHIFT = 10, TYPE_MASK = 7 << TYPE_SHIFT };
    if (!the.can_power_off || the.pm1a.space != PORTS || !the.pm1a.address) return; // ACPI 6.5, 4.8.3.2.1
    uint16_t port = (uint16_t)the.pm1a.address;
    uint16_t keep = (uint16_t)(in16(port) & ~(TYPE_MASK | SLEEP_ENABLE));
    out16(port, (uint16_t)(keep | the.sleep_a << TYPE_SHIFT | SLEEP_ENABLE));
    if (the.pm1b.address)
        out16((uint16_t)the.pm1b.address, (uint16_t)(the.sleep_b << TYPE_SHIFT | SLEEP_ENABLE));
    delay();
}
