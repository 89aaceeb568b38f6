/* experts.cu: a narrow feed-forward, the shared experts', in two launches between which memory is not idle.
 *
 * A block of the first has a strip of gate and the same of up, its warps share the inputs; a block of the
 * second has four strips of down. Each warp has a ring of tiles in shared memory that bulk copies fill in the
 * order of their use, begun before the kernel waits for the one before it. Blocks of both fit a
 * multiprocessor together: one's first tiles come while the other's last are multiplied and while its sums
 * cross. A warp asks for a tile ahead when the one before has come: what waits in a multiprocessor's queue is
 * served in order, so more of it would hold up x and the last tiles of the other kernel. */
#include "cuda/cluster.cuh"
#include "cuda/layer.cuh"
#include "cuda/tile.cuh"

#define WARPS 16u
#define SUBS 4u // warps that share a strip of down
#define STRIPS (WARPS / SUBS)
#define ROWS 4u  // of a block at most
#define TILES 8u // of a warp at most: a lane has the scales of one of them and a row

struct experts_args {
    matrix gate, up, down;
    vec x;
    float *inner, *h;
    uint32_t rows, group, row_groups, slots, x_at, arrivals_at; // *_at: in shared memory
};

/* A parameter that is read once: reads behind the start of a following kernel are slow. */
__device__ static inline uint32_t pin(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

template <class T> __device__ static inline T *pin(T *v)
{
    asm volatile("" : "+l"(v));
    return v;
}

/* A warp's tiles, taken in order: of one run or of two in turn. The first lane has the next one's place. */
struct ring {
    const uint8_t *next, *other;
    unsigned data, arrival; // the next slot's, and its barrier
    uint32_t ahead, slots, left, parity,
        step; // ahead: tiles not asked for yet; left: slots before the first's turn

    __device__ void start(unsigned to, unsigned barrier)
    {
        arrival_expect(barrier, 2048);
        bulk_copy(to, next, 2048, barrier);
        const uint8_t *const p = next + step;
        next = other;
        other = p;
        ahead--;
    }

    __device__ ring(const experts_args &a, uint8_t *memory, uint32_t n, const uint8_t *one,
                    const uint8_t *two, uint32_t stride)
        : next(one), other(two), ahead(threadIdx.x % 32 ? 0 : n), slots(pin(a.slots)), left(slots), parity(0),
          step(stride)
    {
        const uint32_t warp = threadIdx.x >> 5;
        data = shared_address(memory) + warp * slots * 2048;
        arrival = shared_address(memory) + a.arrivals_at + warp * slots * 8;
        if (threadIdx.x % 32 == 0) {
            for (uint32_t i = 0; i < slots; i++) arrival_open(arrival + i * 8);
            arrivals_opened();
            for (uint32_t i = 0; i < slots && ahead; i++) {
                if (i) arrival_await(arrival + (i - 1) * 8, 0);
                start(data + i * 2048, arrival + i * 8);
            }
        }
        data += threadIdx.x % 32 * 16;
        __syncwarp();
    }

    __device__ void take(uint4 w[4])
    {
        arrival_await(arrival, parity);
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(w[k].x), "=r"(w[k].y), "=r"(w[k].z), "=r"(w[k].w)
                         : "r"(data + k * 512)
                         : "memory");
        __syncwarp();
        if (ahead) {
            reads_done();
            start(data, arrival);
        }
        data += 2048;
        arrival += 8;
        if (--left == 0) {
            left = slots;
            data -= slots * 2048;
            arrival -= slots * 8;
            parity ^= 1;
        }
    }
};

