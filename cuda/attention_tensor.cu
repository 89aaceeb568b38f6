/* attention_tensor.cu: the same attention on tensor cores, for caches kept in bf16 or fp8 (both exact in
 * bf16).
 *
 * A block takes one split for 16 heads (the rows of mma.m16n8k16). Queries and softmax weights are two bf16
 * parts, hi + lo (16 bits), so what the cache's own rounding leaves is kept. Tiles of positions lie in shared
 * memory once and serve as keys and as values; the next one comes while one is worked on (where a whole split
 * fits, it is one tile), and the first ones come before the queries are there. Scores: a warp has an eighth
 * of the dimensions of the queries in registers and takes half of the positions; softmax: a warp a head; sum
 * of latents: a warp owns every sixteenth group of 8 latents. Rows of a job that see the same positions
 * follow each other in one block, which fetches these once. */
#include "cuda/attention.cuh"
#include "cuda/cluster.cuh"
#include "cuda/kv.cuh"

#define HEADS 16u
#define WARPS 16u
#define PIECES 2u   // of positions in shared memory
#define PARTS 8u    // of the dimensions
#define STEPS_MAX 5 // of 16 dimensions that a part has
#define ROWS_MAX 4u // of a block

__host__ __device__ static inline uint32_t row_stride(const shape &s)
{
    return s.latent + s.rope + 8;
}

/* TILE positions are worked on at once, PIECE come at once: two small tiles or the halves of a large one.
 * Strides are chosen against bank conflicts: rows that ldmatrix reads together an
 * odd number of 16 bytes apart, scores 8 banks. */
template <uint32_t PIECE, uint32_t TILE> struct tile_memory {
    static constexpr uint32_t p_stride = TILE + 8, s_stride = TILE + 8;
    __nv_bfloat16 *kv;          // (PIECES, PIECE, stride)
    __nv_bfloat16 *p_hi, *p_lo; // (HEADS, p_stride)
    float *score;               // (PARTS, HEADS, s_stride)
    float *fade;                // (HEADS)
    unsigned arrivals;          // (PIECES) barriers of 8 bytes, an address in shared memory: a piece has come

    __device__ tile_memory(const shape &s, uint8_t *shared)
    {
        kv = reinterpret_cast<__nv_bfloat16 *>(shared);
        p_hi = kv + PIECES * PIECE * row_stride(s);
        p_lo = p_hi + HEADS * p_stride;
        score = reinterpret_cast<float *>(p_lo + HEADS * p_stride);
        fade = score + PARTS * HEADS * s_stride;
        arrivals = (unsigned)__cvta_generic_to_shared(fade + HEADS);
    }

    static size_t bytes(const shape &s)
    {
        return (PIECES * PIECE * row_stride(s) + 2 * HEADS * p_stride) * sizeof(__nv_bfloat16) +
               (PARTS * HEADS * s_stride + HEADS) * sizeof(float) + PIECES * 8;
    }
};

/* ---- tiles ---- */

__device__ static inline void open_arrivals(unsigned arrivals)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < PIECES; i++)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(arrivals + 8 * i) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
}

/* Starts bringing positions base .. base + PIECE - 1 with one copy a row, a few by every warp; rows that are
 * not there are zero. */
template <uint32_t PIECE>
__device__ static inline void fetch_rows(const shape &s, const attention_args &a, const uint32_t *pages,
                                         const int32_t *list, uint32_t base, uint32_t end,
                                         __nv_bfloat16 *piece, unsigned barrier)
{
    constexpr uint32_t share = PIECE / WARPS;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, bytes = (s.latent + s.rope) * 2;
    const uint32_t first = base + warp * share;
    piece += warp * share * row_stride(s);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(min(PIECE, end - base) * bytes)
                     : "memory");
    __syncwarp();
    if (lane < share && first + lane < end) {
        const uint8_t *row = kv_row(s, pages, a.layer, list ? (uint32_t)list[first + lane] : first + lane);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                (unsigned)__cvta_generic_to_shared(piece + lane * row_stride(s))),
            "l"(row), "r"(bytes), "r"(barrier)
            : "memory");
    }
    __syncwarp();
    for (uint32_t i = end > first ? end - first : 0; i < share; i++)
        for (uint32_t c = lane * 8; c < s.latent + s.rope; c += 256)
            *reinterpret_cast<uint4 *>(piece + i * row_stride(s) + c) = make_uint4(0, 0, 0, 0);
}

