/* clock_machine.c: the clocks of a PC, and now(). */
#include "duck/uefi/clock.h"
#include "duck/uefi/cpu.h"

#define BILLION 1000000000u

static uint64_t tsc_hz, tsc_start, ns_per_tick; // 32.32 fixed point
static int sound;

static uint64_t read_pm_timer(void *self)
{
    const struct acpi_register *r = self;
    return r->space ? in32((uint16_t)r->address) : *(volatile uint32_t *)(uintptr_t)r->address;
}

/* IA-PC HPET specification 1.0a, 2.3. */
enum { HPET_PERIOD_FS = 4, HPET_CONFIG = 0x10, HPET_ENABLE = 1, HPET_COUNTER = 0xf0 };

static uint64_t read_hpet(void *self)
{
    return *(volatile uint32_t *)(void *)((uint8_t *)self + HPET_COUNTER);
}

/* 8254 data sheet: channel 2 counts down from 65536 with its gate (port 0x61, bit 0) open, speaker off. */
enum { PIT_CHANNEL2 = 0x42, PIT_COMMAND = 0x43, PIT_GATE = 0x61, PIT_LATCH2 = 0x80, PIT_MODE2 = 0xb4 };

static uint64_t read_pit(void *self)
{
    (void)self;
    out8(PIT_COMMAND, PIT_LATCH2);
    uint32_t low = in8(PIT_CHANNEL2);
    uint32_t high = in8(PIT_CHANNEL2);
    return 65536 - (high << 8 | low);
}

static void start_pit(void)
{
    out8(PIT_GATE, (uint8_t)((in8(PIT_GATE) & ~2) | 1));
    out8(PIT_COMMAND, PIT_MODE2);
    out8(PIT_CHANNEL2, 0);
    out8(PIT_CHANNEL2, 0);
}

static uint64_t tsc(void)
{
    return read_tsc();
}

struct clock_result clock_start(const struct acpi *a)
{
    enum { PM_TIMER_HZ = 3579545, PIT_HZ = 1193182 };
    struct acpi_register pm = a->pm_timer;
    struct clock_counter c[3];
    uint32_t n = 0;
    if (pm.address)
        c[n++] = (struct clock_counter){"ACPI PM timer", &pm, read_pm_timer,
                                        a->pm_timer_32_bits ? 0xffffffff : 0xffffff, PM_TIMER_HZ};
    volatile uint32_t *hpet = (volatile uint32_t *)(uintptr_t)a->hpet;
    uint32_t period = hpet ? hpet[HPET_PERIOD_FS / 4] : 0;
    if (period && period <= 100000000) {
        hpet[HPET_CONFIG / 4] |= HPET_ENABLE;
        c[n++] = (struct clock_counter){"HPET", (void *)(uintptr_t)a->hpet, read_hpet, 0xffffffff,
                                        (uint64_t)BILLION * 1000000 / period};
    }
    start_pit();
    c[n++] = (struct clock_counter){"PIT", 0, read_pit, 0xffff, PIT_HZ};
    struct clock_result r = clock_calibrate(c, n, tsc);
    tsc_hz = r.tsc_hz;
    sound = r.agree || !r.checked_by;
    tsc_start = read_tsc();
    if (tsc_hz) ns_per_tick = mul_div(BILLION, (uint64_t)1 << 32, tsc_hz);
    return r;
}

int clock_is_sound(void)
{
    return sound;
}

uint64_t clock_now(void)
{
    return (uint64_t)((unsigned __int128)(read_tsc() - tsc_start) * ns_per_tick >> 32);
}

uint64_t clock_tsc(uint64_t ns)
{
    return mul_div(ns, tsc_hz, BILLION);
}

void clock_delay(uint64_t ns)
{
    uint64_t start = read_tsc(), ticks = clock_tsc(ns);
    while (read_tsc() - start < ticks) cpu_pause();
}
