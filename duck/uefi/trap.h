/* trap.h: segments, interrupt table and the report of exceptions.
 *
 * An exception in the firmware is a bug or broken hardware: its registers and backtrace go to the console,
 * then the machine restarts, so that a duck never needs a visit. One in ring 3 belongs to user.h. */
#ifndef DUCK_UEFI_TRAP_H
#define DUCK_UEFI_TRAP_H

#include <stdint.h>

#define VECTOR_TIMER 0x40u
#define VECTOR_WAKE 0x41u
#define VECTOR_SPURIOUS 0xffu

/* As trap_entries.S pushes it. */
struct trap {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
    uint64_t vector, error_code;
    uint64_t rip, cs, rflags, rsp, ss; // pushed by the CPU
};
_Static_assert(sizeof(struct trap) == 22 * 8, "trap");

/* Selectors; ring 3's in the order that SYSRET wants (SDM vol. 3, 5.8.8). */
enum { TRAP_CODE = 0x08, TRAP_DATA = 0x10, TRAP_USER_BASE = 0x18, TRAP_TSS = 0x30 };
enum { TRAP_RSP0 = 4 }; // in the TSS: the stack for interrupts of ring 3

/* Per core: segments, task state and a stack for double faults. */
struct trap_core {
    uint64_t gdt[8];
    uint8_t tss[104 + 24];
    uint8_t fault_stack[4096] __attribute__((aligned(16)));
};

/* Core 0, once: builds the interrupt table. image: subtracted from addresses in reports. */
void trap_start(uint64_t image, uint64_t image_end);
/* Every core: loads its segments and the table; interrupts stay off. */
void trap_load(struct trap_core *c);
const char *trap_name(uint64_t vector);

#endif
