/* acpi.c: finding and reading ACPI tables. */
#include "duck/uefi/acpi.h"

#include <string.h>

enum { HEADER = 36 };

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static int sums_to_zero(const uint8_t *p, uint32_t bytes)
{
    uint8_t sum = 0;
    for (uint32_t i = 0; i < bytes; i++) sum = (uint8_t)(sum + p[i]);
    return sum == 0;
}

/* Length of a sound table; 0: it is not one. */
static uint32_t table_bytes(const uint8_t *t)
{
    enum { LARGEST = 16 << 20 };
    if (!t) return 0;
    uint32_t n = get32(t + 4);
    return n >= HEADER && n <= LARGEST && sums_to_zero(t, n) ? n : 0;
}

/* Generic address structure, ACPI 6.5, 5.2.3.2. */
static struct acpi_register get_register(const uint8_t *p)
{
    return (struct acpi_register){p[0], get64(p + 4)};
}

/* MADT, 5.2.12: processor local APIC (0) and local x2APIC (9); flag 1: enabled. */
static void read_madt(struct acpi *a, const uint8_t *t, uint32_t bytes)
{
    enum { ENTRIES = 44, APIC = 0, X2APIC = 9 };
    for (uint32_t at = ENTRIES; at + 2 <= bytes && t[at + 1] >= 2 && at + t[at + 1] <= bytes;
         at += t[at + 1]) {
        const uint8_t *e = t + at;
        uint32_t id;
        if (e[0] == APIC && e[1] >= 8 && get32(e + 4) & 1)
            id = e[3];
        else if (e[0] == X2APIC && e[1] >= 16 && get32(e + 8) & 1)
            id = get32(e + 4);
        else
            continue;
        int known = 0; // firmware may list a core both ways
        for (uint32_t i = 0; i < a->cores; i++) known |= a->core[i] == id;
        if (!known && a->cores < ACPI_CORES) a->core[a->cores++] = id;
    }
}

/* PCI firmware specification 3.3, 4.1.2: allocations of 16 bytes behind 8 reserved ones. */
static void read_mcfg(struct acpi *a, const uint8_t *t, uint32_t bytes)
{
    for (uint32_t at = HEADER + 8; at + 16 <= bytes; at += 16) {
        if (t[at + 8] || t[at + 9]) continue; // another segment
        a->ecam = get64(t + at);
        a->first_bus = t[at + 10];
        a->last_bus = t[at + 11];
        return;
    }
}

/* DSDT: the object Name (_S5_, Package {SLP_TYPa, SLP_TYPb, ...}) in AML (20.2.5): 08 "_S5_" 12 length count
 * values; found by its bytes, because nothing else of AML is needed. */
static void read_dsdt(struct acpi *a, const uint8_t *t, uint32_t bytes)
{
    enum { NAME_OP = 0x08, PACKAGE_OP = 0x12, BYTE_PREFIX = 0x0a, ZERO_OP = 0, ONE_OP = 1 };
    for (uint32_t i = HEADER; i + 16 <= bytes; i++) {
        if (t[i] != NAME_OP || memcmp(t + i + 1, "_S5_", 4) != 0 || t[i + 5] != PACKAGE_OP) continue;
        const uint8_t *p = t + i + 6;
        p += 1 + (*p >> 6) + 1; // package length, number of elements
        uint8_t value[2] = {0, 0};
        for (int k = 0; k < 2 && p + 2 <= t + bytes; k++) {
            if (*p == BYTE_PREFIX) p++;
            value[k] = *p++ & 7;
        }
        a->sleep_a = value[0];
        a->sleep_b = value[1];
        a->can_power_off = 1;
        return;
    }
}

