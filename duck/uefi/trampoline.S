/* trampoline.S: where a core begins: real mode, first byte of a page below 1 MiB, no stack. Goes to 64-bit
 * mode on the page tables of core 0, takes the stack that is there and jumps to C. A core that comes late, when nobody
 * waits for it any more, may find the next one's stack, or that it is taken: then it stops, until it is asked again. */
#include "duck/uefi/trampoline.h"

    .section .rodata
    .globl ap_trampoline, ap_trampoline_32, ap_trampoline_64, ap_trampoline_end
    .balign 16
    .code16
ap_trampoline:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    xorl %ebx, %ebx
    movw %ax, %bx
    shll $4, %ebx               /* the page's address */
    lgdtl AP_GDTR
    movl %cr0, %eax
    orb $1, %al                 /* PE */
    movl %eax, %cr0
    ljmpl *AP_JUMP32

    .code32
ap_trampoline_32:
    movw $AP_DATA, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl %cr4, %eax
    orl $0x620, %eax            /* PAE, OSFXSR, OSXMMEXCPT */
    movl %eax, %cr4
    movl AP_CR3(%ebx), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      /* EFER */
    rdmsr
    orl $0x900, %eax            /* LME, NXE */
    wrmsr
    movl %cr0, %eax
    andl $0x9ffffff3, %eax      /* INIT left caches off: clear CD, NW; and EM, TS */
    orl $0x80010022, %eax       /* PG, WP, NE, MP */
    movl %eax, %cr0
    ljmpl *AP_JUMP64(%ebx)

    .code64
ap_trampoline_64:
    movl %ebx, %ebx
    movl $1, %eax
    xchgl %eax, AP_TAKEN(%rbx)
    testl %eax, %eax
    jnz 1f
    movq AP_STACK(%rbx), %rsp
    movq AP_ARGUMENT(%rbx), %rdi
    movq AP_ENTRY(%rbx), %rax
    xorl %ebp, %ebp
    fninit
    pushq $0                    /* the entry never returns */
    jmpq *%rax
1:  cli
    hlt
    jmp 1b
ap_trampoline_end:

    .section .note.GNU-stack, "", @progbits