__global__ void __launch_bounds__(WARPS * 32, 2) gate_up_kernel(const __grid_constant__ experts_args a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float sums[WARPS][2][16][ROWS];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t strip = blockIdx.x / a.row_groups, row0 = blockIdx.x % a.row_groups * a.group,
                   live = pin(min(a.group, a.rows - row0));
    const uint32_t ktiles = a.gate.ktiles, first = ktiles * warp / WARPS,
                   count = pin(ktiles * (warp + 1) / WARPS - first);
    const size_t at = (size_t)strip * ktiles + first;
    ring from(a, memory, 2 * count, a.gate.data + at * 2048, a.up.data + at * 2048, 2048);
    // Of tile lane / 4 and row lane % 4.
    const bool scaled = g < 2 * count;
    const float scale = scaled ? __ldg((g & 1 ? a.up.scales : a.gate.scales) + at + g / 2) : 0.0f;
    const uint32_t blocks = pin(a.x.blocks), m = threadIdx.x & 15, r = threadIdx.x >> 4;
    const __half *const h = pin(a.x.h + ((size_t)row0 * blocks + first) * 256);
    const float *const hs = pin(a.x.hs + (size_t)(row0 + min(t, live - 1)) * blocks + first + g / 2);
    uint8_t *const own = memory + pin(a.x_at + first * live * 512);
    const uint32_t mine = pin(r < live && strip * 16 + m < a.gate.rows ? 1u : 0u);
    float *const out = pin(a.inner + (size_t)(row0 + r) * a.gate.rows + strip * 16 + m);
    uint4 w[4];
    if (count) from.take(w);
    pdl_wait();
#pragma unroll 1
    for (uint32_t k = 0; k < live; k++)
#pragma unroll 1
        for (uint32_t i = lane; i < count * 32; i += 32)
            copy_start(shared_address(own) + (k * count * 32 + i) * 16, h + (size_t)k * blocks * 256 + i * 8);
    const float f = scaled ? scale * __ldcg(hs) : 0.0f;
    copies_await();
    __syncwarp();
    const uint4 *x =
        reinterpret_cast<const uint4 *>(own) + min(g / 2, live - 1) * count * 32 + (g & 1) * 16 + 2 * t;
    float gate[4] = {}, up[4] = {};
#pragma unroll 1
    for (uint32_t k = 0; k < count; k++) {
        if (k + 2 >= count) pdl_trigger(); // the last tiles are on their way, or nearly
        tile_fp8(x, w, __shfl_sync(~0u, f, 8 * k + t), gate);
        from.take(w);
        tile_fp8(x, w, __shfl_sync(~0u, f, 8 * k + 4 + t), up);
        if (k + 1 < count) from.take(w);
        x += 32;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        sums[warp][0][g + 8 * i][t] = gate[i], sums[warp][1][g + 8 * i][t] = up[i];
    __syncthreads();
    if (!mine) return;
    float p = 0.0f, q = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++) p += sums[i][0][m][r], q += sums[i][1][m][r];
    *out = silu(p) * q;
}

__global__ void __launch_bounds__(WARPS * 32, 2) down_kernel(const __grid_constant__ experts_args a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float sums[WARPS][16][ROWS];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t strip0 = blockIdx.x / a.row_groups * STRIPS, row0 = blockIdx.x % a.row_groups * a.group,
                   live = pin(min(a.group, a.rows - row0));
    const uint32_t strip = strip0 + warp / SUBS, sub = warp % SUBS, ktiles = pin(a.down.ktiles),
                   first = ktiles * sub / SUBS,
                   count = pin(strip < a.down.strips ? ktiles * (sub + 1) / SUBS - first : 0);
    const size_t at = (size_t)strip * ktiles + first;
    ring from(a, memory, count, a.down.data + at * 2048, a.down.data + (at + 1) * 2048, 4096);
    const float scale = g < count ? __ldg(a.down.scales + at + g) : 0.0f; // of tile lane / 4
    const uint32_t o = threadIdx.x % (STRIPS * 16), r = threadIdx.x / (STRIPS * 16), width = pin(a.gate.rows);
    const uint32_t mine = pin(r < live && strip0 * 16 + o < a.down.rows ? 1u : 0u);
    float *const h = pin(a.h + (size_t)(row0 + r) * a.down.rows + strip0 * 16 + o);
    const float *const inner = pin(a.inner + (size_t)row0 * width + warp * 128 + lane * 4);
    uint8_t *const own = memory + pin(a.x_at);
    uint4 w[4];
    if (count) from.take(w);
    pdl_wait();
    pdl_trigger();
    const float old = mine ? __ldcg(h) : 0.0f;
    vec x = {};
    x.blocks = ktiles;
    x.h = reinterpret_cast<__half *>(own);
    x.hs = reinterpret_cast<float *>(own + live * ktiles * 512);
    if (warp < ktiles) {
        const bool in = warp * 128 + lane * 4 < width;
        float4 v[ROWS];
#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++)
            v[k] = k < live && in ? __ldcg(reinterpret_cast<const float4 *>(inner + (size_t)k * width))
                                  : make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++)
            if (k < live) vec_store(x, k, warp, lane, v[k]);
    }
    __syncthreads();
    const float f = g < count ? scale * x.hs[min(t, live - 1) * ktiles + first + g] : 0.0f;
    const uint4 *b = reinterpret_cast<const uint4 *>(own) + (min(g / 2, live - 1) * ktiles + first) * 32 +
                     (g & 1) * 16 + 2 * t;
    float total[4] = {};
