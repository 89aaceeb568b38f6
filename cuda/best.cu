/* best.cu: what becomes of logits on the device: the largest one's id, the largest ones with what their
 * probabilities are shares of, or all values go to the host. Blocks share a row; the last to come joins what
 * they found.
 *
 * Keys are unique (the id is part of them), so that "the 256 largest" has one meaning and one order. */
#include "cuda/layer.cuh"

#define THREADS 1024u
#define KEEP BACKEND_CANDIDATES
#define CHUNK (2 * THREADS)    // keys that a block sorts at a time
#define LISTS (THREADS / KEEP) // that a block joins beside each other

typedef unsigned long long key;

/* Larger logits first, of equal ones (-0 equals 0) the lower id; a NaN before everything. */
__device__ static inline key key_of(float v, uint32_t id)
{
    uint32_t bits = __float_as_uint(v + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (isnan(v)) bits = ~0u;
    return (key)bits << 32 | (~0u - id);
}

__device__ static inline uint32_t id_of(key k)
{
    return ~0u - (uint32_t)k;
}

/* -1: NaN, +Inf; nothing but -Inf. */
__device__ static inline int32_t best_of(key k)
{
    const uint32_t bits = (uint32_t)(k >> 32);
    return bits >= 0xff800000u || bits <= 0x007fffffu ? -1 : (int32_t)id_of(k);
}

__device__ static inline key warp_best(key v)
{
    for (int o = 16; o; o >>= 1) v = max(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* Sets the block's results beside the others'; whether all are there now, the same in every thread. */
__device__ static bool is_last(uint32_t *arrived)
{
    __shared__ uint32_t before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrived, 1);
    __syncthreads();
    if (before + 1 < BEST_BLOCKS) return false;
    __threadfence();
    if (threadIdx.x == 0) *arrived = 0;
    return true;
}

/* ---- the largest ---- */

__device__ static void find_best(const best_args &a, uint32_t r, bool all)
{
    __shared__ key tops[THREADS / 32];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float *x = a.logits + (size_t)r * a.vocab;
    float *host = a.logits_host + (size_t)r * a.vocab;
    key top = 0;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < a.vocab; i += BEST_BLOCKS * THREADS) {
        const float v = x[i];
        if (all) host[i] = v;
        top = max(top, key_of(v, i));
    }
    top = warp_best(top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    if (warp == 0) {
        top = warp_best(lane < THREADS / 32 ? tops[lane] : 0);
        if (lane == 0) a.part[(size_t)(r * BEST_BLOCKS + blockIdx.x) * KEEP] = top;
    }
    if (!is_last(a.arrived + r) || warp != 0) return;
    top = 0;
    for (uint32_t i = lane; i < BEST_BLOCKS; i += 32)
        top = max(top, __ldcg(a.part + (size_t)(r * BEST_BLOCKS + i) * KEEP));
    top = warp_best(top);
    if (lane == 0) a.ids_host[r] = best_of(top);
}

/* ---- the largest ones ---- */

__device__ static inline void compare(key *keys, uint32_t low, uint32_t high, bool falling)
{
    const key a = keys[low], b = keys[high];
    if ((a < b) == falling) keys[low] = b, keys[high] = a;
}

/* CHUNK keys in falling order (bitonic: each thread has one pair a stage). */
__device__ static void sort(key *keys)
{
    for (uint32_t k = 2; k <= CHUNK; k *= 2)
        for (uint32_t j = k / 2; j; j /= 2) {
            __syncthreads();
            const uint32_t low = 2 * threadIdx.x - (threadIdx.x & (j - 1));
            compare(keys, low, low + j, !(low & k));
        }
    __syncthreads();
}

/* The larger key of a pair of the list's neighbours at distance `apart` for the first of them, the smaller
 * for the second. */
__device__ static inline key of_pair(key mine, key other, uint32_t apart)
{
    return threadIdx.x & apart ? min(mine, other) : max(mine, other);
}

/* Each run of KEEP threads holds a list of falling keys, one each, and gets the largest of it and of another
 * such list, of which thread i has key KEEP - 1 - i: the larger ones of such pairs rise and fall once, and
 * are sorted in log KEEP stages. `room` is 2 x THREADS keys. */
__device__ static key join(key mine, key other, key *room)
{
    mine = max(mine, other);
    for (uint32_t apart = KEEP / 2; apart >= 32; apart /= 2) {
        room[threadIdx.x] = mine;
        __syncthreads();
        mine = of_pair(mine, room[threadIdx.x ^ apart], apart);
        room = apart & 64 ? room - THREADS : room + THREADS; // nobody waits for the readers of this stage
    }
    for (uint32_t apart = 16; apart; apart /= 2)
        mine = of_pair(mine, __shfl_xor_sync(~0u, mine, apart), apart);
    return mine;
}

__device__ static double2 block_total(double2 v)
{
    __shared__ double2 sums[THREADS / 32];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int o = 16; o; o >>= 1) {
        v.x += __shfl_xor_sync(~0u, v.x, o);
        v.y += __shfl_xor_sync(~0u, v.y, o);
    }
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = make_double2(0.0, 0.0);
    for (uint32_t w = 0; w < THREADS / 32; w++) v.x += sums[w].x, v.y += sums[w].y;
    return v;
}

/* The share of ids [first, end): their KEEP largest and their mass relative to the largest of them. */
__device__ static void find_part(const best_args &a, const float *x, uint32_t first, uint32_t end, key *keys,
                                 key *part, double2 *mass)
{
    uint32_t held = 0;
    for (uint32_t base = first; held == 0 || base < end; held = KEEP) {
        for (uint32_t i = held + threadIdx.x; i < CHUNK; i += THREADS) {
            const uint32_t id = base + i - held;
            keys[i] = id < end ? key_of(x[id], id) : 0;
        }
        base += CHUNK - held;
        sort(keys);
    }
    if (threadIdx.x < KEEP) part[threadIdx.x] = keys[threadIdx.x];
    double2 sum = make_double2(0.0, 0.0);
    const double top = first < end ? (double)x[id_of(keys[0])] : 0.0;
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) {
        const double e = (double)x[i] - top;
        if (top == -INFINITY) break; // nothing weighs anything
        sum.x += exp(e);
        sum.y += exp(e * a.j->scale);
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) *mass = sum;
}