/* The same for rows that have to be widened. */
template <int DTYPE, uint32_t PIECE>
__device__ static inline void widen_rows(const shape &s, const attention_args &a, const uint32_t *pages,
                                         const int32_t *list, uint32_t base, uint32_t end,
                                         __nv_bfloat16 *piece)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, width = s.latent + s.rope;
    const uint8_t *row[PIECE / WARPS];
#pragma unroll
    for (uint32_t i = 0; i < PIECE / WARPS; i++) {
        const uint32_t p = base + warp + i * WARPS;
        row[i] = p < end ? kv_row(s, pages, a.layer, list ? (uint32_t)list[p] : p) : nullptr;
    }
#pragma unroll
    for (uint32_t i = 0; i < PIECE / WARPS; i++)
        for (uint32_t c = lane * 4; c < width; c += 128)
            *reinterpret_cast<uint2 *>(piece + (warp + i * WARPS) * row_stride(s) + c) =
                row[i] ? to_bf16x4(kv_load_key<DTYPE>(s, row[i], c)) : make_uint2(0, 0);
}

/* ---- arithmetic ---- */

__device__ static inline void split_store(__nv_bfloat16 *hi, __nv_bfloat16 *lo, float v)
{
    *hi = __float2bfloat16_rn(v);
    *lo = __float2bfloat16_rn(v - __bfloat162float(*hi));
}

/* A warp's part of the queries of 16 heads as the A operand. */
struct queries {
    unsigned hi[STEPS_MAX][4], lo[STEPS_MAX][4];
    uint32_t first, count; // in steps of 16 dimensions
};

__device__ static inline unsigned split(float2 v, unsigned &lo)
{
    const __nv_bfloat162 h = __float22bfloat162_rn(v);
    const float2 f = __bfloat1622float2(h);
    const __nv_bfloat162 l = __float22bfloat162_rn(make_float2(v.x - f.x, v.y - f.y));
    lo = *reinterpret_cast<const unsigned *>(&l);
    return *reinterpret_cast<const unsigned *>(&h);
}

__device__ static void load_queries(const shape &s, const float *qa, uint32_t head0, uint32_t part,
                                    uint32_t lane, queries &q)
{
    const uint32_t width = s.latent + s.rope, steps = width / 16, g = lane >> 2, t = lane & 3;
    q.first = steps * part / PARTS;
    q.count = steps * (part + 1) / PARTS - q.first;
    // Heads and steps that are not there: any will do, nobody uses them.
    const float *from[2] = {qa + (size_t)min(head0 + g, s.heads - 1) * width + 2 * t,
                            qa + (size_t)min(head0 + g + 8, s.heads - 1) * width + 2 * t};
#pragma unroll
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const uint32_t c = min(q.first + i, steps - 1) * 16;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            q.hi[i][k] = split(*reinterpret_cast<const float2 *>(from[k & 1] + c + 8 * (k >> 1)), q.lo[i][k]);
    }
}

__device__ static inline void load_matrices4(unsigned r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
}

__device__ static inline void load_matrices4_transposed(unsigned r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
}

__device__ static inline void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Rows 0-15, columns 0-15 of a tile as the A operand: this lane's address for ldmatrix. */
__device__ static inline uint32_t a_offset(uint32_t lane, uint32_t stride)
{
    return (lane & 15) * stride + (lane >> 4) * 8;
}

