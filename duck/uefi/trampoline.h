/* trampoline.h: what the page below 1 MiB holds in which a core starts (Intel SDM vol. 3, 9.4): the code of
 * trampoline.S, and from AP_BLOCK on what it needs. Shared by C and assembler. */
#ifndef DUCK_UEFI_TRAMPOLINE_H
#define DUCK_UEFI_TRAMPOLINE_H

#define AP_BLOCK 0xf00
#define AP_CR3 0xf00
#define AP_ENTRY 0xf08
#define AP_STACK 0xf10
#define AP_ARGUMENT 0xf18
#define AP_JUMP32 0xf20
#define AP_JUMP64 0xf28
#define AP_GDTR 0xf30
#define AP_GDT 0xf40
#define AP_TAKEN 0xf60
#define AP_CODE32 0x08
#define AP_DATA 0x10
#define AP_CODE64 0x18

#ifndef __ASSEMBLER__
#include <stddef.h>
#include <stdint.h>

struct ap_block {
    uint64_t cr3; // below 4 GiB
    uint64_t entry, stack, argument;
    uint32_t jump32; // far pointers: offset, selector
    uint16_t selector32, pad32;
    uint32_t jump64;
    uint16_t selector64, pad64;
    uint16_t gdt_limit;
    uint16_t gdt_base[2]; // 32 bits, unaligned
    uint16_t pad[5];
    uint64_t gdt[4];
    _Atomic uint32_t taken; // 0: stack and argument are there for the first core that comes
};
_Static_assert(offsetof(struct ap_block, stack) == AP_STACK - AP_BLOCK, "stack");
_Static_assert(offsetof(struct ap_block, jump32) == AP_JUMP32 - AP_BLOCK, "jump32");
_Static_assert(offsetof(struct ap_block, jump64) == AP_JUMP64 - AP_BLOCK, "jump64");
_Static_assert(offsetof(struct ap_block, gdt_limit) == AP_GDTR - AP_BLOCK, "gdtr");
_Static_assert(offsetof(struct ap_block, gdt) == AP_GDT - AP_BLOCK, "gdt");
_Static_assert(offsetof(struct ap_block, taken) == AP_TAKEN - AP_BLOCK, "taken");

extern const uint8_t ap_trampoline[], ap_trampoline_32[], ap_trampoline_64[], ap_trampoline_end[];
#endif

#endif
