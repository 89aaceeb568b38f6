/* user_entries.S: into ring 3 and out of it. In: SYSRET to a few instructions that ring 3 can read (user_page), which
 * call the program. Out: SYSCALL, or user_abandon() in the middle of an interrupt; both continue where user_enter()
 * was called, whose registers lie on the core's own stack. */
#define KERNEL_STACK 8          /* struct core */
#define TSS_STACK 16
#define USER_FLAGS 0x202        /* interrupts on */

    .text
    /* uint32_t user_enter(uint64_t stack, uint64_t page, uint64_t entry, const uint64_t argument[4]) */
    .globl user_enter
user_enter:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %gs:KERNEL_STACK
    movq %gs:TSS_STACK, %rax
    movq %rsp, (%rax)
    movq %rdi, %rsp
    movq %rdx, %rax
    movq 24(%rcx), %r10         /* user_page brings it to its place: SYSRET uses RCX */
    movq 16(%rcx), %rdx
    movq 0(%rcx), %rdi
    movq 8(%rcx), %r8
    movq %rsi, %rcx
    movq %r8, %rsi
    movl $USER_FLAGS, %r11d
    xorl %ebx, %ebx
    xorl %ebp, %ebp
    xorl %r8d, %r8d
    xorl %r9d, %r9d
    xorl %r12d, %r12d
    xorl %r13d, %r13d
    xorl %r14d, %r14d
    xorl %r15d, %r15d
    vzeroall
    swapgs
    sysretq

    /* SYSCALL: EAX is what the program returned. Interrupts are off (MSR_FMASK). */
    .globl user_exit
user_exit:
    swapgs
leave:
    movq %gs:KERNEL_STACK, %rsp
    ldmxcsr mxcsr(%rip)         /* whatever the program made of it */
    vzeroupper
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret

    /* _Noreturn void user_abandon(uint32_t result) */
    .globl user_abandon
user_abandon:
    movl %edi, %eax
    jmp leave

    .section .rodata
    .balign 4
mxcsr:
    .long 0x1f80

    /* Copied to a page of its own. */
    .globl user_page, user_page_end
user_page:
    movq %r10, %rcx
    call *%rax
    syscall
    ud2
user_page_end:

    .section .note.GNU-stack, "", @progbits