/* A part of the dimensions of the scores of 16 heads with half of a tile's positions. */
template <uint32_t PIECE, uint32_t TILE>
__device__ static void scores(const shape &s, const tile_memory<PIECE, TILE> &m, const queries &q,
                              const __nv_bfloat16 *kv, uint32_t warp, uint32_t lane, uint32_t count)
{
    constexpr uint32_t pairs = TILE / 32; // of 8 positions
    const uint32_t stride = row_stride(s), half = warp % 2 * (TILE / 2), g = lane >> 2, t = lane & 3;
    if (half >= count) return;
    float c[pairs][2][4] = {};
    const __nv_bfloat16 *k =
        kv + (half + (lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 8 + q.first * 16;
#pragma unroll
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        if (i >= q.count) break;
#pragma unroll
        for (uint32_t j = 0; j < pairs; j++) {
            unsigned b[4];
            load_matrices4(b, k + j * 16 * stride + i * 16);
            mma(c[j][0], q.hi[i], b[0], b[1]);
            mma(c[j][1], q.hi[i], b[2], b[3]);
            mma(c[j][0], q.lo[i], b[0], b[1]);
            mma(c[j][1], q.lo[i], b[2], b[3]);
        }
    }
    float *out = m.score + (warp / 2 * HEADS + g) * m.s_stride + half + 2 * t;
#pragma unroll
    for (uint32_t j = 0; j < pairs * 2; j++) {
        const float *v = c[j / 2][j % 2];
        *reinterpret_cast<float2 *>(out + j * 8) = make_float2(v[0], v[1]);
        *reinterpret_cast<float2 *>(out + 8 * m.s_stride + j * 8) = make_float2(v[2], v[3]);
    }
}

/* Of head `h`, by a warp; top and sum run through the tiles. */
template <uint32_t PIECE, uint32_t TILE>
__device__ static void softmax(const shape &s, const tile_memory<PIECE, TILE> &m, uint32_t h, uint32_t lane,
                               uint32_t tile, float &top, float &sum)
{
    float score[TILE / 32], best = top, total = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < TILE / 32; i++) {
        const uint32_t p = i * 32 + lane;
        float v = 0.0f;
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) v += m.score[(part * HEADS + h) * m.s_stride + p];
        score[i] = p < tile ? v * s.softmax_scale : -INFINITY;
        best = fmaxf(best, score[i]);
    }
    best = warp_max(best);
    const float fade = expf(top - best);
#pragma unroll
    for (uint32_t i = 0; i < TILE / 32; i++) {
        const float e = expf(score[i] - best);
        total += e;
        split_store(m.p_hi + h * m.p_stride + i * 32 + lane, m.p_lo + h * m.p_stride + i * 32 + lane, e);
    }
    top = best;
    sum = sum * fade + warp_sum(total);
    if (lane == 0) m.fade[h] = fade;
}

#define GROUPS (LATENT_MAX / 8 / WARPS) // of 8 latents that a warp owns

template <uint32_t PIECE, uint32_t TILE>
__device__ static void add_values(const shape &s, const tile_memory<PIECE, TILE> &m, const __nv_bfloat16 *kv,
                                  uint32_t warp, uint32_t lane, uint32_t count, float acc[GROUPS][4])
{
    const uint32_t stride = row_stride(s);
    const float f0 = m.fade[lane >> 2], f1 = m.fade[(lane >> 2) + 8];
#pragma unroll
    for (uint32_t i = 0; i < GROUPS; i++) acc[i][0] *= f0, acc[i][1] *= f0, acc[i][2] *= f1, acc[i][3] *= f1;
#pragma unroll 1
    for (uint32_t k = 0; k < (count + 31) / 32; k++) { // pieces are filled up with zeros to their end
        unsigned ph[2][4], pl[2][4], b[GROUPS][4];
        const __nv_bfloat16 *v = kv + (k * 32 + lane) * stride + warp * 8;
#pragma unroll
        for (uint32_t i = 0; i < GROUPS; i++)
            if ((warp + i * WARPS) * 8 < s.latent) load_matrices4_transposed(b[i], v + i * WARPS * 8);
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            load_matrices4(ph[j], m.p_hi + a_offset(lane, m.p_stride) + k * 32 + 16 * j);
            load_matrices4(pl[j], m.p_lo + a_offset(lane, m.p_stride) + k * 32 + 16 * j);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) // groups that are not there add what nobody stores
#pragma unroll
            for (uint32_t i = 0; i < GROUPS; i++)
                mma(acc[i], j % 2 ? pl[j / 2] : ph[j / 2], b[i][j / 2 * 2], b[i][j / 2 * 2 + 1]);
    }
}

