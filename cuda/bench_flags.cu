/* bench_flags.cu: what host and device cost each other where they meet: a flag in pinned, mapped memory that
 * the device sets, the host sees and answers with another, which the device sees. No launch, no system call.
 */
#include "cuda/bench.cuh"

#include <stdio.h>
#include <stdlib.h>

#define TRIPS 2000u
#define WARM_UP 100u
#define LIMIT_NS 2000000000ull // of all of them

struct flags {
    uint32_t published, padding[31], answered; // in cache lines of their own
};

__device__ static inline uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* cycles[i]: of trip i; *ns: of all trips. ~0: the host has not answered in time. */
__global__ void trips_kernel(flags *f, uint32_t *cycles, uint64_t *ns)
{
    const uint64_t began = now_ns();
    for (uint32_t i = 0; i < TRIPS; i++) {
        const uint64_t from = clock64();
        uint32_t seen;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&f->published), "r"(i + 1) : "memory");
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(&f->answered) : "memory");
            if (now_ns() - began > LIMIT_NS) {
                *ns = ~0ull;
                return;
            }
        } while (seen != i + 1);
        cycles[i] = (uint32_t)(clock64() - from);
    }
    *ns = now_ns() - began;
}

void flag_round_trips(cudaStream_t s)
{
    static float us[TRIPS - WARM_UP];
    flags *f;
    uint32_t *cycles;
    uint64_t *ns;
    double sum = 0;
    ok(cudaHostAlloc((void **)&f, sizeof *f, cudaHostAllocMapped), "flags");
    ok(cudaHostAlloc((void **)&cycles, TRIPS * sizeof *cycles, cudaHostAllocMapped), "flags");
    ok(cudaHostAlloc((void **)&ns, sizeof *ns, cudaHostAllocMapped), "flags");
    *f = {};
    trips_kernel<<<1, 1, 0, s>>>(f, cycles, ns);
    ok(cudaGetLastError(), "flags");
    const uint64_t deadline = clock_ns() + 2 * LIMIT_NS;
    for (uint32_t i = 1; i <= TRIPS && clock_ns() < deadline; i++) {
        while (__atomic_load_n(&f->published, __ATOMIC_ACQUIRE) != i && clock_ns() < deadline) {
        }
        __atomic_store_n(&f->answered, i, __ATOMIC_RELEASE);
    }
    ok(cudaStreamSynchronize(s), "flags");
    if (*ns == ~0ull) {
        fprintf(stderr, "bench-gpu: the host did not answer %u flags within %llu s\n", TRIPS,
                LIMIT_NS / 1000000000ull);
        exit(1);
    }
    for (uint32_t i = 0; i < TRIPS; i++) sum += cycles[i];
    for (uint32_t i = WARM_UP; i < TRIPS; i++)
        us[i - WARM_UP] = (float)(cycles[i] * 1e-3 * (double)*ns / sum);
    qsort(us, TRIPS - WARM_UP, sizeof *us, by_value);
    printf("flag round trip GPU -> host -> GPU: median %.2f us, 99th percentile %.2f us of %u\n",
           us[(TRIPS - WARM_UP) / 2], us[(TRIPS - WARM_UP) * 99 / 100], TRIPS - WARM_UP);
    cudaFreeHost(f);
    cudaFreeHost(cycles);
    cudaFreeHost(ns);
}