#pragma unroll 1
    for (uint32_t k = 0; k < count; k++) {
        tile_fp8(b, w, __shfl_sync(~0u, f, 4 * k + t), total);
        if (k + 1 < count) from.take(w);
        b += 32;
    }
    sums[warp][g][t] = total[0];
    sums[warp][g + 8][t] = total[1];
    __syncthreads();
    if (!mine) return;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < SUBS; i++) sum += sums[o / 16 * SUBS + i][o % 16][r];
    *h = old + sum;
}

/* ---- launches ---- */

#define SLOT (WARPS * (2048 + 8)) // of all warps, with their barriers
#define SUMS (WARPS * 2 * 16 * ROWS * sizeof(float))
#define RESERVED 1024u // of a block, by the device

static uint32_t block_limit, device_limit; // of shared memory: of a block but for sums, of a multiprocessor

cudaError_t experts_open(size_t shared_limit)
{
    block_limit = (uint32_t)(shared_limit - SUMS);
    device_limit = (uint32_t)shared_limit + RESERVED;
    for (const void *kernel : {(const void *)gate_up_kernel, (const void *)down_kernel}) {
        cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)block_limit);
        if (!e) e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
        if (e) return e;
    }
    return cudaSuccess;
}

static uint32_t x_bytes(uint32_t ktiles, uint32_t rows)
{
    return div_up(ktiles * rows * 516, 16) * 16;
}

bool experts_serve(const matrix &gate, const matrix &up, const matrix &down)
{
    return gate.type == MATRIX_FP8 && up.type == MATRIX_FP8 && down.type == MATRIX_FP8 &&
           gate.rows % 4 == 0 && gate.ktiles <= WARPS * TILES / 2 && down.ktiles <= WARPS &&
           x_bytes(gate.ktiles, 1) + SLOT <= block_limit && x_bytes(down.ktiles, ROWS) + SLOT <= block_limit;
}

/* Tiles ahead of a warp of either kernel: as many as leave room for the other's blocks, or, where there is
 * none, as its own block may have. */
static void choose_slots(const uint32_t bytes[2], uint32_t slots[2])
{
    static const uint32_t both[][2] = {{3, 2}, {2, 2}, {2, 1}};
    for (const auto &b : both) {
        slots[0] = b[0], slots[1] = b[1];
        if (bytes[0] + bytes[1] + (b[0] + b[1]) * SLOT + 2 * (SUMS + RESERVED) <= device_limit) return;
    }
    slots[0] = 2, slots[1] = 3;
    for (int i = 0; i < 2; i++)
        while (bytes[i] + slots[i] * SLOT > block_limit) slots[i]--;
}

cudaError_t launch_experts(const matrix &gate, const matrix &up, const matrix &down, const vec &x,
                           float *inner, float *h, uint32_t rows, cudaStream_t stream)
{
    experts_args a = {};
    a.gate = gate, a.up = up, a.down = down, a.x = x, a.inner = inner, a.h = h;
    a.rows = rows;
    a.group = rows < ROWS ? rows : ROWS;
    while (x_bytes(gate.ktiles, a.group) + SLOT > block_limit) a.group--;
    a.row_groups = div_up(rows, a.group);
    const uint32_t bytes[2] = {x_bytes(gate.ktiles, a.group), x_bytes(down.ktiles, a.group)},
                   blocks[2] = {gate.strips, div_up(down.strips, STRIPS)};
    uint32_t slots[2];
    choose_slots(bytes, slots);
    for (int i = 0; i < 2; i++) {
        a.slots = slots[i];
        a.arrivals_at = a.slots * WARPS * 2048;
        a.x_at = a.arrivals_at + a.slots * WARPS * 8;
        cudaError_t e = gpu_launch(i ? down_kernel : gate_up_kernel, dim3(blocks[i] * a.row_groups),
                                   WARPS * 32, bytes[i] + a.slots * SLOT, stream, a);
        if (e) return e;
    }
    return cudaSuccess;
}
