/* trap_entries.S: the 256 interrupt entries. Each pushes an error code (0 if the CPU did not) and its number; all
 * meet in one place that saves the registers as struct trap and calls trap_handle(). GS is the firmware's there,
 * whichever ring was interrupted. */
    .text
    .globl trap_entries
    .balign 16
trap_entries:
    .set vector, 0
    .rept 256
    .balign 16
    /* 8, 10-14, 17, 21, 29, 30 come with an error code (SDM vol. 3, 6.15) */
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr

trap_common:
    testb $3, 24(%rsp)          /* CS */
    jz 1f
    swapgs
1:  pushq %rax
    pushq %rbx
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %rbp
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %rdi
    cld
    movq %rsp, %rbp
    andq $-16, %rsp
    call trap_handle
    movq %rbp, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rbp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rbx
    popq %rax
    addq $16, %rsp
    testb $3, 8(%rsp)
    jz 1f
    swapgs
1:  iretq

    /* void stack_switch(void *top, void (*f)(void *), void *argument): never returns */
    .globl stack_switch
stack_switch:
    movq %rdi, %rsp
    movq %rdx, %rdi
    xorl %ebp, %ebp
    pushq $0
    jmpq *%rsi

    /* void segments_load(const struct table_pointer *gdt, const struct table_pointer *idt, uint16_t tss) */
    .globl segments_load
segments_load:
    lgdt (%rdi)
    lidt (%rsi)
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs
    ltr %dx
    popq %rax
    pushq $0x08
    pushq %rax
    lretq

    .section .note.GNU-stack, "", @progbits
