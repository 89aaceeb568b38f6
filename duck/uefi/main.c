/* main.c: from bare machine to duck. Reads as the list of what happens, in order. */
#include <string.h>

#include "duck/dhcp.h"
#include "duck/duck.h"
#include "duck/kat.h"
#include "duck/net.h"
#include "duck/uefi/boot.h"
#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cores.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/memory_test.h"
#include "duck/uefi/options.h"
#include "duck/uefi/paging.h"
#include "duck/uefi/pci.h"
#include "duck/uefi/platform_uefi.h"
#include "duck/uefi/print.h"
#include "duck/uefi/program_uefi.h"
#include "duck/uefi/remap.h"
#include "duck/uefi/speed.h"
#include "duck/uefi/trap.h"
#include "duck/uefi/watchdog.h"

/* Where the arena lies: all free memory, one piece after the other, whatever holes there are between. */
#define ARENA_ADDRESS ((uint64_t)0x400000000000)
#define KAT_SEED 1u
#define REAL_FROM ((uint64_t)1 << 30) // smaller machines are tests, whose speed says nothing

static struct paging paging;
static struct options options;
static uint8_t *arena;
static uint64_t arena_bytes, arena_check_ns, arena_bad; // bad: words that did not keep a pattern
static _Atomic uint32_t all_up;                         // cores_count is final
static _Atomic uint32_t never;                          // a bare-metal duck does not stop
static struct duck *_Atomic the_duck;

/* What cannot go on: says why, and tries again from power-on after a while. */
static _Noreturn void give_up(const char *what)
{
    enum { WAIT_NS = 1000000000 };
    say("*** cannot go on: %s; restarting in 10 s", what);
    for (int i = 0; i < 10; i++) clock_delay(WAIT_NS);
    acpi_restart();
}

/* The screen may lie above 4 GiB, where nothing but RAM is mapped so far. */
static void show_screen(const struct boot_screen *s)
{
    if (!s->width) return;
    uint64_t start = s->address & ~(uint64_t)4095, end = (s->address + s->bytes + 4095) & ~(uint64_t)4095;
    if (paging_map(&paging, start, start, end - start, PAGE_WRITE | PAGE_NO_EXECUTE | PAGE_UNCACHED)) return;
    console_show(s);
    say("duck %s, build %016lx, screen %u x %u", build_version, (unsigned long)build_hash, s->width,
        s->height);
}

static void map_memory(const struct boot *b, void *tables)
{
    enum { EXTENDED = 0x80000001, GIANT_PAGES = 1 << 26, MOST_PIECES = 128 };
    static struct memory_piece piece[MOST_PIECES];
    if (paging_start(&paging, tables, BOOT_TABLES, (cpuid(EXTENDED, 0).d & GIANT_PAGES) != 0) ||
        paging_identity(&paging, &b->map, b->image, b->image_end))
        give_up("no room for page tables");
    paging.has_giant = 0; // the program's rights end at multiples of 2 MiB
    uint32_t pieces = memory_map_arena(&b->map, piece, MOST_PIECES);
    for (uint32_t i = 0; i < pieces; i++) {
        if (paging_map(&paging, ARENA_ADDRESS + arena_bytes, piece[i].start, piece[i].bytes,
                       PAGE_WRITE | PAGE_NO_EXECUTE))
            give_up("no room for page tables of the arena");
        arena_bytes += piece[i].bytes;
    }
    write_msr(MSR_EFER, read_msr(MSR_EFER) | EFER_NXE);
    __asm__ volatile("mov %0, %%cr3" : : "r"(paging.root) : "memory");
    arena = (uint8_t *)ARENA_ADDRESS;
    show_screen(&b->screen);
    say("memory: %lu MB, arena %lu MB in %u pieces, page tables %lu KB", memory_map_ram(&b->map) >> 20,
        arena_bytes >> 20, pieces, paging.used >> 10);
}

static uint64_t start_clock(const struct acpi *a)
{
    struct clock_result c = clock_start(a);
    if (!c.tsc_hz) {
        say("*** no clock counts: restarting");
        acpi_restart();
    }
    say("clock: TSC %lu kHz by %s, %s%s", c.tsc_hz / 1000, c.by,
        c.checked_by ? (c.agree ? "agrees with " : "DISAGREES with ") : "no second clock",
        c.checked_by ? c.checked_by : "");
    return c.tsc_hz;
}

static uint32_t read_register(void *self, uint64_t address)
{
    (void)self;
    return *(volatile uint32_t *)(uintptr_t)address;
}

static void write_register(void *self, uint64_t address, uint32_t value)
{
    (void)self;
    *(volatile uint32_t *)(uintptr_t)address = value;
}

static uint64_t now(void *self)
{
    (void)self;
    return clock_now();
}

static const char *remapping_is(uint32_t was)
{
    if (was & REMAP_DEAD) return "does not answer";
    if (was & REMAP_STAYS) return "WAS ON AND STAYS ON: no VT-d in the BIOS helps";
    return was ? "was on, is off now" : "is off";
}

