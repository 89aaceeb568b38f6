/* clock.c: calibrating the TSC. */
#include "duck/uefi/clock.h"

#include "duck/uefi/cpu.h"

enum { WINDOW_DIVISOR = 50 /* 20 ms */, READS = 8, ATTEMPTS = 4 };
#define PATIENCE_TICKS ((uint64_t)4000000000u) // TSC ticks, a second or so: a counter that stands still

struct moment {
    uint64_t tsc, counter;
};

/* The closest of a few reads: a pause of the (virtual) CPU between the two must not count. */
static struct moment look(const struct clock_counter *c, uint64_t (*tsc)(void))
{
    struct moment best = {0, 0};
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < READS; i++) {
        uint64_t before = tsc(), value = c->read(c->self), after = tsc();
        if (after - before >= shortest) continue;
        shortest = after - before;
        best = (struct moment){before + shortest / 2, value};
    }
    return best;
}

/* 0: it does not count. */
static uint64_t measure(const struct clock_counter *c, uint64_t (*tsc)(void))
{
    struct moment start = look(c, tsc);
    uint64_t window = c->hz / WINDOW_DIVISOR;
    while (((c->read(c->self) - start.counter) & c->mask) < window)
        if (tsc() - start.tsc > PATIENCE_TICKS) return 0;
    struct moment end = look(c, tsc);
    uint64_t ticks = (end.counter - start.counter) & c->mask;
    return ticks ? mul_div(end.tsc - start.tsc, c->hz, ticks) : 0;
}

static int close_to(uint64_t a, uint64_t b)
{
    uint64_t difference = a > b ? a - b : b - a;
    return difference <= a / 100;
}

struct clock_result clock_calibrate(const struct clock_counter *c, uint32_t count, uint64_t (*tsc)(void))
{
    struct clock_result r = {0};
    for (int attempt = 0; attempt < ATTEMPTS && !r.agree; attempt++) {
        r = (struct clock_result){0};
        for (uint32_t i = 0; i < count && !r.checked_by; i++) {
            uint64_t hz = measure(&c[i], tsc);
            if (hz && !r.by) {
                r.tsc_hz = hz;
                r.by = c[i].name;
            } else if (hz) {
                r.checked_by = c[i].name;
                r.agree = close_to(r.tsc_hz, hz);
            }
        }
        if (!r.checked_by) break;
    }
    return r;
}
