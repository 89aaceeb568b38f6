/* cluster.cuh: blocks of one cluster and copies into shared memory, as instructions.
 *
 * A kernel that was launched without clusters is a cluster of one block for all of these. */
#ifndef DUCKD_CUDA_CLUSTER_CUH
#define DUCKD_CUDA_CLUSTER_CUH

#include <stdint.h>

__device__ static inline unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* Where block `rank` of the cluster has what lies at `address` here. */
__device__ static inline unsigned cluster_address(unsigned address, uint32_t rank)
{
    unsigned out;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
    return out;
}

__device__ static inline void cluster_store(unsigned address, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

/* A block may write into another's memory once that has begun, and read its own once all have written. */
__device__ static inline void cluster_begun()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ static inline void cluster_await_begun()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ static inline void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* 16 bytes (past the first-level cache) or a float from global to shared memory; copies_await(): what this
 * thread has started is there. */
__device__ static inline void copy_start(unsigned to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ static inline void copy_float(unsigned to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ static inline void copies_await()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- bulk copies, whose arrival a barrier of 8 bytes counts ---- */

__device__ static inline void arrival_open(unsigned barrier)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* By the thread that opened barriers, before others use them behind a barrier of the block. */
__device__ static inline void arrivals_opened()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* What this thread has read, or others before a barrier, is read before a bulk copy that it starts now writes
 * there. */
__device__ static inline void reads_done()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static inline void arrival_expect(unsigned barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ static inline void bulk_copy(unsigned to, const void *from, uint32_t bytes, unsigned barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

__device__ static inline void arrival_await(unsigned barrier, uint32_t parity)
{
    unsigned done = 0;
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
}

#endif