/* Goes on where it cannot be ended: the NIC may be behind another unit. */
static void end_remapping(const struct acpi *a)
{
    static const struct remap_access machine = {NULL, read_register, write_register, now};
    for (uint32_t i = 0; i < a->remappers; i++) {
        uint64_t at = a->remapper[i];
        if (at % 4096 || paging_map(&paging, at, at, 4096, PAGE_WRITE | PAGE_NO_EXECUTE | PAGE_UNCACHED)) {
            say("DMA remapping: the unit at 0x%lx cannot be mapped", at);
            continue;
        }
        uint32_t was = remap_end(&machine, at);
        say("DMA remapping: the unit at 0x%lx %s%s%s", at, remapping_is(was),
            was & REMAP_TRANSLATED ? " (translation)" : "",
            was & REMAP_PROTECTED ? " (protected memory)" : "");
    }
}

/* All cores: waits until everyone is here for the n-th time. Nobody comes without having been counted, and
 * a core that hangs inside would have passed a self-test before. */
static void meet(uint32_t n)
{
    static _Atomic uint32_t arrived;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < n * cores_count) cpu_pause();
}

static void fill(struct core *c, uint8_t *at, uint64_t bytes)
{
    (void)c;
    memory_test_fill(at, bytes);
}

static void check(struct core *c, uint8_t *at, uint64_t bytes)
{
    c->bad += memory_test_check(at, bytes);
}

static void clear(struct core *c, uint8_t *at, uint64_t bytes)
{
    (void)c;
    memset(at, 0, bytes);
}

/* All of a core's share takes seconds: core 0 feeds the watchdog in between. */
static void in_pieces(struct core *c, uint8_t *at, uint64_t bytes,
                      void (*work)(struct core *c, uint8_t *at, uint64_t bytes))
{
    enum { PIECE = 64 << 20 };
    for (uint64_t done = 0; done < bytes; done += PIECE) {
        if (c->index == 0) watchdog_feed();
        work(c, at + done, bytes - done < PIECE ? bytes - done : PIECE);
    }
}

static uint32_t measure(struct speed_look from)
{
    enum { SHORT_DIVISOR = 200 }; // of a second: says nothing
    struct speed_look now = speed_look(&msr_machine);
    uint64_t mperf = now.mperf - from.mperf;
    if (mperf < clock_tsc(1000000000 / SHORT_DIVISOR)) return 0;
    return speed_mhz(now.aperf - from.aperf, mperf, clock_tsc(1000000000));
}

/* Every core shows that its vector units compute what they must and that its share of the arena keeps what
 * it is given, and clears that. */
static void prepare(struct core *c)
{
    c->speed = speed_raise(&msr_machine);
    uint64_t share = arena_bytes / cores_count / 64 * 64, from = c->index * share;
    if (c->index + 1 == cores_count) share = arena_bytes - from;
    uint8_t *memory = arena + c->index * KAT_MEMORY;
    c->kat = kat_hash(fp9_select(NULL), FP9_FP9, memory, KAT_SEED);
    c->kat_e4m3 = kat_hash(fp9_select(NULL), FP9_E4M3, memory, KAT_SEED);
    meet(1);
    in_pieces(c, arena + from, share, fill);
    meet(2);
    uint64_t begun = clock_now();
    struct speed_look look = speed_look(&msr_machine);
    in_pieces(c, arena + from, share, check);
    c->mhz = measure(look);
    meet(3);
    if (c->index == 0) arena_check_ns = clock_now() - begun;
    in_pieces(c, arena + from, share, clear);
    meet(4);
}

static void work(struct core *c)
{
    while (!atomic_load(&all_up)) cpu_pause();
    prepare(c);
    struct duck *d;
    while (!(d = atomic_load(&the_duck))) cpu_pause();
    duck_worker(d, &never);
    cpu_stop();
}

static uint64_t read_speed(void) // bytes per second
{
    return arena_check_ns ? mul_div(arena_bytes, 1000000000, arena_check_ns) : 0;
}

static uint32_t slowest_mhz(void)
{
    uint32_t mhz = cores[0].mhz;
    for (uint32_t i = 1; i < cores_count; i++)
        if (cores[i].mhz < mhz) mhz = cores[i].mhz;
    return mhz;
}

/* In a virtual machine there is nothing to say. */
static void show_speed(void)
{
    struct speed s = speed_stated(&msr_machine, cores_count);
    uint32_t how = cores[0].speed;
    if (!speed_is_known(&msr_machine)) return;
    say("speed: %u MHz, all cores %u MHz as stated, %u MHz as measured%s", s.base_mhz, s.turbo_mhz,
        slowest_mhz(),
        s.turbo_off         ? "; TURBO IS OFF"
        : how & SPEED_TURBO ? "; turbo was off"
                            : "");
    say("speed: asked for by %s%s",
        how & SPEED_HARDWARE ? "the hardware's own control"
        : how & SPEED_RATIO  ? "its ratio"
                             : "nothing, the CPU takes no wish",
        how & SPEED_BIAS ? " and bias" : "");
}

