/* watchdog_test.c: the chipset's watchdog against a model of both kinds: it restarts the machine when nobody
 * feeds it and only then, and is left alone where it could not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "duck/uefi/tco.h"

enum kind { ICH9, CANNON_LAKE };
enum { PM_BASE = 0x600, TCO_BASE = 0x400, RCBA_AT = 0xfed1c000, TICK_MS = 600 };

static struct {
    enum kind kind;
    uint32_t config[8][64]; // of device 31
    uint16_t base, control, timer, left, status1, status2;
    uint32_t gcs;
    int strapped; // "no reboot" cannot be cleared
    uint32_t resets;
} model;

static uint32_t config(void *self, uint32_t device, uint32_t function, uint32_t offset)
{
    (void)self;
    assert_int_equal(device, 31);
    assert_int_equal(offset % 4, 0);
    return model.config[function][offset / 4];
}

static uint16_t in(void *self, uint16_t port)
{
    (void)self;
    switch (port - model.base) {
    case 0x00:
        return model.left;
    case 0x04:
        return model.status1;
    case 0x06:
        return model.status2;
    case 0x08:
        return model.control;
    case 0x12:
        return model.timer;
    default:
        fail_msg("reads port %#x", port);
        return 0;
    }
}

static void out(void *self, uint16_t port, uint16_t value)
{
    (void)self;
    switch (port - model.base) {
    case 0x00:
        model.left = model.timer & 0x3ff;
        break;
    case 0x04:
        model.status1 &= (uint16_t)~value;
        break;
    case 0x06:
        model.status2 &= (uint16_t)~value;
        break;
    case 0x08:
        if (model.strapped) value |= model.control & 1;
        model.control = value;
        break;
    case 0x12:
        assert_true(model.control & 1 << 11); // the datasheet: only while it is halted
        assert_true((value & 0x3ff) >= 4);
        model.timer = value;
        break;
    default:
        fail_msg("writes port %#x", port);
    }
}

static uint32_t read(void *self, uint64_t address)
{
    (void)self;
    assert_int_equal(address, RCBA_AT + 0x3410);
    return model.gcs;
}

static void write(void *self, uint64_t address, uint32_t value)
{
    (void)self;
    assert_int_equal(address, RCBA_AT + 0x3410);
    model.gcs = model.strapped ? value | 1 << 5 : value;
}

static const struct tco_access access = {NULL, config, in, out, read, write};

static void make(enum kind kind)
{
    memset(&model, 0, sizeof model);
    memset(model.config, 0xff, sizeof model.config);
    model.kind = kind;
    model.left = 4;
    model.timer = 0x8004; // a bit that is not ours
    if (kind == ICH9) {
        model.config[0][0] = 0x29188086;
        model.config[0][0x40 / 4] = PM_BASE | 1;
        model.config[0][0x44 / 4] = 0x80;
        model.config[0][0xf0 / 4] = RCBA_AT | 1;
        model.gcs = 1 << 5 | 1 << 2;
        model.base = PM_BASE + 0x60;
    } else {
        model.config[0][0] = 0x54818086;
        model.config[4][0] = 0x54a38086;
        model.config[4][2] = 0x0c050000;
        model.config[4][0x50 / 4] = TCO_BASE | 1;
        model.config[4][0x54 / 4] = 1 << 8;
        model.base = TCO_BASE;
        model.control = 1;
    }
}

static int may_restart(void)
{
    return model.kind == ICH9 ? !(model.gcs & 1 << 5) : !(model.control & 1);
}

static void pass(uint32_t ms) // a multiple of TICK_MS
{
    for (uint32_t t = 0; t < ms / TICK_MS && !(model.control & 1 << 11); t++) {
        if (model.left > 0) model.left--;
        if (model.left > 0) continue;
        if (model.status1 & 1 << 3) {
            model.status2 |= 1 << 1;
            model.resets += (uint32_t)may_restart();
        }
        model.status1 |= 1 << 3;
        model.left = model.timer & 0x3ff;
    }
}

static void restarts_unless_fed(void **state)
{
    (void)state;
    static const uint32_t seconds[] = {3, 30, 600, 1200};
    for (enum kind kind = ICH9; kind <= CANNON_LAKE; kind++)
        for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
            struct tco t;
            const char *why;
            uint32_t least = seconds[i] < 6 ? 6 : seconds[i]; // the shortest timer is 4 ticks, twice
            make(kind);
            assert_int_equal(tco_find(&t, &access, &why), 0);
            pass(600 * TICK_MS);
            model.status1 = 1 << 3; // from an earlier life
            model.control |= 1 << 11;
            tco_start(&t, seconds[i]);
            assert_int_equal(model.timer & 0x8000, 0x8000);
            model.resets = 0;
            for (int n = 0; n < 10; n++) { // fed in time, though late
                pass(least * 1000 * 2 / 3 / TICK_MS * TICK_MS);
                tco_feed(&t);
            }
            assert_int_equal(model.resets, 0);
            pass((least * 1000 - 3 * TICK_MS) / TICK_MS * TICK_MS);
            assert_int_equal(model.resets, 0);
            pass(4 * TICK_MS);
            assert_int_equal(model.resets, 1);
            assert_int_equal(model.gcs & 1 << 2, kind == ICH9 ? 1 << 2 : 0); // others' bits
        }
}

static void tells_why_it_cannot(void **state)
{
    (void)state;
    struct tco t;
    const char *why;
    for (enum kind kind = ICH9; kind <= CANNON_LAKE; kind++) {
        make(kind);
        model.strapped = 1;
        assert_int_equal(tco_find(&t, &access, &why), -1);
        assert_non_null(strstr(why, "never to restart"));
        make(kind);
        model.config[0][0x44 / 4] = model.config[4][0x54 / 4] = 0;
        assert_int_equal(tco_find(&t, &access, &why), -1);
        assert_non_null(strstr(why, "not switched on"));
    }
    make(CANNON_LAKE);
    model.config[4][0] = 0x12345678;
    assert_int_equal(tco_find(&t, &access, &why), -1);
    assert_string_equal(why, "no chipset that is known");
    make(CANNON_LAKE);
    memset(model.config, 0xff, sizeof model.config); // nothing on the bus
    assert_int_equal(tco_find(&t, &access, &why), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restarts_unless_fed),
        cmocka_unit_test(tells_why_it_cannot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
