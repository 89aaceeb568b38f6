/* health_test.c: what the firmware makes of a CPU's registers, which of them it dares to read and write,
 * and the test of memory. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmocka.h>

#include "duck/uefi/health.h"
#include "duck/uefi/memory_test.h"
#include "duck/uefi/speed.h"

enum {
    MPERF = 0xe7,
    APERF = 0xe8,
    PLATFORM_INFO = 0xce,
    PERF_CTL = 0x199,
    MISC_ENABLE = 0x1a0,
    TARGET = 0x1a2,
    TURBO_RATIO = 0x1ad,
    TURBO_CORES = 0x1ae,
    ENERGY_BIAS = 0x1b0,
    THERM = 0x1b1,
    UNIT = 0x606,
    LIMIT = 0x610,
    PM_ENABLE = 0x770,
    CAPABILITIES = 0x771,
    REQUEST = 0x774,
    REGISTERS = 0x800,
};
#define TSC_HZ ((uint64_t)806400000)
#define TURBO_OFF ((uint64_t)1 << 38)

/* An Intel CPU: registers that it has, their values; some cannot be written. */
static struct {
    struct cpuid leaf[0x17];
    uint64_t value[REGISTERS];
    uint8_t has[REGISTERS], fixed[REGISTERS];
    uint8_t cmos_d;
    uint32_t reads, writes;
} model;

static struct cpuid leaf(void *self, uint32_t n)
{
    (void)self;
    assert_true(n <= model.leaf[0].a);
    return model.leaf[n];
}

static int reads(void *self, uint32_t n, uint64_t *value)
{
    (void)self;
    model.reads++;
    assert_true(n < REGISTERS);
    if (n == CAPABILITIES || n == REQUEST) assert_int_equal(model.value[PM_ENABLE], 1); // SDM: an exception
    if (model.has[n]) *value = model.value[n];
    return model.has[n];
}

static int writes(void *self, uint32_t n, uint64_t value)
{
    (void)self;
    model.writes++;
    assert_true(n < REGISTERS);
    if (n == CAPABILITIES || n == REQUEST) assert_int_equal(model.value[PM_ENABLE], 1);
    if (!model.has[n]) return 0;
    if (!model.fixed[n]) model.value[n] = value;
    return 1;
}

static uint8_t cmos(void *self, uint8_t index)
{
    (void)self;
    assert_int_equal(index, 0x0d);
    return model.cmos_d;
}

static const struct msr_access cpu = {NULL, leaf, reads, writes};
static const struct health_access machine = {&cpu, cmos};

static void put(uint32_t n, uint64_t value)
{
    model.has[n] = 1;
    model.value[n] = value;
}

/* A small Intel CPU of 806 MHz that has all of it: four cores, 3.4 GHz one of them, 2.9 all. */
static void make(void)
{
    memset(&model, 0, sizeof model);
    model.leaf[0] = (struct cpuid){.a = 0x16, .b = 0x756e6547};
    model.leaf[1] = (struct cpuid){.c = 1 << 7};
    model.leaf[6] = (struct cpuid){.a = 1 << 0 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10, .c = 1 << 0 | 1 << 3};
    model.leaf[0x16] = (struct cpuid){.a = 800, .b = 3400};
    model.cmos_d = 0x80;
    put(PLATFORM_INFO, 0x80800 | (uint64_t)4 << 40);
    put(PERF_CTL, 0x800);
    put(MISC_ENABLE, 0x850089);
    put(TARGET, 105 << 16);
    put(TURBO_RATIO, 0x1d1d1d1d1d1e2022);
    put(ENERGY_BIAS, 6);
    put(THERM, 1u << 31 | 40 << 16);
    put(UNIT, 0xa0e03); // power in eighths of a watt
    put(LIMIT, (uint64_t)(1 << 15 | 25 * 8) << 32 | (1 << 15 | 6 * 8));
    put(PM_ENABLE, 0);
    put(CAPABILITIES, 0x07081d22);
    put(REQUEST, 0x8000ff01);
    put(MPERF, 1000000);
    put(APERF, 5000000);
}

