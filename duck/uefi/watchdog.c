/* watchdog.c: who watches core 0. Compiled without vector registers: cores look in the middle of the program.
 */
#include "duck/uefi/watchdog.h"

#include <stdatomic.h>

#include "duck/uefi/acpi.h"
#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/tco.h"

#define SECOND_NS ((uint64_t)1000000000)

static struct {
    struct tco tco;
    int has_tco;
    uint64_t patience; // ns; 0: nobody watches
    uint64_t fed_tco;
    _Atomic uint64_t fed; // 0: not yet
} the;

/* PCI local bus 3.0, 3.2.2.3.2: works without ECAM, and for bus 0 that is enough. */
static uint32_t config(void *self, uint32_t device, uint32_t function, uint32_t offset)
{
    enum { ADDRESS = 0xcf8, DATA = 0xcfc };
    (void)self;
    out32(ADDRESS, 1u << 31 | device << 11 | function << 8 | offset);
    return in32(DATA);
}

static uint16_t in(void *self, uint16_t port)
{
    (void)self;
    return in16(port);
}

static void out(void *self, uint16_t port, uint16_t value)
{
    (void)self;
    out16(port, value);
}

static uint32_t read(void *self, uint64_t address)
{
    (void)self;
    return *(volatile uint32_t *)(uintptr_t)address;
}

static void write(void *self, uint64_t address, uint32_t value)
{
    (void)self;
    *(volatile uint32_t *)(uintptr_t)address = value;
}

void watchdog_start(uint32_t seconds)
{
    static const struct tco_access machine = {0, config, in, out, read, write};
    const char *why;
    the.patience = seconds * SECOND_NS;
    if (!seconds) return;
    the.has_tco = tco_find(&the.tco, &machine, &why) == 0;
    if (the.has_tco) tco_start(&the.tco, seconds);
    say("watchdog: %u s, %s%s", seconds,
        the.has_tco ? "the chipset's" : "by other cores only: ", the.has_tco ? " and other cores" : why);
}

/* The chipset's costs a microsecond: once a second will do. */
void watchdog_feed(void)
{
    uint64_t now = clock_now();
    if (!the.patience) return;
    atomic_store_explicit(&the.fed, now, memory_order_relaxed);
    if (!the.has_tco || now - the.fed_tco < SECOND_NS) return;
    the.fed_tco = now;
    tco_feed(&the.tco);
}

void watchdog_look(void)
{
    uint64_t fed = atomic_load_explicit(&the.fed, memory_order_relaxed);
    if (!fed || clock_now() < fed + the.patience) return;
    say("*** core 0 has not looked at the NIC for %lu s; restarting", the.patience / SECOND_NS);
    acpi_restart();
}
