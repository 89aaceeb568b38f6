/* platform_uefi.c: clock, randomness, sleep and power of the bare machine. */
#include "duck/uefi/platform_uefi.h"

#include <string.h>

#include "duck/siphash.h"
#include "duck/uefi/acpi.h"
#include "duck/uefi/boot.h"
#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cores.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/health.h"
#include "duck/uefi/pci.h"
#include "duck/uefi/print.h"
#include "duck/uefi/watchdog.h"
#include "duck/wire.h"

static struct {
    struct health health;
    uint64_t tested, bad;
    uint32_t start_ms, loaded_mhz;
} the;

static uint64_t uefi_now(void *self)
{
    (void)self;
    return clock_now();
}

static int hardware_random(uint64_t *out)
{
    enum { TRIES = 10 }; // SDM vol. 1, 7.3.17.1
    for (int i = 0; i < TRIES; i++) {
        uint8_t ok;
        __asm__ volatile("rdrand %0; setc %1" : "=r"(*out), "=qm"(ok) : : "cc");
        if (ok) return 1;
    }
    return 0;
}

/* RDRAND where there is one; always mixed with the clock, which no other machine has read alike. */
static void uefi_random(void *self, uint8_t *out, size_t bytes)
{
    enum { RDRAND = 1 << 30 };
    static struct siphash_key key;
    (void)self;
    while (bytes) {
        uint64_t fresh[3] = {0, read_tsc(), key.k0};
        if (cpuid(1, 0).c & RDRAND) hardware_random(&fresh[0]);
        uint64_t value = siphash(&key, fresh, sizeof fresh);
        key.k0 ^= siphash(&key, &value, sizeof value);
        key.k1 += fresh[0] ^ fresh[1];
        size_t n = bytes < sizeof value ? bytes : sizeof value;
        memcpy(out, &value, n);
        out += n;
        bytes -= n;
    }
}

static void uefi_log(void *self, const char *line)
{
    (void)self;
    say("%s", line);
}

static void uefi_sleep(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    (void)self;
    cores_sleep(word, seen, ns);
    watchdog_look();
}

static void uefi_wake(void *self, const _Atomic uint32_t *word)
{
    (void)self;
    (void)word;
    cores_wake_others();
}

/* The NIC is polled: a frame waits for the next look, at most a millisecond, and only in a duck that had
 * nothing to do for spin_ns. */
static void uefi_idle(void *self, uint64_t ns)
{
    enum { LOOK_NS = 1000000 };
    (void)self;
    health_asleep(&the.health);
    cores_sleep(NULL, 0, ns < LOOK_NS ? ns : LOOK_NS);
    health_awake(&the.health);
}

static void uefi_power(void *self, int off)
{
    enum { LAST_FRAMES_NS = 100000000 }; // the acknowledgement has yet to leave the NIC
    (void)self;
    say(off ? "power off" : "restart");
    clock_delay(LAST_FRAMES_NS);
    if (off) {
        const char *why = pci_arm_wake();
        say("wake on LAN: %s", why ? why : "armed");
        acpi_power_off();
    }
    acpi_restart(); // also where power off does not work: better up than stuck
}

/* ---- health ---- */

static uint8_t read_cmos(void *self, uint8_t index)
{
    enum { INDEX = 0x70, DATA = 0x71 };
    (void)self;
    out8(INDEX, index);
    return in8(DATA);
}

static void uefi_health(void *self, struct wire_stats *out)
{
    (void)self;
    health_read(&the.health, out);
    if (!clock_is_sound()) out->care |= WIRE_CLOCKS_DIFFER;
    out->memory_tested = the.tested;
    out->memory_bad = the.bad;
    out->start_ms = the.start_ms;
    out->loaded_mhz = the.loaded_mhz;
}

void platform_uefi_started(uint64_t tested, uint64_t bad, uint32_t mhz)
{
    the.loaded_mhz = mhz;
    the.tested = tested;
    the.bad = bad;
    the.start_ms = (uint32_t)(clock_now() / 1000000);
}

static uint32_t features(void)
{
    enum { FMA = 1 << 12, F16C = 1 << 29, AVX2 = 1 << 5, AVX512F = 1 << 16 };
    uint32_t c = cpuid(1, 0).c, b = cpuid(0, 0).a >= 7 ? cpuid(7, 0).b : 0, f = 0;
    if (b & AVX2) f |= WIRE_AVX2;
    if (c & FMA) f |= WIRE_FMA;
    if (c & F16C) f |= WIRE_F16C;
    if (b & AVX512F) f |= WIRE_AVX512;
    return f;
}

/* The CPU's own words (SDM vol. 2, CPUID 80000002h ..). */
static void cpu_name(char out[48])
{
    enum { FIRST = 0x80000002, LEAVES = 3 };
    memset(out, 0, 48);
    if (cpuid(0x80000000, 0).a < FIRST + LEAVES - 1) return;
    for (uint32_t i = 0; i < LEAVES; i++) {
        struct cpuid r = cpuid(FIRST + i, 0);
        memcpy(out + 16 * i, &r, 16);
    }
    out[47] = 0;
}

void platform_uefi_start(struct platform *p, const struct options *o, uint64_t tsc_hz)
{
    enum { DEFAULT_SPIN_US = 10000 };
    static const struct health_access machine = {&msr_machine, read_cmos};
    *p = (struct platform){.now = uefi_now,
                           .random = uefi_random,
                           .log = uefi_log,
                           .sleep = uefi_sleep,
                           .wake = uefi_wake,
                           .idle = uefi_idle,
                           .power = uefi_power,
                           .health = uefi_health,
                           .spin_ns = (uint64_t)(o->spin_us ? o->spin_us : DEFAULT_SPIN_US) * 1000,
                           .tsc_hz = tsc_hz,
                           .firmware_hash = build_hash,
                           .features = features()};
    health_start(&the.health, &machine, tsc_hz, cores_count);
    uefi_random(NULL, (uint8_t *)&p->boot_id, sizeof p->boot_id);
    cpu_name(p->cpu);
    print_to(p->firmware, sizeof p->firmware, "duck %s", build_version);
}
