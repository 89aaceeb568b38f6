/* fp9_cpu.c: which kernels this CPU and its operating system can run, and which of them are its fastest. */
#include "fp9/fp9_cpu.h"

#include <cpuid.h>
#include <stdbool.h>

/* Each leaf once: in a virtual machine every CPUID is a trap of microseconds. */
static struct fp9_cpu this_cpu(void)
{
    struct fp9_cpu cpu = {0};
    uint32_t last, a, b, c, d;
    __cpuid(0, last, cpu.vendor, c, d);
    if (last >= 1) __cpuid(1, cpu.signature, b, cpu.leaf1_ecx, d);
    if (last >= 7) __cpuid_count(7, 0, a, cpu.leaf7_ebx, c, d);
    if (cpu.leaf1_ecx & bit_OSXSAVE) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        cpu.xcr0 = (uint64_t)high << 32 | low;
    }
    return cpu;
}

const char *fp9_cpu_missing_of(const struct fp9_cpu *cpu)
{
    enum { XMM_AND_YMM = 6 };
    if (!(cpu->leaf1_ecx & bit_OSXSAVE)) return "OSXSAVE (saving of AVX registers by the operating system)";
    if ((cpu->xcr0 & XMM_AND_YMM) != XMM_AND_YMM)
        return "AVX state in XCR0 (switched off by the operating system)";
    if (!(cpu->leaf1_ecx & bit_AVX)) return "AVX";
    if (!(cpu->leaf1_ecx & bit_FMA)) return "FMA";
    if (!(cpu->leaf1_ecx & bit_F16C)) return "F16C";
    if (!(cpu->leaf7_ebx & bit_AVX2)) return "AVX2";
    return NULL;
}

static bool has_avx512(const struct fp9_cpu *cpu)
{
    enum { XMM_YMM_AND_ZMM = 0xe6 };
    return (cpu->xcr0 & XMM_YMM_AND_ZMM) == XMM_YMM_AND_ZMM && (cpu->leaf7_ebx & bit_AVX512F) &&
           (cpu->leaf7_ebx & bit_AVX512DQ);
}

/* Zen 4 (of AMD's family 19h, whose Zen 3 has no AVX-512) passes 512 bits through pipes of 256, and AVX2's
 * kernels are the faster ones there (docs/numbers.md), reading ahead into L2, without which a core does not
 * get what memory gives; where the pipes are wide, AVX-512's are. By family and not by timing: a probe of the
 * FMA peak says nothing of unpacking, the other half of the work, it would have to outlast neighbours and
 * changes of the clock, and who asks has no state to keep its answer in, so that one machine might compute
 * with other kernels each time. Of CPUs that were not measured nothing is said. */
static bool is_zen_4(const struct fp9_cpu *cpu)
{
    enum { EXTENDED = 15, ZEN_3_AND_4 = 0x19 };
    uint32_t family = cpu->signature >> 8 & 15;
    if (family == EXTENDED) family += cpu->signature >> 20 & 255;
    return cpu->vendor == signature_AMD_ebx && family == ZEN_3_AND_4;
}

const struct fp9_kernels *fp9_select_of(const struct fp9_cpu *cpu, const char *force)
{
    static const struct fp9_kernels *const all[] = {&fp9_avx512, &fp9_avx2_l2, &fp9_avx2, &fp9_scalar};
    if (fp9_cpu_missing_of(cpu)) return NULL;
    const bool avx512 = has_avx512(cpu);
    if (!force) return !avx512 ? &fp9_avx2 : is_zen_4(cpu) ? &fp9_avx2_l2 : &fp9_avx512;
    for (size_t i = avx512 ? 0 : 1; i < sizeof all / sizeof all[0]; i++) {
        const char *a = force, *b = all[i]->name;
        while (*a && *a == *b) a++, b++;
        if (*a == *b) return all[i];
    }
    return NULL;
}

const char *fp9_cpu_missing(void)
{
    const struct fp9_cpu cpu = this_cpu();
    return fp9_cpu_missing_of(&cpu);
}

const struct fp9_kernels *fp9_select(const char *force)
{
    const struct fp9_cpu cpu = this_cpu();
    return fp9_select_of(&cpu, force);
}