static void counts(uint64_t mperf, uint64_t aperf)
{
    model.value[MPERF] += mperf;
    model.value[APERF] += aperf;
}

static void reads_a_healthy_machine(void **state)
{
    (void)state;
    struct health h;
    struct wire_stats s = {.care = 0xff, .steps = 7};
    make();
    health_start(&h, &machine, TSC_HZ, 4);
    health_read(&h, &s);
    assert_int_equal(s.care, 0);
    assert_int_equal(s.core_mhz, 0); // needs two looks
    assert_int_equal(s.base_mhz, 800);
    assert_int_equal(s.turbo_mhz, 2900);
    assert_int_equal(s.celsius, 65);
    assert_int_equal(s.celsius_most, 105);
    assert_int_equal(s.power_1_mw, 6000);
    assert_int_equal(s.power_2_mw, 25000);
    assert_int_equal(s.steps, 7);
    counts(TSC_HZ * 3600 * 24 * 365, 2900000000 * 3600 * 24 * 365); // a year
    health_read(&h, &s);
    assert_int_equal(s.core_mhz, 2900);
    assert_int_equal(model.writes, 0);
}

/* Short looks at the NIC between sleeps say nothing: a clock has no time to rise. */
static void a_clock_is_measured_at_work(void **state)
{
    (void)state;
    struct health h;
    struct wire_stats s = {0};
    make();
    health_start(&h, &machine, TSC_HZ, 4);
    for (int i = 0; i < 1000; i++) { // 4 ms at 800 MHz, each
        health_awake(&h);
        counts(TSC_HZ / 250, 800000000 / 250);
        health_asleep(&h);
        counts(1000, 1000); // asleep
    }
    health_awake(&h);
    health_read(&h, &s);
    assert_int_equal(s.core_mhz, 0);
    counts(TSC_HZ / 100, 2900000000 / 100); // 10 ms of work
    health_asleep(&h);
    counts(TSC_HZ, 800000000);
    health_awake(&h);
    health_read(&h, &s);
    assert_in_range(s.core_mhz, 2899, 2900);
    health_read(&h, &s);
    assert_int_equal(s.core_mhz, 0); // nothing new
}

static void tells_what_is_wrong(void **state)
{
    enum {
        HOT = 1 << 0,
        HOT_LOG = 1 << 1,
        PROCHOT = 1 << 2,
        PROCHOT_LOG = 1 << 3,
        POWER = 1 << 10,
        POWER_LOG = 1 << 11
    };
    static const struct {
        uint32_t status, care;
    } cases[] = {{HOT | HOT_LOG, WIRE_THROTTLED | WIRE_WAS_THROTTLED},
                 {HOT_LOG, WIRE_WAS_THROTTLED},
                 {PROCHOT, WIRE_THROTTLED},
                 {PROCHOT_LOG, WIRE_WAS_THROTTLED},
                 {POWER | POWER_LOG, WIRE_POWER_LIMITED | WIRE_WAS_POWER_LIMITED},
                 {POWER_LOG, WIRE_WAS_POWER_LIMITED}};
    (void)state;
    struct health h;
    struct wire_stats s = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        model.value[THERM] = cases[i].status;
        health_start(&h, &machine, TSC_HZ, 4);
        health_read(&h, &s);
        assert_int_equal(s.care, cases[i].care);
        assert_int_equal(s.celsius, 105);
    }
    model.leaf[6].a &= ~(1u << 4); // the CPU does not tell of power limits: the bits are something else
    health_read(&h, &s);
    assert_int_equal(s.care, 0);
    make();
    model.cmos_d = 0;
    model.value[LIMIT] = 6 * 8; // not enabled
    model.value[MISC_ENABLE] |= TURBO_OFF;
    health_start(&h, &machine, TSC_HZ, 4);
    health_read(&h, &s);
    assert_int_equal(s.care, WIRE_CLOCK_LOST | WIRE_TURBO_OFF);
    assert_int_equal(s.power_1_mw, 0);
    assert_int_equal(s.power_2_mw, 0);
}

