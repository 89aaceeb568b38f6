/* cpu.h: x86-64 instructions that C has no words for. Everything here is the firmware's; no state. */
#ifndef DUCK_UEFI_CPU_H
#define DUCK_UEFI_CPU_H

#include <stdint.h>

/* Intel SDM vol. 3, 2.5 (control registers), 2.6 (XCR0), vol. 4 (MSRs). */
enum {
    CR0_MP = 1 << 1,
    CR0_EM = 1 << 2,
    CR0_TS = 1 << 3,
    CR0_NE = 1 << 5,
    CR0_WP = 1 << 16,
    CR4_OSFXSR = 1 << 9,
    CR4_OSXMMEXCPT = 1 << 10,
    CR4_UMIP = 1 << 11,
    CR4_OSXSAVE = 1 << 18,
    CR4_SMEP = 1 << 20,
    XCR0_X87_SSE_AVX = 7,
    MSR_APIC_BASE = 0x1b,
    MSR_EFER = 0xc0000080,
    EFER_SCE = 1 << 0,
    EFER_NXE = 1 << 11,
};
/* SDM vol. 3, 5.8.8: where SYSCALL leads and which flags it clears; GS of this ring and of the other. */
enum {
    MSR_STAR = 0xc0000081,
    MSR_LSTAR = 0xc0000082,
    MSR_FMASK = 0xc0000084,
    MSR_GS_BASE = 0xc0000101,
    MSR_OTHER_GS_BASE = 0xc0000102,
};
#define MXCSR_DEFAULT 0x1f80u // all exceptions masked, round to nearest, no flush to zero

static inline void out8(uint16_t port, uint8_t v)
{
    __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port));
}
static inline void out16(uint16_t port, uint16_t v)
{
    __asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(port));
}
static inline void out32(uint16_t port, uint32_t v)
{
    __asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(port));
}
static inline uint8_t in8(uint16_t port)
{
    uint8_t v;
    __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint16_t in16(uint16_t port)
{
    uint16_t v;
    __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint32_t in32(uint16_t port)
{
    uint32_t v;
    __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}

static inline uint64_t read_msr(uint32_t msr)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}
static inline void write_msr(uint32_t msr, uint64_t v)
{
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)v), "d"((uint32_t)(v >> 32)) : "memory");
}

struct cpuid {
    uint32_t a, b, c, d;
};
static inline struct cpuid cpuid(uint32_t leaf, uint32_t sub)
{
    struct cpuid r;
    __asm__ volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(sub));
    return r;
}

/* Not before the loads in front of it are done. */
static inline uint64_t read_tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

/* a * b / c with 128 bits in between; the quotient must fit. */
static inline uint64_t mul_div(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t low, high, rest;
    __asm__("mulq %3" : "=a"(low), "=d"(high) : "a"(a), "rm"(b));
    __asm__("divq %4" : "=a"(low), "=d"(rest) : "a"(low), "d"(high), "rm"(c));
    (void)rest;
    return low;
}

static inline void cpu_pause(void)
{
    __asm__ volatile("pause" : : : "memory");
}

/* Waits for an interrupt; sti takes effect behind hlt, so none is lost in between. */
static inline void cpu_sleep(void)
{
    __asm__ volatile("sti; hlt; cli" : : : "memory");
}

static inline _Noreturn void cpu_stop(void)
{
    for (;;) __asm__ volatile("cli; hlt");
}

#endif
