/* fp9_cpu.h: the choice of kernels as a function of what CPUID and XCR0 say, so that tests can ask it about
 * CPUs that they do not run on. Everybody else calls fp9_cpu_missing() and fp9_select() of fp9.h. */
#ifndef FP9_FP9_CPU_H
#define FP9_FP9_CPU_H

#include "fp9/fp9.h"

struct fp9_cpu {
    uint32_t vendor;    // leaf 0, EBX
    uint32_t signature; // leaf 1, EAX: family, model, stepping
    uint32_t leaf1_ecx, leaf7_ebx;
    uint64_t xcr0; // 0 without OSXSAVE
};

const char *fp9_cpu_missing_of(const struct fp9_cpu *cpu);
const struct fp9_kernels *fp9_select_of(const struct fp9_cpu *cpu, const char *force);

#endif