static void reads_nothing_that_is_not_promised(void **state)
{
    (void)state;
    struct health h;
    for (int i = 0; i < 3; i++) {
        struct wire_stats s = {0};
        make();
        if (i == 0) model.leaf[1].c = 1u << 31;   // virtual
        if (i == 1) model.leaf[0].b = 0x68747541; // of another maker
        if (i == 2) model.leaf[0].a = 5;          // old
        assert_int_equal(speed_raise(&cpu), 0);
        health_start(&h, &machine, TSC_HZ, 4);
        health_asleep(&h);
        health_awake(&h);
        health_read(&h, &s);
        assert_int_equal(model.reads + model.writes, 0);
        assert_int_equal(s.celsius, 0);
        assert_int_equal(s.turbo_mhz, 0);
        assert_int_equal(s.care, 0);
    }
}

/* What CPUID does not speak of may be missing: a read that fails is a thing not known. */
static void a_cpu_without_any_register_is_no_harm(void **state)
{
    (void)state;
    struct health h;
    struct wire_stats s = {0};
    make();
    memset(model.has, 0, sizeof model.has);
    assert_int_equal(speed_raise(&cpu), 0);
    health_start(&h, &machine, TSC_HZ, 4);
    health_asleep(&h);
    health_awake(&h);
    health_read(&h, &s);
    assert_int_equal(s.care | s.core_mhz | s.turbo_mhz | s.celsius | s.power_1_mw | s.power_2_mw, 0);
    assert_int_equal(s.base_mhz, 800); // of CPUID
    model.leaf[0].a = 0x15;            // not even that
    assert_int_equal(speed_stated(&cpu, 4).base_mhz, 0);
}

static void asks_for_the_highest_clock(void **state)
{
    (void)state;
    make();
    assert_int_equal(speed_raise(&cpu), SPEED_HARDWARE | SPEED_BIAS);
    assert_int_equal(model.value[PM_ENABLE], 1);
    assert_int_equal(model.value[REQUEST], 0x2222); // least = most = highest; preference 0
    assert_int_equal(model.value[ENERGY_BIAS], 0);
    assert_int_equal(model.value[PERF_CTL], 0x800);
    assert_int_equal(model.value[MISC_ENABLE], 0x850089);

    make(); // turbo switched off by the BIOS
    model.value[MISC_ENABLE] |= TURBO_OFF;
    assert_int_equal(speed_raise(&cpu), SPEED_HARDWARE | SPEED_BIAS | SPEED_TURBO);
    assert_int_equal(model.value[MISC_ENABLE], 0x850089);
    assert_false(speed_stated(&cpu, 4).turbo_off);

    make(); // and locked
    model.value[MISC_ENABLE] |= TURBO_OFF;
    model.fixed[MISC_ENABLE] = 1;
    assert_int_equal(speed_raise(&cpu), SPEED_HARDWARE | SPEED_BIAS);
    assert_true(speed_stated(&cpu, 4).turbo_off);

    make(); // an older one
    model.leaf[6] = (struct cpuid){.a = 1, .c = 1};
    model.value[PERF_CTL] = (uint64_t)1 << 32 | 0x800; // its firmware did not want turbo
    assert_int_equal(speed_raise(&cpu), SPEED_RATIO);
    assert_int_equal(model.value[PERF_CTL], 0x2200);
    assert_int_equal(model.value[PM_ENABLE], 0);
    assert_int_equal(model.value[ENERGY_BIAS], 6);
    model.has[TURBO_RATIO] = 0; // without turbo
    assert_int_equal(speed_raise(&cpu), SPEED_RATIO);
    assert_int_equal(model.value[PERF_CTL], 0x800);
    model.leaf[1].c = 0; // with one clock only
    assert_int_equal(speed_raise(&cpu), 0);
}