__device__ static void store_sums(const shape &s, const attention_args &a, uint32_t r, uint32_t head0,
                                  float acc[GROUPS][4], float top, float sum)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x;
    const uint32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (uint32_t i = 0; i < GROUPS; i++) {
        const uint32_t c = (warp + i * WARPS) * 8 + 2 * t;
        if (c >= s.latent) break;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t head = head0 + g + 8 * k;
            if (head >= s.heads) continue;
            const size_t at = ((size_t)r * s.heads + head) * ATTENTION_SPLITS + split;
            *reinterpret_cast<float2 *>(a.part + at * s.latent + c) =
                make_float2(acc[i][2 * k], acc[i][2 * k + 1]);
        }
    }
    const uint32_t head = head0 + warp;
    if (head < s.heads && lane == 0)
        reinterpret_cast<float2 *>(a.part_ml)[((size_t)r * s.heads + head) * ATTENTION_SPLITS + split] =
            make_float2(top, sum);
}

/* Which positions a row's split has. */
struct span {
    uint32_t first, end;
    const int32_t *list;
};

__device__ static inline span span_of(const shape &s, const attention_args &a, uint32_t position, uint32_t r)
{
    bool listed;
    const uint32_t n = attended(s, a, position, r, listed), length = split_length(n),
                   first = blockIdx.x * length;
    return {first, min(n, first + length), listed ? a.topk + (size_t)r * s.index_topk : nullptr};
}

template <int DTYPE, uint32_t PIECE, uint32_t TILE> struct walk {
    const uint32_t *pages;
    uint32_t parities; // bit i: of the next arrival of piece i

    __device__ void fetch(const shape &s, const attention_args &a, const tile_memory<PIECE, TILE> &m,
                          const span &p, uint32_t base, uint32_t i)
    {
        if (base >= p.end) return;
        __nv_bfloat16 *piece = m.kv + i * PIECE * row_stride(s);
        if constexpr (DTYPE == KV_BF16)
            fetch_rows<PIECE>(s, a, pages, p.list, base, p.end, piece, m.arrivals + 8 * i);
        else
            widen_rows<DTYPE, PIECE>(s, a, pages, p.list, base, p.end, piece);
    }

    /* Of a piece that has been fetched. */
    __device__ void await(const tile_memory<PIECE, TILE> &m, uint32_t i)
    {
        if constexpr (DTYPE == KV_BF16) arrival_await(m.arrivals + 8 * i, parities >> i & 1);
        parities ^= 1u << i;
    }
};

/* One row; its first pieces are on their way or (not fresh), left by the row behind it, there. */
template <int DTYPE, uint32_t PIECE, uint32_t TILE>
__device__ static void attend(const shape &s, const attention_args &a, const tile_memory<PIECE, TILE> &m,
                              walk<DTYPE, PIECE, TILE> &w, uint32_t r, const span &p, bool fresh)
{
    constexpr uint32_t per = TILE / PIECE; // pieces of a tile
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head0 = blockIdx.y * HEADS;
    queries q;
    load_queries(s, a.qa + (size_t)(a.row0 + r) * s.heads * (s.latent + s.rope), head0, warp / 2, lane, q);
    float top = -INFINITY, sum = 0.0f, acc[GROUPS][4] = {};
    uint32_t first = 0; // piece of the tile
#pragma unroll 1
    for (uint32_t base = p.first; base < p.end; base += TILE) {
        const __nv_bfloat16 *kv = m.kv + first * PIECE * row_stride(s);
        if (fresh)
#pragma unroll
            for (uint32_t i = 0; i < per; i++)
                if (base + i * PIECE < p.end) w.await(m, first + i);
        __syncthreads();
        scores<PIECE, TILE>(s, m, q, kv, warp, lane, min(TILE, p.end - base));
        __syncthreads();
        softmax<PIECE, TILE>(s, m, warp, lane, min(TILE, p.end - base), top, sum);
        __syncthreads();
        add_values<PIECE, TILE>(s, m, kv, warp, lane, min(TILE, p.end - base), acc);
        if (base + PIECES * PIECE < p.end) {
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < per; i++) w.fetch(s, a, m, p, base + (PIECES + i) * PIECE, first + i);
        }
        first = (first + per) % PIECES;
    }
    store_sums(s, a, r, head0, acc, top, sum);
}

