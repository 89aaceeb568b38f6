/* msr_entries.S: RDMSR and WRMSR at known addresses, so that an exception there can be told from all others and end
 * in a result. */
    .text
    /* int msr_try_read(uint32_t msr, uint64_t *value) */
    .globl msr_try_read
    .hidden msr_try_read
msr_try_read:
    movl %edi, %ecx
    .globl msr_reads_here
    .hidden msr_reads_here
msr_reads_here:
    rdmsr
    shlq $32, %rdx
    orq %rdx, %rax
    movq %rax, (%rsi)
    movl $1, %eax
    ret

    /* int msr_try_write(uint32_t msr, uint64_t value) */
    .globl msr_try_write
    .hidden msr_try_write
msr_try_write:
    movl %edi, %ecx
    movl %esi, %eax
    movq %rsi, %rdx
    shrq $32, %rdx
    .globl msr_writes_here
    .hidden msr_writes_here
msr_writes_here:
    wrmsr
    movl $1, %eax
    ret

    .globl msr_has_failed
    .hidden msr_has_failed
msr_has_failed:
    xorl %eax, %eax
    ret

    .section .note.GNU-stack, "", @progbits
