/* fp9_cpu.c: which kernels this CPU and its operating system can run. */
#include "fp9/fp9.h"

#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

const char *fp9_cpu_missing(void)
{
    enum { XMM_AND_YMM = 6 };
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return "CPUID leaf 1";
    if (!(c & bit_OSXSAVE)) return "OSXSAVE (saving of AVX registers by the operating system)";
    if ((xcr0() & XMM_AND_YMM) != XMM_AND_YMM)
        return "AVX state in XCR0 (switched off by the operating system)";
    if (!(c & bit_AVX)) return "AVX";
    if (!(c & bit_FMA)) return "FMA";
    if (!(c & bit_F16C)) return "F16C";
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return "AVX2";
    return NULL;
}

static int has_avx512(void)
{
    enum { XMM_YMM_AND_ZMM = 0xe6 };
    unsigned a, b, c, d;
    return (xcr0() & XMM_YMM_AND_ZMM) == XMM_YMM_AND_ZMM && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (b & bit_AVX512F) && (b & bit_AVX512DQ);
}

const struct fp9_kernels *fp9_select(const char *force)
{
    static const struct fp9_kernels *const best_first[] = {&fp9_avx512, &fp9_avx2, &fp9_scalar};
    if (fp9_cpu_missing()) return NULL;
    size_t first = has_avx512() ? 0 : 1;
    if (!force) return best_first[first];
    for (size_t i = first; i < sizeof best_first / sizeof best_first[0]; i++) {
        const char *a = force, *b = best_first[i]->name;
        while (*a && *a == *b) a++, b++;
        if (*a == *b) return best_first[i];
    }
    return NULL;
}