/* A block does rows blockIdx.z x per .. + per - 1, the last one first: it sees the most. */
template <int DTYPE, uint32_t PIECE, uint32_t TILE>
__global__ void __launch_bounds__(WARPS * 32)
    attention_tensor_kernel(const __grid_constant__ shape s, const __grid_constant__ attention_args a,
                            uint32_t rows, uint32_t per)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const tile_memory<PIECE, TILE> m(s, shared);
    walk<DTYPE, PIECE, TILE> w = {early_pages(a.j), 0};
    const uint32_t position = early_position(a.j), row0 = blockIdx.z * per, last = min(rows, row0 + per) - 1;
    span held = span_of(s, a, position, last);
    if constexpr (DTYPE == KV_BF16) open_arrivals(m.arrivals);
    // The kernel before may have written the job's own rows, and a list.
    const bool early = DTYPE == KV_BF16 && !held.list;
    bool fresh = true;
#pragma unroll 1
    for (uint32_t r = last + 1; r-- > row0;) {
        const span p = span_of(s, a, position, r);
        if (r != last) {
            fresh = p.first != held.first || p.list || held.list || p.end > held.end ||
                    held.end - held.first > PIECES * PIECE;
            if (fresh) {
                __syncthreads();
                held = p;
            }
        }
        const auto fetch = [&](bool before) {
#pragma unroll 1
            for (uint32_t i = 0; i < PIECES; i++)
                if (before == (early && min(p.end, p.first + (i + 1) * PIECE) <= position))
                    w.fetch(s, a, m, p, p.first + i * PIECE, i);
        };
        if (r == last) {
            fetch(true);
            pdl_wait();
            pdl_trigger();
            fetch(false);
        } else if (fresh) {
#pragma unroll 1
            for (uint32_t i = 0; i < PIECES; i++) w.fetch(s, a, m, p, p.first + i * PIECE, i);
        }
        if (p.first < p.end) attend<DTYPE, PIECE, TILE>(s, a, m, w, r, p, fresh);
    }
}

/* Large where a block has the shared memory of a data centre's card, small where it has a consumer card's. */
struct variant {
    void (*kernel)(shape, attention_args, uint32_t, uint32_t);
    size_t shared;
};

template <uint32_t PIECE, uint32_t TILE> static variant variant_of(const shape &s, enum kv_dtype dtype)
{
    return {dtype == KV_BF16 ? attention_tensor_kernel<KV_BF16, PIECE, TILE>
                             : attention_tensor_kernel<KV_FP8, PIECE, TILE>,
            tile_memory<PIECE, TILE>::bytes(s)};
}

bool attention_tensor_serves(const shape &s, enum kv_dtype dtype, size_t shared_limit)
{
    return dtype != KV_F32 && (s.latent + s.rope) % 16 == 0 && s.latent % 8 == 0 &&
           s.latent + s.rope <= PARTS * STEPS_MAX * 16 && variant_of<32, 32>(s, dtype).shared <= shared_limit;
}

static variant chosen;

cudaError_t attention_tensor_open(const shape &s, enum kv_dtype dtype, size_t shared_limit)
{
    chosen = variant_of<64, 128>(s, dtype);
    if (chosen.shared > shared_limit) chosen = variant_of<32, 32>(s, dtype);
    return cudaFuncSetAttribute((const void *)chosen.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)chosen.shared);
}

cudaError_t attention_tensor_launch(const shape &s, enum kv_dtype, const attention_args &a, uint32_t rows,
                                    cudaStream_t stream)
{
    const uint32_t per = a.topk ? 1 : rows < ROWS_MAX ? rows : ROWS_MAX;
    return gpu_launch(chosen.kernel, dim3(ATTENTION_SPLITS, div_up(s.heads, HEADS), div_up(rows, per)),
                      WARPS * 32, chosen.shared, stream, s, a, rows, per);
}
