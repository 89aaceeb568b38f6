/* health.c: asking CPU and board how they are. */
#include "duck/uefi/health.h"

enum {
    HYPERVISOR = 1u << 31, // CPUID 1, ECX: a virtual machine has no temperature
    INTEL_EBX = 0x756e6547,
    LEAF_POWER = 6,
    DIGITAL_THERMOMETER = 1 << 0,
    PACKAGE_THERMAL = 1 << 6,       // of CPUs that have the registers below as well
    HARDWARE_COORDINATION = 1 << 0, // ECX: APERF and MPERF
    LEAF_FREQUENCY = 0x16,
    MSR_MPERF = 0xe7,
    MSR_APERF = 0xe8,
    MSR_TEMPERATURE_TARGET = 0x1a2,
    MSR_PACKAGE_THERM_STATUS = 0x1b1,
    THERM_HOT = 1 << 0,
    THERM_HOT_LOG = 1 << 1,
    MSR_RAPL_UNIT = 0x606,
    MSR_PACKAGE_POWER_LIMIT = 0x610,
    POWER_LIMIT_MASK = 0x7fff,
    POWER_LIMIT_ENABLED = 1 << 15,
    CMOS_REGISTER_D = 0x0d,
    CMOS_VALID = 1 << 7,
};

/* APERF counts at the real clock, MPERF at the TSC's, both only while the core is awake. */
static void read_clock(struct health *h, const struct health_access *a, uint64_t tsc_hz,
                       struct wire_stats *out)
{
    uint64_t mperf = a->msr(a->self, MSR_MPERF), aperf = a->msr(a->self, MSR_APERF);
    uint64_t dm = mperf - h->mperf, da = aperf - h->aperf;
    if (h->mperf && dm) out->core_mhz = (uint32_t)(tsc_hz / 1000 * ((da << 10) / dm) / 1024 / 1000);
    h->mperf = mperf;
    h->aperf = aperf;
}

static void read_temperature(const struct health_access *a, struct wire_stats *out)
{
    uint64_t status = a->msr(a->self, MSR_PACKAGE_THERM_STATUS);
    uint64_t most = a->msr(a->self, MSR_TEMPERATURE_TARGET) >> 16 & 0xff, below = status >> 16 & 0x7f;
    out->celsius_most = (uint16_t)most;
    out->celsius = (uint16_t)(most > below ? most - below : 0);
    if (status & THERM_HOT) out->care |= WIRE_THROTTLED;
    if (status & THERM_HOT_LOG) out->care |= WIRE_WAS_THROTTLED;
}

static uint32_t milliwatts(uint32_t limit, uint32_t unit)
{
    return limit & POWER_LIMIT_ENABLED ? (uint32_t)((uint64_t)(limit & POWER_LIMIT_MASK) * 1000 >> unit) : 0;
}

static void read_power_limits(const struct health_access *a, struct wire_stats *out)
{
    uint64_t limit = a->msr(a->self, MSR_PACKAGE_POWER_LIMIT);
    uint32_t unit = a->msr(a->self, MSR_RAPL_UNIT) & 0xf; // 1 / 2^unit watts
    out->power_1_mw = milliwatts((uint32_t)limit, unit);
    out->power_2_mw = milliwatts((uint32_t)(limit >> 32), unit);
}

void health_read(struct health *h, const struct health_access *a, uint64_t tsc_hz, struct wire_stats *out)
{
    struct cpuid first = a->cpuid(a->self, 0);
    out->care = 0;
    out->core_mhz = out->base_mhz = out->power_1_mw = out->power_2_mw = 0;
    out->celsius = out->celsius_most = 0;
    if (!(a->cmos(a->self, CMOS_REGISTER_D) & CMOS_VALID)) out->care |= WIRE_CLOCK_LOST;
    if (first.a >= LEAF_FREQUENCY) out->base_mhz = a->cpuid(a->self, LEAF_FREQUENCY).a & 0xffff;
    if (first.b != INTEL_EBX || first.a < LEAF_POWER || a->cpuid(a->self, 1).c & HYPERVISOR) return;
    struct cpuid power = a->cpuid(a->self, LEAF_POWER);
    if (power.c & HARDWARE_COORDINATION) read_clock(h, a, tsc_hz, out);
    if (!(power.a & DIGITAL_THERMOMETER) || !(power.a & PACKAGE_THERMAL)) return;
    read_temperature(a, out);
    read_power_limits(a, out);
}
