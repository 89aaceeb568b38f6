/* machine_test.c: ACPI tables, the local APIC in both modes, clock calibration, options and formatting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "duck/uefi/acpi.h"
#include "duck/uefi/apic.h"
#include "duck/uefi/clock.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/options.h"
#include "duck/uefi/print.h"

/* ---- ACPI ---- */

static struct {
    uint8_t rsdp[36], xsdt[36 + 6 * 8], madt[128], mcfg[60], fadt[276], dsdt[80], hpet[56],
        dmar[48 + 12 * 16];
} tables __attribute__((aligned(16)));

static void put(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static void seal(uint8_t *t, size_t bytes, size_t at)
{
    uint8_t sum = 0;
    t[at] = 0;
    for (size_t i = 0; i < bytes; i++) sum = (uint8_t)(sum + t[i]);
    t[at] = (uint8_t)(0 - sum);
}

static void seal_table(uint8_t *t, const char *name, size_t bytes)
{
    memcpy(t, name, 4);
    put(t + 4, bytes, 4);
    seal(t, bytes, 9);
}

static uint64_t at(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void make_tables(void)
{
    memset(&tables, 0, sizeof tables);
    uint8_t *e = tables.madt + 44; // three enabled cores, a disabled one, one listed twice, an I/O APIC
    for (unsigned id = 0; id < 4; id++, e += 8) {
        e[0] = 0, e[1] = 8, e[3] = (uint8_t)(2 * id);
        put(e + 4, id != 1, 4);
    }
    e[0] = 1, e[1] = 12, e += 12;
    e[0] = 9, e[1] = 16, put(e + 4, 300, 4), put(e + 8, 1, 4), e += 16;
    e[0] = 9, e[1] = 16, put(e + 4, 6, 4), put(e + 8, 1, 4), e += 16;
    seal_table(tables.madt, "APIC", (size_t)(e - tables.madt));
    put(tables.mcfg + 44, 0xb0000000, 8), tables.mcfg[55] = 255;
    seal_table(tables.mcfg, "MCFG", sizeof tables.mcfg);
    static const uint8_t s5[] = {8, '_', 'S', '5', '_', 0x12, 6, 4, 0x0a, 5, 1, 0, 0};
    memcpy(tables.dsdt + 50, s5, sizeof s5);
    seal_table(tables.dsdt, "DSDT", sizeof tables.dsdt);
    put(tables.fadt + 40, 1, 4); // not where the DSDT is: the 64-bit field counts
    put(tables.fadt + 64, 0x604, 4);
    put(tables.fadt + 76, 0x608, 4);
    put(tables.fadt + 112, 1 << 10 | 1 << 8, 4);
    tables.fadt[116] = 1, put(tables.fadt + 120, 0xcf9, 8), tables.fadt[128] = 0x0f;
    put(tables.fadt + 140, at(tables.dsdt), 8);
    seal_table(tables.fadt, "FACP", sizeof tables.fadt);
    put(tables.hpet + 44, 0xfed00000, 8);
    seal_table(tables.hpet, "HPET", sizeof tables.hpet);
    for (unsigned i = 0; i < 12;
         i++) { // a unit; reserved memory, which is none; more units than there is room for
        uint8_t *d = tables.dmar + 48 + 16 * i;
        d[0] = i == 1, d[2] = 16, put(d + 8, 0xfed90000 + 0x1000 * i, 8);
    }
    seal_table(tables.dmar, "DMAR", sizeof tables.dmar);
    const void *all[] = {tables.madt, tables.mcfg, tables.fadt, tables.hpet, NULL, tables.dmar};
    for (int i = 0; i < 6; i++) put(tables.xsdt + 36 + 8 * i, at(all[i]), 8);
    seal_table(tables.xsdt, "XSDT", sizeof tables.xsdt);
    memcpy(tables.rsdp, "RSD PTR ", 8);
    tables.rsdp[15] = 2, put(tables.rsdp + 20, 36, 4), put(tables.rsdp + 24, at(tables.xsdt), 8);
    seal(tables.rsdp, 20, 8), seal(tables.rsdp, 36, 32);
}

static void reads_acpi(void **state)
{
    (void)state;
    struct acpi a;
    make_tables();
    assert_int_equal(acpi_read(&a, at(tables.rsdp)), 0);
    static const uint32_t ids[] = {0, 4, 6, 300};
    assert_int_equal(a.cores, 4);
    assert_memory_equal(a.core, ids, sizeof ids);
    assert_int_equal(a.ecam, 0xb0000000);
    assert_int_equal(a.last_bus, 255);
    assert_int_equal(a.reset.address, 0xcf9);
    assert_int_equal(a.reset_value, 0x0f);
    assert_int_equal(a.pm_timer.address, 0x608);
    assert_true(a.pm_timer_32_bits);
    assert_int_equal(a.hpet, 0xfed00000);
    assert_true(a.can_power_off);
    assert_int_equal(a.sleep_a, 5);
    assert_int_equal(a.sleep_b, 1);
    assert_int_equal(a.remappers, ACPI_REMAPPERS);
    assert_int_equal(a.remapper[0], 0xfed90000);
    assert_int_equal(a.remapper[1], 0xfed92000);
}

static void refuses_damaged_acpi(void **state)
{
    (void)state;
    struct acpi a;
    make_tables();
    tables.madt[50] ^= 1; // this table is lost, the others are not
    assert_int_equal(acpi_read(&a, at(tables.rsdp)), 0);
    assert_int_equal(a.cores, 0);
    assert_int_equal(a.ecam, 0xb0000000);
    make_tables();
    tables.xsdt[40] ^= 1;
    assert_int_equal(acpi_read(&a, at(tables.rsdp)), -1);
    make_tables();
    tables.rsdp[10] ^= 1;
    assert_int_equal(acpi_read(&a, at(tables.rsdp)), -1);
    make_tables(); // an entry of no length must not hang the reader
    tables.madt[45] = 0;
    seal_table(tables.madt, "APIC", 120);
    assert_int_equal(acpi_read(&a, at(tables.rsdp)), 0);
    assert_int_equal(a.cores, 0);
    static const uint8_t lengths[] = {0, 3, 15, 255}; // of the third; the fourth is longer than the table
    for (size_t i = 0; i < sizeof lengths; i++) {
        make_tables();
        tables.dmar[48 + 2 * 16 + 2] = lengths[i];
        seal_table(tables.dmar, "DMAR", sizeof tables.dmar);
        assert_int_equal(acpi_read(&a, at(tables.rsdp)), 0);
        assert_in_range(a.remappers, 1, 2);
        assert_int_equal(a.remapper[0], 0xfed90000);
    }
}

/* ---- APIC ---- */

static struct {
    uint64_t base;
    uint32_t reg[0x400 / 4];
    uint32_t write_offset[32], writes;
    uint32_t msr[32], msrs;
    uint64_t value[32];
    int stuck;
} model;

static uint32_t model_read(void *self, uint32_t offset)
{
    (void)self;
    return offset == 0x300 && model.stuck ? 1 << 12 : model.reg[offset / 4];
}

static void model_write(void *self, uint32_t offset, uint32_t v)
{
    (void)self;
    assert_true(model.writes < 32);
    model.reg[offset / 4] = v;
    model.write_offset[model.writes++] = offset;
}

static uint64_t model_read_msr(void *self, uint32_t msr)
{
    (void)self;
    return msr == MSR_APIC_BASE ? model.base : msr == 0x802 ? 0x12345 : 0;
}

static void model_write_msr(void *self, uint32_t msr, uint64_t v)
{
    (void)self;
    assert_true(model.msrs < 32);
    if (msr == MSR_APIC_BASE) model.base = v;
    model.msr[model.msrs] = msr;
    model.value[model.msrs++] = v;
}

static const struct apic_access access_model = {NULL, model_read, model_write, model_read_msr,
                                                model_write_msr};

static void xapic_sends_high_half_first(void **state)
{
    (void)state;
    struct apic a;
    memset(&model, 0, sizeof model);
    model.base = 0xfee00900;
    model.reg[0x20 / 4] = 0x07000000;
    assert_int_equal(apic_start(&a, &access_model), 0);
    assert_int_equal(apic_id(&a), 7);
    apic_enable(&a, 0x40, 0xff);
    assert_int_equal(model.reg[0xf0 / 4], 0x1ff);
    assert_int_equal(model.reg[0x320 / 4], 0x40);
    model.writes = 0;
    assert_int_equal(apic_send(&a, 3, APIC_STARTUP | 0x9f), 0);
    assert_int_equal(model.write_offset[0], 0x310);
    assert_int_equal(model.write_offset[1], 0x300);
    assert_int_equal(model.reg[0x310 / 4], 0x03000000);
    assert_int_equal(model.reg[0x300 / 4], 0x469f);
    model.stuck = 1;
    assert_int_equal(apic_send(&a, 3, APIC_INIT), -1); // ends
    assert_int_equal(model.msrs, 0);
    model.base = 0xfee00000;
    assert_int_equal(apic_start(&a, &access_model), -1);
}

static void x2apic_uses_msrs_only(void **state)
{
    (void)state;
    struct apic a;
    memset(&model, 0, sizeof model);
    model.base = 0xfee00d00;
    model.stuck = 1; // whoever looks at the old register is wrong
    assert_int_equal(apic_start(&a, &access_model), 0);
    assert_int_equal(apic_id(&a), 0x12345); // 32 bits, not shifted
    assert_int_equal(apic_send(&a, 300, APIC_STARTUP | 0x9f), 0);
    assert_int_equal(model.msr[0], 0x830);
    assert_int_equal(model.value[0], (uint64_t)300 << 32 | 0x469f);
    model.msrs = 0;
    model.base = 0xfee00800; // another core, fresh from INIT
    apic_enable(&a, 0x40, 0xff);
    assert_int_equal(model.base & 0xc00, 0xc00);
    assert_int_equal(model.msr[0], MSR_APIC_BASE);
    assert_int_equal(model.msr[1], 0x80f);
    apic_end_of_interrupt(&a);
    assert_int_equal(model.msr[model.msrs - 1], 0x80b);
    assert_int_equal(apic_send_others(&a, APIC_FIXED | 0x41), 0);
    assert_int_equal(model.value[model.msrs - 1], 0xc4041);
    assert_int_equal(model.writes, 0);
}

/* ---- clock ---- */

static uint64_t model_ticks; // TSC of the model: every look costs 1000 ticks of 2 GHz

static uint64_t model_tsc(void)
{
    return model_ticks += 1000;
}

struct counter_model {
    uint64_t hz, mask;
    int dead;
};

static uint64_t model_counter(void *self)
{
    const struct counter_model *c = self;
    model_ticks += 1000;
    if (c->dead) model_ticks += 100000000; // its patience shall not take this test's time
    return c->dead ? 5 : (uint64_t)((unsigned __int128)model_ticks * c->hz / 2000000000u) & c->mask;
}

static void calibrates_and_checks(void **state)
{
    (void)state;
    struct counter_model good = {3579545, 0xffffff, 0}, other = {14318180, 0xffffffff, 0},
                         pit = {1193182, 0xffff, 0}, liar = {1193182 * 11 / 10, 0xffff, 0},
                         dead = {3579545, 0xffffff, 1};
    struct clock_counter c_good = {"good", &good, model_counter, 0xffffff, 3579545},
                         c_other = {"other", &other, model_counter, 0xffffffff, 14318180},
                         c_pit = {"pit", &pit, model_counter, 0xffff, 1193182},
                         c_liar = {"liar", &liar, model_counter, 0xffff, 1193182},
                         c_dead = {"dead", &dead, model_counter, 0xffffff, 3579545};
    const struct {
        struct clock_counter c[3];
        const char *by, *checked_by;
        int agree;
    } cases[] = {
        {{c_good, c_other, c_pit}, "good", "other", 1}, {{c_dead, c_other, c_pit}, "other", "pit", 1},
        {{c_good, c_liar, c_pit}, "good", "liar", 0},   {{c_dead, c_dead, c_pit}, "pit", NULL, 0},
        {{c_dead, c_dead, c_dead}, NULL, NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct clock_result r = clock_calibrate(cases[i].c, 3, model_tsc);
        assert_true(r.by == cases[i].by && r.checked_by == cases[i].checked_by && r.agree == cases[i].agree);
        if (r.by) assert_in_range(r.tsc_hz, 1990000000, 2010000000);
    }
}

/* ---- options and print ---- */

static void reads_options(void **state)
{
    (void)state;
    struct options o;
    options_read(&o, " key=000102030405060708090a0b0c0d0eFf address=10.21.1.5\tname=duck-7 spin_us=500 "
                     "fault_after_s=9\r\n");
    assert_true(o.has_key);
    assert_int_equal(o.key[1], 1);
    assert_int_equal(o.key[15], 0xff);
    assert_int_equal(o.address, 0x0a150105);
    assert_string_equal(o.name, "duck-7");
    assert_int_equal(o.spin_us, 500);
    assert_int_equal(o.fault_after_s, 9);
    assert_string_equal(o.bad, "");
    static const char *const bad[] = {"key=0001",
                                      "key=zz0102030405060708090a0b0c0d0eff",
                                      "address=10.21.1",
                                      "address=10.21.1.256",
                                      "address=1.2.3.4x",
                                      "name=",
                                      "spin_us=x",
                                      "initrd=foo",
                                      "address=99999999999999999999.1.1.1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options_read(&o, bad[i]);
        assert_string_equal(o.bad, bad[i]);
        assert_false(o.has_key || o.address || o.name[0]);
    }
    options_read(&o, "");
    assert_string_equal(o.bad, "");
}

/* A file that is none, cut off or damaged: no crash, and no key that was not there. */
static void survives_garbage_for_options(void **state)
{
    static const char *const piece[] = {
        "key=", "address=", "name=",        "0", "255",      "256.",        ".", "00112233445566778899", " ",
        "\n",   "\r\n",     "\xef\xbb\xbf", "=", "spin_us=", "99999999999", "x"};
    (void)state;
    struct options o;
    uint32_t random = 1, keys = 0;
    for (int i = 0; i < 20000; i++) {
        char text[1024] = "";
        size_t n = 0;
        for (random = random * 1664525 + 1013904223; n < sizeof text - 24 && random >> 28; n = strlen(text)) {
            random = random * 1664525 + 1013904223;
            if (random >> 20 & 1)
                strcat(text, piece[random >> 24 & 15]);
            else
                text[n] = (char)(random >> 12), text[n + 1] = 0;
        }
        options_read(&o, text);
        keys += o.has_key != 0;
        assert_true(strlen(o.name) < sizeof o.name && strlen(o.bad) < sizeof o.bad);
        for (const char *c = o.bad; *c; c++) assert_in_range(*c, '!', '~');
    }
    assert_int_equal(keys, 0);
    char full[1024];
    memset(full, '=', sizeof full - 1); // one word as long as all there is room for
    full[sizeof full - 1] = 0;
    options_read(&o, full);
    assert_int_equal(strlen(o.bad), sizeof o.bad - 1);
}

static void prints_like_libc(void **state)
{
    (void)state;
    char a[64], b[64];
#define SAME(...)                                                                                            \
    do {                                                                                                     \
        int n = snprintf(a, sizeof a, __VA_ARGS__);                                                          \
        assert_int_equal(print_to(b, sizeof b, __VA_ARGS__), n);                                             \
        assert_string_equal(a, b);                                                                           \
    } while (0)
    SAME("%s %c %d %u %x %%", "text", 'c', -5, 4000000000u, 0xdeadbeefu);
    SAME("%016lx|%8lu|%08d|%5d|%ld", 0x123456789abcdefUL, 42UL, -42, -42, INT64_MIN);
    SAME("%02x%02x", 1, 255);
    char small[6];
    assert_int_equal(print_to(small, sizeof small, "%s", "longer than that"), 5);
    assert_string_equal(small, "longe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_acpi),
        cmocka_unit_test(refuses_damaged_acpi),
        cmocka_unit_test(xapic_sends_high_half_first),
        cmocka_unit_test(x2apic_uses_msrs_only),
        cmocka_unit_test(calibrates_and_checks),
        cmocka_unit_test(reads_options),
        cmocka_unit_test(survives_garbage_for_options),
        cmocka_unit_test(prints_like_libc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
