/* cores.c: bringing cores up, and their sleep. */
#include "duck/uefi/cores.h"

#include <string.h>

#include "duck/uefi/clock.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/trampoline.h"

struct core *cores;
uint32_t cores_count;
static struct apic apic;
static uint64_t timer_ticks_per_ms;
static _Atomic uint32_t sleepers;

/* ---- the machine's APIC ---- */

#define APIC_ADDRESS ((uintptr_t)0xfee00000)

static uint32_t apic_read(void *self, uint32_t offset)
{
    (void)self;
    return *(volatile uint32_t *)(APIC_ADDRESS + offset);
}

static void apic_write(void *self, uint32_t offset, uint32_t value)
{
    (void)self;
    *(volatile uint32_t *)(APIC_ADDRESS + offset) = value;
}

static uint64_t apic_read_msr(void *self, uint32_t msr)
{
    (void)self;
    return read_msr(msr);
}

static void apic_write_msr(void *self, uint32_t msr, uint64_t value)
{
    (void)self;
    write_msr(msr, value);
}

static void mask_old_interrupts(void)
{
    enum { PIC1_MASK = 0x21, PIC2_MASK = 0xa1 }; // 8259A
    out8(PIC1_MASK, 0xff);
    out8(PIC2_MASK, 0xff);
}

/* ---- one core ---- */

/* CR4, XCR0 and MXCSR as vector code needs them. NULL, or the feature the CPU does not have. */
static const char *enable_vectors(void)
{
    enum { XSAVE = 1 << 26, AVX = 1 << 28 }; // leaf 1, ECX
    uint64_t cr0, cr4;
    uint32_t mxcsr = MXCSR_DEFAULT, features = cpuid(1, 0).c;
    if (!(features & XSAVE)) return "XSAVE";
    if (!(features & AVX)) return "AVX";
    __asm__ volatile("mov %%cr0, %0" : "=r"(cr0));
    // WP off: read-only pages are so for the program alone, the firmware writes the weights.
    cr0 = (cr0 & ~(uint64_t)(CR0_EM | CR0_TS | CR0_WP)) | CR0_MP | CR0_NE;
    __asm__ volatile("mov %0, %%cr0" : : "r"(cr0) : "memory");
    __asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
    cr4 |= CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_OSXSAVE;
    __asm__ volatile("mov %0, %%cr4" : : "r"(cr4) : "memory");
    __asm__ volatile("xsetbv" : : "c"(0), "a"(XCR0_X87_SSE_AVX), "d"(0));
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
    return NULL;
}

static void become(struct core *c)
{
    trap_load(&c->trap);
    write_msr(MSR_GS_BASE, (uint64_t)(uintptr_t)c);
    c->tss_stack = c->trap.tss + TRAP_RSP0;
    user_enable();
    apic_enable(&apic, VECTOR_TIMER, VECTOR_SPURIOUS);
}

uint32_t core_index(void)
{
    uint32_t index;
    __asm__ volatile("movl %%gs:0, %0" : "=r"(index));
    return index;
}

struct core *core_self(void)
{
    return &cores[core_index()];
}

int core_owns_stack(uint64_t address)
{
    for (uint32_t i = 0; i < cores_count; i++) {
        uint64_t stack = (uint64_t)(uintptr_t)cores[i].stack;
        if (address >= stack && address + 16 <= stack + BOOT_STACK) return 1;
    }
    return 0;
}

const char *cores_start(struct boot *boot)
{
    static const struct apic_access machine = {NULL, apic_read, apic_write, apic_read_msr, apic_write_msr};
    uint32_t most = boot->acpi.cores ? boot->acpi.cores : 1;
    cores = boot_pool_take(&boot->pool, most * sizeof *cores);
    if (!cores) return "memory for cores";
    mask_old_interrupts();
    if (apic_start(&apic, &machine)) return "the local APIC, which is switched off";
    cores[0].stack = boot->pool.memory; // the pool's first piece
    cores[0].apic_id = apic_id(&apic);
    cores_count = 1;
    become(&cores[0]);
    return enable_vectors();
}

/* ---- the others ---- */

static void ap_main(struct core *c)
{
    become(c);
    if (enable_vectors()) cpu_stop(); // core 0 has it, this one has not: it does not count
    c->apic_id = apic_id(&apic);
    atomic_store(&c->is_up, 1);
    c->work(c);
    cpu_stop();
}

static struct ap_block *block_of(uint64_t page)
{
    return (struct ap_block *)(void *)((uint8_t *)(uintptr_t)page + AP_BLOCK);
}

/* The trampoline's page, as it is for every core. Nobody may come yet. */
static void prepare_page(uint64_t page, uint64_t cr3)
{
    struct ap_block *b = block_of(page);
    memcpy((uint8_t *)(uintptr_t)page, ap_trampoline, (size_t)(ap_trampoline_end - ap_trampoline));
    memset(b, 0, sizeof *b);
    atomic_store(&b->taken, 1);
    b->cr3 = cr3;
    b->entry = (uint64_t)(uintptr_t)ap_main;
    b->jump32 = (uint32_t)(page + (uint64_t)(ap_trampoline_32 - ap_trampoline));
    b->selector32 = AP_CODE32;
    b->jump64 = (uint32_t)(page + (uint64_t)(ap_trampoline_64 - ap_trampoline));
    b->selector64 = AP_CODE64;
    b->gdt[AP_CODE32 / 8] = 0x00cf9b000000ffff;
    b->gdt[AP_DATA / 8] = 0x00cf93000000ffff;
    b->gdt[AP_CODE64 / 8] = 0x00af9b000000ffff;
    uint32_t gdt = (uint32_t)page + AP_GDT;
    b->gdt_limit = sizeof b->gdt - 1;
    memcpy(b->gdt_base, &gdt, sizeof gdt);
}

