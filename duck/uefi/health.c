/* health.c: asking CPU and board how they are. */
#include "duck/uefi/health.h"

enum {
    LEAF_POWER = 6,
    DIGITAL_THERMOMETER = 1 << 0, // EAX
    POWER_NOTIFICATION = 1 << 4,  // EAX: the bits of power limits below
    PACKAGE_THERMAL = 1 << 6,     // EAX: of CPUs that have the registers below as well
    MSR_TEMPERATURE_TARGET = 0x1a2,
    MSR_PACKAGE_THERM_STATUS = 0x1b1,
    THERM_HOT = 1 << 0,
    THERM_HOT_LOG = 1 << 1,
    THERM_PROCHOT = 1 << 2, // somebody else holds it down: the board's regulator, another chip
    THERM_PROCHOT_LOG = 1 << 3,
    THERM_POWER = 1 << 10,
    THERM_POWER_LOG = 1 << 11,
    MSR_RAPL_UNIT = 0x606,
    MSR_PACKAGE_POWER_LIMIT = 0x610,
    POWER_LIMIT_MASK = 0x7fff,
    POWER_LIMIT_ENABLED = 1 << 15,
    CMOS_REGISTER_D = 0x0d,
    CMOS_VALID = 1 << 7,
    LONG_DIVISOR = 200, // of a second: awake for 5 ms counts
};

void health_start(struct health *h, const struct health_access *a, uint64_t tsc_hz, uint32_t cores)
{
    *h = (struct health){.a = a, .tsc_hz = tsc_hz, .stated = speed_stated(a->cpu, cores)};
    h->counts = speed_look(a->cpu).mperf != 0;
    health_awake(h);
}

void health_asleep(struct health *h)
{
    if (!h->counts) return;
    struct speed_look now = speed_look(h->a->cpu);
    uint64_t mperf = now.mperf - h->since.mperf;
    if (mperf < h->tsc_hz / LONG_DIVISOR) return;
    h->aperf += now.aperf - h->since.aperf;
    h->mperf += mperf;
}

void health_awake(struct health *h)
{
    if (h->counts) h->since = speed_look(h->a->cpu);
}

static void read_speed(struct health *h, struct wire_stats *out)
{
    health_asleep(h);
    out->core_mhz = speed_mhz(h->aperf, h->mperf, h->tsc_hz);
    h->aperf = h->mperf = 0;
    health_awake(h);
    out->base_mhz = h->stated.base_mhz;
    out->turbo_mhz = h->stated.turbo_mhz;
    if (h->stated.turbo_off) out->care |= WIRE_TURBO_OFF;
}

static uint64_t read(const struct health *h, uint32_t msr)
{
    uint64_t value = 0;
    return h->a->cpu->read(h->a->cpu->self, msr, &value) ? value : 0;
}

static void read_temperature(const struct health *h, uint32_t has, struct wire_stats *out)
{
    uint64_t status = read(h, MSR_PACKAGE_THERM_STATUS);
    uint64_t most = read(h, MSR_TEMPERATURE_TARGET) >> 16 & 0xff, below = status >> 16 & 0x7f;
    out->celsius_most = (uint16_t)most;
    out->celsius = (uint16_t)(most > below ? most - below : 0);
    if (status & (THERM_HOT | THERM_PROCHOT)) out->care |= WIRE_THROTTLED;
    if (status & (THERM_HOT_LOG | THERM_PROCHOT_LOG)) out->care |= WIRE_WAS_THROTTLED;
    if (has & POWER_NOTIFICATION && status & THERM_POWER) out->care |= WIRE_POWER_LIMITED;
    if (has & POWER_NOTIFICATION && status & THERM_POWER_LOG) out->care |= WIRE_WAS_POWER_LIMITED;
}

static uint32_t milliwatts(uint32_t limit, uint32_t unit)
{
    return limit & POWER_LIMIT_ENABLED ? (uint32_t)((uint64_t)(limit & POWER_LIMIT_MASK) * 1000 >> unit) : 0;
}

static void read_power_limits(const struct health *h, struct wire_stats *out)
{
    uint64_t limit = read(h, MSR_PACKAGE_POWER_LIMIT);
    uint32_t unit = (uint32_t)read(h, MSR_RAPL_UNIT) & 0xf; // 1 / 2^unit watts
    out->power_1_mw = milliwatts((uint32_t)limit, unit);
    out->power_2_mw = milliwatts((uint32_t)(limit >> 32), unit);
}

void health_read(struct health *h, struct wire_stats *out)
{
    const struct msr_access *cpu = h->a->cpu;
    out->care = 0;
    out->core_mhz = out->base_mhz = out->turbo_mhz = out->power_1_mw = out->power_2_mw = 0;
    out->celsius = out->celsius_most = 0;
    if (!(h->a->cmos(cpu->self, CMOS_REGISTER_D) & CMOS_VALID)) out->care |= WIRE_CLOCK_LOST;
    if (!speed_is_known(cpu)) return;
    read_speed(h, out);
    uint32_t has = cpu->cpuid(cpu->self, LEAF_POWER).a;
    if (!(has & DIGITAL_THERMOMETER) || !(has & PACKAGE_THERMAL)) return;
    read_temperature(h, has, out);
    read_power_limits(h, out);
}
