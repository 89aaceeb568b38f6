/* speed.c: asking for the highest clock, and measuring it. */
#include "duck/uefi/speed.h"

enum {
    HYPERVISOR = 1u << 31, // CPUID 1, ECX
    SPEED_STEP = 1 << 7,   // CPUID 1, ECX: IA32_PERF_CTL
    INTEL_EBX = 0x756e6547,
    LEAF_POWER = 6,
    HARDWARE_PERFORMANCE = 1 << 7,  // EAX
    HARDWARE_COORDINATION = 1 << 0, // ECX: APERF and MPERF
    ENERGY_BIAS = 1 << 3,           // ECX
    LEAF_FREQUENCY = 0x16,
    MSR_PLATFORM_INFO = 0xce, // 15:8: the ratio without turbo
    MSR_MPERF = 0xe7,
    MSR_APERF = 0xe8,
    MSR_PERF_CTL = 0x199,
    MSR_MISC_ENABLE = 0x1a0,
    MSR_TURBO_RATIO = 0x1ad, // a byte for each group
    MSR_TURBO_CORES = 0x1ae, // how many cores may be busy in a group, where groups are not 1, 2, 3 ..
    MSR_ENERGY_BIAS = 0x1b0, // 0: performance
    MSR_PM_ENABLE = 0x770,
    MSR_HWP_CAPABILITIES = 0x771, // 7:0: highest
    MSR_HWP_REQUEST = 0x774,      // 7:0 least, 15:8 most; above, 0: its choice in between, for performance
    BUS_MHZ = 100,
    GROUPS = 8,
};
#define TURBO_DISABLE ((uint64_t)1 << 38) // of IA32_MISC_ENABLE

int speed_is_known(const struct msr_access *a)
{
    struct cpuid first = a->cpuid(a->self, 0);
    return first.b == INTEL_EBX && first.a >= LEAF_POWER && !(a->cpuid(a->self, 1).c & HYPERVISOR);
}

static uint32_t byte_of(uint64_t v, uint32_t i)
{
    return (uint32_t)(v >> 8 * i) & 0xff;
}

static uint64_t read(const struct msr_access *a, uint32_t msr)
{
    uint64_t value = 0;
    return a->read(a->self, msr, &value) ? value : 0;
}

static int turbo_is_off(const struct msr_access *a)
{
    return (read(a, MSR_MISC_ENABLE) & TURBO_DISABLE) != 0;
}

static int switch_turbo_on(const struct msr_access *a)
{
    if (!turbo_is_off(a)) return 0;
    a->write(a->self, MSR_MISC_ENABLE, read(a, MSR_MISC_ENABLE) & ~TURBO_DISABLE);
    return !turbo_is_off(a);
}

static int ask_hardware(const struct msr_access *a, uint32_t has)
{
    if (!(has & HARDWARE_PERFORMANCE) || !a->write(a->self, MSR_PM_ENABLE, 1)) return 0;
    uint64_t highest = read(a, MSR_HWP_CAPABILITIES) & 0xff;
    return highest && a->write(a->self, MSR_HWP_REQUEST, highest | highest << 8);
}

static int ask_ratio(const struct msr_access *a)
{
    uint64_t highest = byte_of(read(a, MSR_TURBO_RATIO), 0), old = 0;
    if (!highest) highest = byte_of(read(a, MSR_PLATFORM_INFO), 1);
    if (!(a->cpuid(a->self, 1).c & SPEED_STEP) || !highest || !a->read(a->self, MSR_PERF_CTL, &old)) return 0;
    return a->write(a->self, MSR_PERF_CTL, (old & 0xffff0000) | highest << 8); // bit 32, "no turbo", is 0
}

uint32_t speed_raise(const struct msr_access *a)
{
    uint32_t done = 0;
    if (!speed_is_known(a)) return 0;
    struct cpuid power = a->cpuid(a->self, LEAF_POWER);
    if (switch_turbo_on(a)) done |= SPEED_TURBO; // first: it raises what can be asked for
    if (power.c & ENERGY_BIAS && a->write(a->self, MSR_ENERGY_BIAS, 0)) done |= SPEED_BIAS;
    if (ask_hardware(a, power.a))
        done |= SPEED_HARDWARE;
    else if (ask_ratio(a))
        done |= SPEED_RATIO;
    return done;
}

/* Groups without a register of their sizes are 1, 2, 3 .. cores; there it is missing, or holds something
 * else: sizes grow from one to the next. */
static uint32_t group_of(uint64_t sizes, uint32_t cores)
{
    uint32_t groups = 0, i = 0;
    while (groups < GROUPS && byte_of(sizes, groups) &&
           (!groups || byte_of(sizes, groups) > byte_of(sizes, groups - 1)))
        groups++;
    if (groups == 0 || (groups < GROUPS && byte_of(sizes, groups)))
        return cores < GROUPS ? cores - 1 : GROUPS - 1;
    while (i + 1 < groups && byte_of(sizes, i) < cores) i++;
    return i;
}

struct speed speed_stated(const struct msr_access *a, uint32_t cores)
{
    struct speed s = {0};
    if (!cores || !speed_is_known(a)) return s;
    uint64_t ratios = read(a, MSR_TURBO_RATIO);
    s.turbo_mhz = byte_of(ratios, group_of(read(a, MSR_TURBO_CORES), cores)) * BUS_MHZ;
    s.base_mhz = byte_of(read(a, MSR_PLATFORM_INFO), 1) * BUS_MHZ;
    s.turbo_off = turbo_is_off(a);
    if (a->cpuid(a->self, 0).a < LEAF_FREQUENCY) return s;
    uint32_t nominal = a->cpuid(a->self, LEAF_FREQUENCY).a & 0xffff;
    if (nominal) s.base_mhz = nominal;
    return s;
}

struct speed_look speed_look(const struct msr_access *a)
{
    struct speed_look l = {0, 0};
    if (!speed_is_known(a) || !(a->cpuid(a->self, LEAF_POWER).c & HARDWARE_COORDINATION)) return l;
    l.mperf = read(a, MSR_MPERF);
    l.aperf = read(a, MSR_APERF);
    return l;
}

uint32_t speed_mhz(uint64_t aperf, uint64_t mperf, uint64_t tsc_hz)
{
    const uint64_t megahertz = 1000000;
    if (!mperf || aperf / mperf > 100) return 0; // no clock is a hundred times another
    return (uint32_t)(mul_div(aperf, tsc_hz, mperf) / megahertz);
}