static int wait_until_up(struct core *c, uint64_t ns)
{
    uint64_t until = clock_now() + ns;
    while (!atomic_load(&c->is_up) && clock_now() < until) cpu_pause();
    return (int)atomic_load(&c->is_up);
}

/* SDM vol. 3, 9.4.4: INIT, SIPI, and once more after 200 us. */
static int ask_one(uint64_t page, uint32_t id, struct core *c, uint64_t patience)
{
    enum { INIT_NS = 10000000, SECOND_NS = 200000 };
    uint32_t startup = APIC_STARTUP | (uint32_t)(page >> 12);
    if (apic_send(&apic, id, APIC_INIT)) return 0;
    clock_delay(INIT_NS);
    if (apic_send(&apic, id, startup)) return 0;
    if (wait_until_up(c, SECOND_NS)) return 1;
    if (apic_send(&apic, id, startup)) return 0;
    return wait_until_up(c, patience);
}

/* Whoever takes the stack becomes core `c`: the one that is asked, or one that was asked before and is late.
 * 1: it is up. 0: nobody came, and nobody will find this stack later. -1: somebody took it and hangs. */
static int start_one(uint64_t page, uint32_t id, struct core *c, uint64_t patience)
{
    struct ap_block *b = block_of(page);
    b->stack = (uint64_t)(uintptr_t)(c->stack + BOOT_STACK);
    b->argument = (uint64_t)(uintptr_t)c;
    atomic_store(&b->taken, 0);
    if (ask_one(page, id, c, patience)) return 1;
    if (!atomic_exchange(&b->taken, 1)) return 0;
    return wait_until_up(c, patience) ? 1 : -1;
}

static int is_running(uint32_t id)
{
    for (uint32_t i = 0; i < cores_count; i++)
        if (cores[i].apic_id == id) return 1;
    return 0;
}

void cores_start_others(struct boot *boot, uint64_t cr3, void (*work)(struct core *self))
{
    static const uint64_t patience_ns[] = {200000000, 2000000000}; // the second time for those that were late
    uint8_t *stack = NULL;
    prepare_page(boot->low_page, cr3);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < boot->acpi.cores; i++) {
            struct core *c = &cores[cores_count];
            if (is_running(boot->acpi.core[i])) continue;
            if (!stack) stack = boot_pool_take(&boot->pool, BOOT_STACK);
            if (!stack) return;
            *c = (struct core){.index = cores_count, .stack = stack, .work = work};
            int is_up = start_one(boot->low_page, boot->acpi.core[i], c, patience_ns[round]);
            if (is_up > 0) {
                cores_count++;
                stack = NULL;
            } else {
                say("core with APIC id %u did not start%s", boot->acpi.core[i], round ? ": left out" : "");
            }
            if (is_up < 0) return; // its memory is lost, and further cores need the place
        }
}

/* ---- sleep ---- */

void cores_end_of_interrupt(void)
{
    apic_end_of_interrupt(&apic);
}

void cores_calibrate_timer(void)
{
    enum { WINDOW_NS = 5000000 };
    apic_timer(&apic, UINT32_MAX);
    uint64_t start = clock_now();
    clock_delay(WINDOW_NS);
    uint64_t ticks = UINT32_MAX - apic_timer_left(&apic), ns = clock_now() - start;
    apic_timer(&apic, 0);
    timer_ticks_per_ms = ticks * 1000000 / ns;
    if (!timer_ticks_per_ms) timer_ticks_per_ms = 1;
}

void cores_sleep(const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    enum { LONGEST_NS = 1000000000 };
    uint64_t ticks = (ns < LONGEST_NS ? ns : LONGEST_NS) / 1000 * timer_ticks_per_ms / 1000;
    if (!ticks) return;             // not worth it
    atomic_fetch_add(&sleepers, 1); // before the look at the word: whoever changes it later sees us
    if (!word || atomic_load(word) == seen) {
        apic_timer(&apic, ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks);
        cpu_sleep();
        apic_timer(&apic, 0);
        core_self()->user.ticks = 0;
    }
    atomic_fetch_sub(&sleepers, 1);
}

void cores_wake_others(void)
{
    atomic_thread_fence(memory_order_seq_cst); // the word's change before the look at the sleepers
    if (atomic_load(&sleepers)) apic_send_others(&apic, APIC_FIXED | VECTOR_WAKE);
}

void cores_interrupt_others(void)
{
    apic_send_others(&apic, APIC_FIXED | VECTOR_WAKE);
}

void cores_tick(uint64_t ns)
{
    apic_timer(&apic, (uint32_t)(ns / 1000 * timer_ticks_per_ms / 1000) + 1);
}