/* FADT, 5.2.9; fields of 64 bits replace those of 32 where they are there and not zero. */
static void read_fadt(struct acpi *a, const uint8_t *t, uint32_t bytes)
{
    enum {
        DSDT = 40,
        PM1A = 64,
        PM1B = 68,
        PM_TIMER = 76,
        FLAGS = 112,
        RESET = 116,
        RESET_VALUE = 128,
        X_DSDT = 140,
        X_PM1A = 172,
        X_PM1B = 184,
        X_PM_TIMER = 208,
        TIMER_32 = 1 << 8,
        RESET_SUPPORTED = 1 << 10,
    };
    if (bytes < FLAGS + 4) return;
    a->pm1a = (struct acpi_register){1, get32(t + PM1A)};
    a->pm1b = (struct acpi_register){1, get32(t + PM1B)};
    a->pm_timer = (struct acpi_register){1, get32(t + PM_TIMER)};
    a->pm_timer_32_bits = (get32(t + FLAGS) & TIMER_32) != 0;
    uint64_t dsdt = get32(t + DSDT);
    if (bytes > RESET_VALUE && get32(t + FLAGS) & RESET_SUPPORTED) {
        a->reset = get_register(t + RESET);
        a->reset_value = t[RESET_VALUE];
    }
    if (bytes >= X_DSDT + 8 && get64(t + X_DSDT)) dsdt = get64(t + X_DSDT);
    if (bytes >= X_PM1A + 12 && get_register(t + X_PM1A).address) a->pm1a = get_register(t + X_PM1A);
    if (bytes >= X_PM1B + 12 && get_register(t + X_PM1B).address) a->pm1b = get_register(t + X_PM1B);
    if (bytes >= X_PM_TIMER + 12 && get_register(t + X_PM_TIMER).address)
        a->pm_timer = get_register(t + X_PM_TIMER);
    const uint8_t *d = (const uint8_t *)(uintptr_t)dsdt;
    uint32_t n = table_bytes(d);
    if (n) read_dsdt(a, d, n);
}

/* DMAR, VT-d specification 4.1, 8.1 to 8.3: units that remap DMA (structures of type 0). */
static void read_dmar(struct acpi *a, const uint8_t *t, uint32_t bytes)
{
    enum { STRUCTURES = 48, UNIT_BYTES = 16 };
    for (uint32_t at = STRUCTURES, n; at + 4 <= bytes; at += n) {
        uint32_t type = t[at] | (uint32_t)t[at + 1] << 8;
        n = t[at + 2] | (uint32_t)t[at + 3] << 8;
        if (n < 4 || n > bytes - at) return;
        if (type || n < UNIT_BYTES || !get64(t + at + 8) || a->remappers == ACPI_REMAPPERS) continue;
        a->remapper[a->remappers++] = get64(t + at + 8);
    }
}

static void read_table(struct acpi *a, const uint8_t *t)
{
    uint32_t bytes = table_bytes(t);
    if (!bytes) return;
    if (!memcmp(t, "APIC", 4)) read_madt(a, t, bytes);
    if (!memcmp(t, "MCFG", 4)) read_mcfg(a, t, bytes);
    if (!memcmp(t, "DMAR", 4)) read_dmar(a, t, bytes);
    if (!memcmp(t, "FACP", 4)) read_fadt(a, t, bytes);
    if (!memcmp(t, "HPET", 4) && bytes >= 52 && t[40] == 0) a->hpet = get64(t + 44);
}

int acpi_read(struct acpi *a, uint64_t rsdp)
{
    enum { RSDP_BYTES = 20, RSDP2_BYTES = 36 }; // 5.2.5.3
    const uint8_t *r = (const uint8_t *)(uintptr_t)rsdp;
    *a = (struct acpi){0};
    if (!r || memcmp(r, "RSD PTR ", 8) != 0 || !sums_to_zero(r, RSDP_BYTES)) return -1;
    int is_64 = r[15] >= 2 && sums_to_zero(r, RSDP2_BYTES) && get64(r + 24);
    const uint8_t *root = (const uint8_t *)(uintptr_t)(is_64 ? get64(r + 24) : get32(r + 16));
    uint32_t bytes = table_bytes(root), step = is_64 ? 8 : 4;
    if (!bytes || memcmp(root, is_64 ? "XSDT" : "RSDT", 4) != 0) return -1;
    for (uint32_t at = HEADER; at + step <= bytes; at += step)
        read_table(a, (const uint8_t *)(uintptr_t)(is_64 ? get64(root + at) : get32(root + at)));
    return 0;
}
