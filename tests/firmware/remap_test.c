/* remap_test.c: what firmware has left between devices and memory is switched off, against a model of a unit
 * that takes its time, and nothing else of the unit changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "duck/uefi/remap.h"

#define BASE ((uint64_t)0xfed90000)
#define TES (1u << 31)
#define ONCE 0x69000000u // bits of the command that act when they are written: never repeated from the status

static struct {
    uint32_t version, capability, status, protect;
    uint32_t slow;   // so many reads until a command has its effect; 0: never
    uint32_t reads;  // since the command
    uint32_t wanted; // status after it
    int protect_off;
    uint32_t commands;
    uint64_t now;
} model;

static uint32_t reads(void *self, uint64_t address)
{
    (void)self;
    int done = model.slow && ++model.reads >= model.slow;
    switch (address - BASE) {
    case 0x00:
        return model.version;
    case 0x08:
        return model.capability;
    case 0x1c:
        if (done && model.commands) model.status = model.wanted;
        return model.status;
    case 0x64:
        if (done && model.protect_off) model.protect &= ~1u;
        return model.protect;
    default:
        fail_msg("reads %#llx", (unsigned long long)address);
        return 0;
    }
}

static void writes(void *self, uint64_t address, uint32_t value)
{
    (void)self;
    model.reads = 0;
    switch (address - BASE) {
    case 0x18:
        assert_int_equal(value & ONCE, 0);
        assert_int_equal((value ^ model.status) & ~(TES | ONCE), 0); // one thing at a time: VT-d 11.4.4
        model.wanted = value;
        model.commands++;
        break;
    case 0x64:
        assert_true(model.capability & 3 << 5); // reserved otherwise
        model.protect = (model.protect & 1) | (value & TES);
        model.protect_off = !(value & TES);
        break;
    default:
        fail_msg("writes %#llx", (unsigned long long)address);
    }
}

static uint64_t now(void *self)
{
    (void)self;
    return model.now += 1000;
}

static const struct remap_access machine = {NULL, reads, writes, now};

static void make(uint32_t status, uint32_t protect, uint32_t slow)
{
    memset(&model, 0, sizeof model);
    model.version = 0x10;
    model.capability = 3 << 5;
    model.status = status;
    model.protect = protect;
    model.slow = slow;
}

static void what_is_off_is_left_alone(void **state)
{
    (void)state;
    make(1u << 26 | 1u << 25, 0, 1); // queued invalidation, interrupts remapped
    assert_int_equal(remap_end(&machine, BASE), 0);
    assert_int_equal(model.commands, 0);
    assert_int_equal(model.now, 0);
}

static void translation_ends_and_nothing_else(void **state)
{
    (void)state;
    make(TES | 1u << 30 | 1u << 26 | 1u << 25, 0, 50);
    assert_int_equal(remap_end(&machine, BASE), REMAP_TRANSLATED);
    assert_int_equal(model.commands, 1);
    assert_int_equal(model.status, 1u << 26 | 1u << 25);
}

static void protected_regions_end(void **state)
{
    (void)state;
    make(0, TES | 1, 50);
    assert_int_equal(remap_end(&machine, BASE), REMAP_PROTECTED);
    assert_int_equal(model.protect, 0);
    make(TES, TES | 1, 3);
    assert_int_equal(remap_end(&machine, BASE), REMAP_TRANSLATED | REMAP_PROTECTED);
    assert_int_equal(model.status, 0);
    make(0, TES | 1, 3);
    model.capability = 0; // what is read there means nothing
    assert_int_equal(remap_end(&machine, BASE), 0);
}

static void what_does_not_end_is_told_in_time(void **state)
{
    (void)state;
    make(TES, 0, 0);
    assert_int_equal(remap_end(&machine, BASE), REMAP_TRANSLATED | REMAP_STAYS);
    make(0, TES | 1, 0);
    assert_int_equal(remap_end(&machine, BASE), REMAP_PROTECTED | REMAP_STAYS);
    assert_in_range(model.now, 100000000, 101000000);
    make(UINT32_MAX, UINT32_MAX, 0);
    model.version = UINT32_MAX; // no device: a bus answers with ones
    assert_int_equal(remap_end(&machine, BASE), REMAP_DEAD);
    model.version = 0;
    assert_int_equal(remap_end(&machine, BASE), REMAP_DEAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_off_is_left_alone),
        cmocka_unit_test(translation_ends_and_nothing_else),
        cmocka_unit_test(protected_regions_end),
        cmocka_unit_test(what_does_not_end_is_told_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
