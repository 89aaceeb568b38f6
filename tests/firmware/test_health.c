/* test_health.c: what the firmware makes of a CPU's registers, which of them it dares to read, and the test
 * of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "duck/uefi/health.h"
#include "duck/uefi/memory_test.h"

static struct {
    struct cpuid leaf[0x17];
    uint64_t mperf, aperf, therm, target, unit, limit;
    uint8_t cmos_d;
    uint32_t msr_reads;
} model;

static struct cpuid leaf(void *self, uint32_t n)
{
    (void)self;
    assert_true(n <= model.leaf[0].a);
    return model.leaf[n];
}

static uint64_t msr(void *self, uint32_t n)
{
    (void)self;
    model.msr_reads++;
    switch (n) {
    case 0xe7:
        return model.mperf;
    case 0xe8:
        return model.aperf;
    case 0x1a2:
        return model.target;
    case 0x1b1:
        return model.therm;
    case 0x606:
        return model.unit;
    case 0x610:
        return model.limit;
    default:
        fail_msg("reads MSR %#x", n);
        return 0;
    }
}

static uint8_t cmos(void *self, uint8_t index)
{
    (void)self;
    assert_int_equal(index, 0x0d);
    return model.cmos_d;
}

static const struct health_access access = {NULL, leaf, msr, cmos};

/* A small Intel CPU of 806 MHz that has all of it. */
static void make(void)
{
    memset(&model, 0, sizeof model);
    model.leaf[0] = (struct cpuid){.a = 0x16, .b = 0x756e6547};
    model.leaf[6] = (struct cpuid){.a = 1 << 0 | 1 << 6, .c = 1};
    model.leaf[0x16] = (struct cpuid){.a = 800, .b = 3400};
    model.cmos_d = 0x80;
    model.target = 105 << 16;
    model.therm = 1u << 31 | 40 << 16;
    model.unit = 0xa0e03; // power in eighths of a watt
    model.limit = (uint64_t)(1 << 15 | 25 * 8) << 32 | (1 << 15 | 6 * 8);
    model.mperf = 1000000;
    model.aperf = 5000000;
}

static void reads_a_healthy_machine(void **state)
{
    (void)state;
    struct health h = {0};
    struct wire_stats s = {.care = 0xff, .steps = 7};
    make();
    health_read(&h, &access, 806400000, &s);
    assert_int_equal(s.care, 0);
    assert_int_equal(s.core_mhz, 0); // needs two looks
    assert_int_equal(s.base_mhz, 800);
    assert_int_equal(s.celsius, 65);
    assert_int_equal(s.celsius_most, 105);
    assert_int_equal(s.power_1_mw, 6000);
    assert_int_equal(s.power_2_mw, 25000);
    assert_int_equal(s.steps, 7);
    model.mperf += 806400000ull * 3600; // an hour at 2.9 GHz
    model.aperf += 2900000000ull * 3600;
    health_read(&h, &access, 806400000, &s);
    assert_in_range(s.core_mhz, 2895, 2900);
}

static void tells_what_is_wrong(void **state)
{
    (void)state;
    struct health h = {0};
    struct wire_stats s = {0};
    make();
    model.cmos_d = 0;
    model.therm = 3;     // at the limit now
    model.limit = 6 * 8; // not enabled
    health_read(&h, &access, 806400000, &s);
    assert_int_equal(s.care, WIRE_THROTTLED | WIRE_WAS_THROTTLED | WIRE_CLOCK_LOST);
    assert_int_equal(s.celsius, 105);
    assert_int_equal(s.power_1_mw, 0);
    model.therm = 1 << 1 | 20 << 16;
    health_read(&h, &access, 806400000, &s);
    assert_int_equal(s.care, WIRE_WAS_THROTTLED | WIRE_CLOCK_LOST);
}

static void reads_nothing_that_is_not_promised(void **state)
{
    (void)state;
    struct health h = {0};
    for (int i = 0; i < 4; i++) {
        struct wire_stats s = {0};
        make();
        if (i == 0) model.leaf[1].c = 1u << 31;        // virtual
        if (i == 1) model.leaf[0].b = 0x68747541;      // of another maker
        if (i == 2) model.leaf[0].a = 5;               // old
        if (i == 3) model.leaf[6] = (struct cpuid){0}; // has none of it
        health_read(&h, &access, 806400000, &s);
        assert_int_equal(model.msr_reads, 0);
        assert_int_equal(s.celsius, 0);
        assert_int_equal(s.care, 0);
    }
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
        cmocka_unit_test(memory_that_forgets_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