static void knows_the_turbo_of_all_cores(void **state)
{
    static const struct {
        uint32_t cores;
        uint64_t sizes; // of groups; 0: there is no such register
        uint32_t mhz;
    } cases[] = {
        {1, 0, 3400},
        {2, 0, 3200},
        {3, 0, 3000},
        {4, 0, 2900},
        {64, 0, 2900},
        {2, 0x0000000000000402, 3400}, // two groups: of two, of four
        {4, 0x0000000000000402, 3200},
        {9, 0x0000000000000402, 3200}, // more than the last: the last
        {12, 0x201c1814100c0804, 3000},
        {4, 0x1e1e1e1e1e1e1e1e, 2900}, // ratios of still more cores, as older Xeons have there
        {4, 0x1c1c1c1d1d1e1e1f, 2900},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        if (cases[i].sizes) put(TURBO_CORES, cases[i].sizes);
        assert_int_equal(speed_stated(&cpu, cases[i].cores).turbo_mhz, cases[i].mhz);
    }
    assert_int_equal(speed_mhz(1, 0, TSC_HZ), 0);
    assert_int_equal(speed_mhz(UINT64_MAX, 1, TSC_HZ), 0);
}

/* In ring 3 RDMSR is the same exception that it is on a CPU without the register. */
static void protection(int signal, siginfo_t *info, void *context)
{
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    uint64_t next = msr_recover((uint64_t)*rip);
    (void)signal;
    (void)info;
    if (!next) abort();
    *rip = (greg_t)next;
}

static void a_missing_register_is_an_exception_that_ends_well(void **state)
{
    (void)state;
    struct sigaction old, ours = {.sa_sigaction = protection, .sa_flags = SA_SIGINFO};
    uint64_t value = 0x1234;
    assert_int_equal(sigaction(SIGSEGV, &ours, &old), 0);
    assert_int_equal(msr_machine.read(NULL, TURBO_RATIO, &value), 0);
    assert_int_equal(msr_machine.write(NULL, REQUEST, 0x2222), 0);
    assert_int_equal(sigaction(SIGSEGV, &old, NULL), 0);
    assert_int_equal(value, 0x1234);
    assert_int_equal(msr_recover(0), 0);
    assert_int_equal(msr_recover((uint64_t)(uintptr_t)&protection), 0);
}

static void memory_that_forgets_is_found(void **state)
{
    (void)state;
    enum { WORDS = 8192 };
    uint64_t *m = aligned_alloc(64, WORDS * sizeof *m);
    assert_non_null(m);
    memory_test_fill(m, WORDS * sizeof *m);
    assert_int_equal(memory_test_check(m, WORDS * sizeof *m), 0);
    for (unsigned bit = 0; bit < 64; bit++) { // one bit anywhere
        m[bit * 100] ^= (uint64_t)1 << bit;
        assert_int_equal(memory_test_check(m, WORDS * sizeof *m), bit + 1);
    }
    memory_test_fill(m, WORDS * sizeof *m);
    memcpy(m + WORDS / 2, m, WORDS / 2 * sizeof *m); // an address line that does nothing
    assert_int_equal(memory_test_check(m, WORDS * sizeof *m), WORDS / 2);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_healthy_machine),
        cmocka_unit_test(tells_what_is_wrong),
        cmocka_unit_test(reads_nothing_that_is_not_promised),
        cmocka_unit_test(a_clock_is_measured_at_work),
        cmocka_unit_test(a_cpu_without_any_register_is_no_harm),
        cmocka_unit_test(asks_for_the_highest_clock),
        cmocka_unit_test(knows_the_turbo_of_all_cores),
        cmocka_unit_test(a_missing_register_is_an_exception_that_ends_well),
        cmocka_unit_test(memory_that_forgets_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
