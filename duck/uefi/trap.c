/* trap.c: GDT, IDT, TSS and what happens in an exception. Compiled without vector registers: it runs in the
 * middle of anything. */
#include "duck/uefi/trap.h"

#include <string.h>

#include "duck/uefi/acpi.h"
#include "duck/uefi/console.h"
#include "duck/uefi/cores.h"
#include "duck/uefi/cpu.h"
#include "duck/uefi/msr.h"
#include "duck/uefi/user.h"

enum { EXCEPTIONS = 32, DOUBLE_FAULT = 8, PROTECTION = 13 };

extern const uint8_t trap_entries[]; // 16 bytes each
struct table_pointer {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed));
void segments_load(const struct table_pointer *gdt, const struct table_pointer *idt, uint16_t tss);
void trap_handle(struct trap *t);

struct gate { // SDM vol. 3, 6.14.1
    uint16_t offset_low, selector;
    uint8_t ist, type;
    uint16_t offset_mid;
    uint32_t offset_high, reserved;
};
_Static_assert(sizeof(struct gate) == 16, "gate");

static struct gate idt[256];
static uint64_t image_start, image_end;

void trap_start(uint64_t image, uint64_t end)
{
    enum { INTERRUPT_GATE = 0x8e };
    image_start = image;
    image_end = end;
    for (uint32_t i = 0; i < 256; i++) {
        uint64_t at = (uint64_t)(uintptr_t)(trap_entries + 16 * i);
        idt[i] = (struct gate){.offset_low = (uint16_t)at,
                               .selector = TRAP_CODE,
                               .ist = i == DOUBLE_FAULT,
                               .type = INTERRUPT_GATE,
                               .offset_mid = (uint16_t)(at >> 16),
                               .offset_high = (uint32_t)(at >> 32)};
    }
}

void trap_load(struct trap_core *c)
{
    enum { TSS_LIMIT = 103, IST1 = 36, IO_MAP = 102 };
    uint64_t tss = (uint64_t)(uintptr_t)c->tss,
             top = (uint64_t)(uintptr_t)(c->fault_stack + sizeof c->fault_stack);
    memset(c->tss, 0, sizeof c->tss);
    memcpy(c->tss + IST1, &top, 8);
    c->tss[IO_MAP] = TSS_LIMIT + 1; // no ports for ring 3
    c->gdt[0] = 0;
    c->gdt[TRAP_CODE / 8] = 0x00af9b000000ffff; // 64-bit code
    c->gdt[TRAP_DATA / 8] = 0x00cf93000000ffff;
    c->gdt[TRAP_USER_BASE / 8] = 0; // would be 32-bit code
    c->gdt[TRAP_USER_BASE / 8 + 1] = 0x00cff3000000ffff;
    c->gdt[TRAP_USER_BASE / 8 + 2] = 0x00affb000000ffff;
    c->gdt[TRAP_TSS / 8] =
        TSS_LIMIT | (tss & 0xffffff) << 16 | (uint64_t)0x89 << 40 | (tss >> 24 & 0xff) << 56;
    c->gdt[TRAP_TSS / 8 + 1] = tss >> 32;
    struct table_pointer g = {sizeof c->gdt - 1, (uint64_t)(uintptr_t)c->gdt};
    struct table_pointer i = {sizeof idt - 1, (uint64_t)(uintptr_t)idt};
    segments_load(&g, &i, TRAP_TSS);
}

const char *trap_name(uint64_t vector)
{
    static const char *const name[] = {"divide error", "debug",       "NMI",           "breakpoint",
                                       "overflow",     "bound",       "bad opcode",    "no FPU",
                                       "double fault", "FPU segment", "bad TSS",       "no segment",
                                       "stack fault",  "protection",  "page fault",    "reserved",
                                       "x87 error",    "alignment",   "machine check", "SIMD error"};
    return vector < sizeof name / sizeof *name ? name[vector] : "exception";
}

static void report(const struct trap *t)
{
    uint64_t cr2;
    __asm__ volatile("mov %%cr2, %0" : "=r"(cr2));
    say("*** core %u: %s (vector %lu, error code 0x%lx) at image+0x%lx", core_index(), trap_name(t->vector),
        t->vector, t->error_code, t->rip - image_start);
    say("*** rip %016lx rsp %016lx rflags %08lx cr2 %016lx", t->rip, t->rsp, t->rflags, cr2);
    say("*** rax %016lx rbx %016lx rcx %016lx rdx %016lx", t->rax, t->rbx, t->rcx, t->rdx);
    say("*** rsi %016lx rdi %016lx rbp %016lx r8  %016lx", t->rsi, t->rdi, t->rbp, t->r8);
    say("*** r9  %016lx r10 %016lx r11 %016lx r12 %016lx", t->r9, t->r10, t->r11, t->r12);
    say("*** r13 %016lx r14 %016lx r15 %016lx image %016lx", t->r13, t->r14, t->r15, image_start);
    uint64_t frame = t->rbp;
    for (int i = 0; i < 16 && frame && frame % 8 == 0 && core_owns_stack(frame); i++) {
        const uint64_t *f = (const uint64_t *)(uintptr_t)frame;
        if (f[1] < image_start || f[1] >= image_end || f[0] <= frame) break;
        say("***   called from image+0x%lx", f[1] - image_start);
        frame = f[0];
    }
}

void trap_handle(struct trap *t)
{
    if (t->vector >= EXCEPTIONS) {
        if (t->vector != VECTOR_SPURIOUS) cores_end_of_interrupt();
        if (t->cs & 3) user_interrupt(t);
        return;
    }
    if (t->cs & 3) user_exception(t); // returns where it is not the program's fault
    uint64_t next = t->vector == PROTECTION && !(t->cs & 3) ? msr_recover(t->rip) : 0;
    if (next) {
        t->rip = next;
        return;
    }
    report(t);
    say("*** restarting");
    acpi_restart();
}