static void show_cores(const struct boot *b)
{
    say("cores: %u of %u up", cores_count, b->acpi.cores);
    for (uint32_t i = 0; i < cores_count; i++) {
        say("core %u: APIC id %u, known answer %016lx", i, cores[i].apic_id, cores[i].kat);
        if (cores[i].kat != cores[0].kat || cores[i].kat_e4m3 != cores[0].kat)
            give_up("cores compute different results");
        arena_bad += cores[i].bad;
    }
    say("memory: %lu MB/s read by all cores, %lu bad words", read_speed() / 1000000, arena_bad);
    show_speed();
}

static void open_nic(struct nic *nic, struct boot *b)
{
    const struct nic_driver *driver = pci_open_nic(nic, b, &paging);
    if (!driver) give_up("no NIC");
    say("NIC: %s, %02x:%02x:%02x:%02x:%02x:%02x, %u Mb/s", driver->name, nic->mac[0], nic->mac[1],
        nic->mac[2], nic->mac[3], nic->mac[4], nic->mac[5], nic->link_mbps(nic->self));
}

static void read_options(const struct boot *b)
{
    options_read(&options, b->options);
    if (options.bad[0]) say("option ignored: %s", options.bad);
    if (!options.has_key) give_up("no flock key in the boot options");
}

static int is_after(uint32_t seconds)
{
    return seconds && clock_now() > (uint64_t)seconds * 1000000000;
}

/* Core 0 looks for frames: that it does is what the watchdog waits for. */
static uint32_t watched_recv(void *self, struct datagram *out, uint32_t max)
{
    struct net *net = self;
    watchdog_feed();
    if (is_after(options.hang_after_s)) cpu_stop();
    if (is_after(options.fault_after_s)) __asm__ volatile("ud2");
    return net->link.recv(net->link.self, out, max);
}

static uint32_t watched_send(void *self, struct datagram *d, uint32_t count)
{
    struct net *net = self;
    return net->link.send(net->link.self, d, count);
}

static void watched_state(void *self, struct link_state *out)
{
    struct net *net = self;
    net->link.state(net->link.self, out);
}

/* Frames in, results out, for ever. */
static _Noreturn void be_a_duck(struct boot *b, uint64_t tsc_hz)
{
    static struct platform platform;
    static struct nic nic;
    static struct dhcp dhcp;
    static struct net net;
    open_nic(&nic, b);
    platform_uefi_start(&platform, &options, tsc_hz);
    platform.program = program_uefi_start(b, &paging);
    if (!platform.program) give_up("no memory for the judge's program");
    platform.cores = cores_count;
    platform.memory = arena;
    platform.memory_bytes = arena_bytes;
    platform.memory_total = memory_map_ram(&b->map);
    if (arena_bytes >= REAL_FROM) platform.read_bytes_per_second = read_speed();
    if (options.name[0])
        memcpy(platform.name, options.name, sizeof platform.name);
    else
        print_to(platform.name, sizeof platform.name, "duck-%02x%02x%02x", nic.mac[3], nic.mac[4],
                 nic.mac[5]);
    net_init(&net, options.address ? &nic : &dhcp.nic, options.address, WIRE_DUCK_PORT);
    if (options.address)
        say("address: %u.%u.%u.%u by the boot options", options.address >> 24, options.address >> 16 & 255,
            options.address >> 8 & 255, options.address & 255);
    else
        dhcp_start(&dhcp, &nic, &platform, &net.address);
    static const struct link link = {&net, watched_recv, watched_send, watched_state};
    struct duck_options o = {.platform = &platform,
                             .link = &link,
                             .flock_key = siphash_key(options.key),
                             .kernels = fp9_select(NULL),
                             .needs_program = 1};
    struct duck *d = duck_start(&o);
    if (!d) give_up("too little memory for a duck");
    atomic_store(&the_duck, d);
    platform_uefi_started(arena_bytes, arena_bad, slowest_mhz());
    say("ready: %s, %u ms after the clock started", platform.name, (unsigned)(clock_now() / 1000000));
    duck_run(d, &never);
    give_up("the duck stopped");
}

_Noreturn void kernel_main(struct boot *b)
{
    void *tables = boot_pool_take(&b->pool, BOOT_TABLES);
    trap_start(b->image, b->image_end);
    const char *missing = cores_start(b);
    acpi_use(&b->acpi);
    if (missing) say("*** missing: %s; restarting", missing), acpi_restart();
    map_memory(b, tables);
    uint64_t tsc_hz = start_clock(&b->acpi);
    cores_calibrate_timer();
    if (pci_start(&b->acpi, &paging)) give_up("no PCI");
    end_remapping(&b->acpi);
    read_options(b);
    watchdog_start(options.watchdog_s);
    cores_start_others(b, (uint64_t)(uintptr_t)paging.root, work);
    if (fp9_cpu_missing()) give_up(fp9_cpu_missing());
    if (arena_bytes < cores_count * (uint64_t)KAT_MEMORY) give_up("too little memory");
    atomic_store(&all_up, 1);
    prepare(&cores[0]);
    watchdog_feed();
    show_cores(b);
    be_a_duck(b, tsc_hz);
}
