/* tco.c: finding, starting and feeding the chipset's watchdog. */
#include "duck/uefi/tco.h"

enum {
    CHIPSET = 31, // device on bus 0
    LPC = 0,      // its functions
    SMBUS = 4,
    CONFIG_ID = 0x00,
    CONFIG_CLASS = 0x08,
    INTEL = 0x8086,
    CLASS_SMBUS = 0x0c05,
    // ICH9: LPC bridge, 13.1 and 10.1.75
    ICH9_LPC = 0x2918,
    PMBASE = 0x40,
    PMBASE_MASK = 0xff80,
    ACPI_CONTROL = 0x44,
    ACPI_ENABLE = 1 << 7,
    TCO_OF_PM = 0x60,
    RCBA = 0xf0,
    RCBA_ENABLE = 1,
    GCS = 0x3410,
    GCS_NO_REBOOT = 1 << 5,
    // Cannon Lake and later: SMBus controller
    TCOBASE = 0x50,
    TCOBASE_MASK = 0xffe0,
    TCOCTL = 0x54,
    TCOCTL_ENABLE = 1 << 8,
    // registers from the base on
    TCO_RELOAD = 0x00,
    TCO1_STATUS = 0x04,
    TCO1_TIMEOUT = 1 << 3, // written to clear
    TCO2_STATUS = 0x06,
    TCO2_SECOND_TIMEOUT = 1 << 1,
    TCO1_CONTROL = 0x08,
    TCO1_NO_REBOOT = 1 << 0, // Cannon Lake and later
    TCO1_HALT = 1 << 11,
    TCO_TIMER = 0x12,
    TIMER_MOST = 0x3ff,
    TIMER_LEAST = 4,
};
#define RCBA_MASK 0xffffc000u

static uint16_t in(const struct tco *t, uint32_t reg)
{
    return t->access.in(t->access.self, (uint16_t)(t->base + reg));
}

static void out(const struct tco *t, uint32_t reg, uint32_t value)
{
    t->access.out(t->access.self, (uint16_t)(t->base + reg), (uint16_t)value);
}

static int find_ich9(struct tco *t, const char **why)
{
    const struct tco_access *a = &t->access;
    uint32_t rcba = a->config(a->self, CHIPSET, LPC, RCBA);
    *why = "the chipset's power management is not switched on";
    if (!(a->config(a->self, CHIPSET, LPC, ACPI_CONTROL) & ACPI_ENABLE) || !(rcba & RCBA_ENABLE)) return -1;
    t->base = (uint16_t)((a->config(a->self, CHIPSET, LPC, PMBASE) & PMBASE_MASK) + TCO_OF_PM);
    uint64_t gcs = (rcba & RCBA_MASK) + GCS;
    a->write(a->self, gcs, a->read(a->self, gcs) & ~(uint32_t)GCS_NO_REBOOT);
    *why = "it is strapped never to restart the machine";
    return a->read(a->self, gcs) & GCS_NO_REBOOT ? -1 : 0;
}

static int find_on_smbus(struct tco *t, const char **why)
{
    const struct tco_access *a = &t->access;
    *why = "it is not switched on";
    if (!(a->config(a->self, CHIPSET, SMBUS, TCOCTL) & TCOCTL_ENABLE)) return -1;
    t->base = (uint16_t)(a->config(a->self, CHIPSET, SMBUS, TCOBASE) & TCOBASE_MASK);
    if (t->base == 0) return -1;
    out(t, TCO1_CONTROL, (in(t, TCO1_CONTROL) & ~(uint32_t)TCO1_NO_REBOOT) | TCO1_HALT);
    *why = "it is locked never to restart the machine";
    return in(t, TCO1_CONTROL) & TCO1_NO_REBOOT ? -1 : 0;
}

int tco_find(struct tco *t, const struct tco_access *access, const char **why)
{
    *t = (struct tco){.access = *access};
    uint32_t lpc = access->config(access->self, CHIPSET, LPC, CONFIG_ID);
    uint32_t smbus = access->config(access->self, CHIPSET, SMBUS, CONFIG_ID);
    if (lpc == ((uint32_t)ICH9_LPC << 16 | INTEL)) return find_ich9(t, why);
    if ((smbus & 0xffff) == INTEL &&
        access->config(access->self, CHIPSET, SMBUS, CONFIG_CLASS) >> 16 == CLASS_SMBUS)
        return find_on_smbus(t, why);
    *why = "no chipset that is known";
    return -1;
}

/* A tick is 0.6 s, and the machine restarts when the timer has run out for the second time. */
void tco_start(const struct tco *t, uint32_t seconds)
{
    uint32_t ticks = seconds * 10 / 12;
    if (ticks < TIMER_LEAST) ticks = TIMER_LEAST;
    if (ticks > TIMER_MOST) ticks = TIMER_MOST;
    out(t, TCO1_CONTROL, in(t, TCO1_CONTROL) | TCO1_HALT);
    out(t, TCO1_STATUS, TCO1_TIMEOUT);
    out(t, TCO2_STATUS, TCO2_SECOND_TIMEOUT);
    out(t, TCO_TIMER, (in(t, TCO_TIMER) & ~(uint32_t)TIMER_MOST) | ticks);
    tco_feed(t);
    out(t, TCO1_CONTROL, in(t, TCO1_CONTROL) & ~(uint32_t)TCO1_HALT);
}

void tco_feed(const struct tco *t)
{
    out(t, TCO_RELOAD, 1);
    if (in(t, TCO1_STATUS) & TCO1_TIMEOUT)
        out(t, TCO1_STATUS, TCO1_TIMEOUT); // the next one is the first again
}