/* The masses of all blocks relative to the row's largest; by one warp. */
__device__ static double2 total_mass(const best_args &a, const float *x, uint32_t r, double top)
{
    double2 v = make_double2(0.0, 0.0);
    for (uint32_t b = threadIdx.x; b < BEST_BLOCKS; b += 32) {
        const size_t at = (size_t)r * BEST_BLOCKS + b;
        const key k = __ldcg(a.part + at * KEEP);
        const double2 m = __ldcg(a.mass + at);
        if (m.x == 0.0) continue;
        const double e = (double)x[id_of(k)] - top;
        v.x += m.x * exp(e);
        v.y += m.y * exp(e * a.j->scale);
    }
    for (int o = 16; o; o >>= 1) {
        v.x += __shfl_xor_sync(~0u, v.x, o);
        v.y += __shfl_xor_sync(~0u, v.y, o);
    }
    return v;
}

/* The blocks' lists become one, keys[0, KEEP): LISTS of them take in the others, then each other. */
__device__ static void join_lists(const key *part, key *keys)
{
    constexpr uint32_t rounds = BEST_BLOCKS / LISTS;
    const uint32_t i = threadIdx.x % KEEP, list = threadIdx.x / KEEP;
    key mine = __ldcg(part + list * KEEP + i), others[rounds - 1];
#pragma unroll
    for (uint32_t b = 1; b < rounds; b++)
        others[b - 1] = __ldcg(part + (b * LISTS + list) * KEEP + KEEP - 1 - i);
#pragma unroll
    for (uint32_t b = 1; b < rounds; b++) {
        mine = join(mine, others[b - 1], keys);
        __syncthreads();
    }
    for (uint32_t n = LISTS / 2; n; n /= 2) {
        keys[threadIdx.x] = mine;
        __syncthreads();
        const key other = list < n ? keys[(list + n) * KEEP + KEEP - 1 - i] : 0;
        __syncthreads();
        mine = join(mine, other, keys);
        __syncthreads();
    }
    if (list == 0) keys[i] = mine;
    __syncthreads();
}

__device__ static void find_candidates(const best_args &a, uint32_t r)
{
    __shared__ key keys[CHUNK];
    const uint32_t per = (a.vocab + BEST_BLOCKS - 1) / BEST_BLOCKS, first = min(blockIdx.x * per, a.vocab);
    const float *x = a.logits + (size_t)r * a.vocab;
    key *part = a.part + (size_t)r * BEST_BLOCKS * KEEP;
    find_part(a, x, first, min(first + per, a.vocab), keys, part + blockIdx.x * KEEP,
              a.mass + r * BEST_BLOCKS + blockIdx.x);
    if (!is_last(a.arrived + r)) return;
    join_lists(part, keys);
    backend_candidates *out = a.candidates_host + r;
    const uint32_t count = min(a.vocab, KEEP);
    if (threadIdx.x < count) {
        const uint32_t id = id_of(keys[threadIdx.x]);
        out->id[threadIdx.x] = (int32_t)id;
        out->logit[threadIdx.x] = x[id];
    }
    if (threadIdx.x >= 32) return;
    const double2 mass = total_mass(a, x, r, (double)x[id_of(keys[0])]);
    if (threadIdx.x != 0) return;
    out->count = count;
    out->mass = mass.x;
    out->tempered = mass.y;
    a.ids_host[r] = best_of(keys[0]);
}

__global__ void __launch_bounds__(THREADS) best_kernel(const __grid_constant__ best_args a)
{
    pdl_wait();
    pdl_trigger();
    const uint32_t want = a.j->want;
    if (want == WANT_CANDIDATES)
        find_candidates(a, blockIdx.y);
    else
        find_best(a, blockIdx.y, want == WANT_ALL);
}

cudaError_t launch_best(const best_args &a, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(best_kernel, dim3(BEST_BLOCKS, rows), THREADS, 0, stream, a);
}
