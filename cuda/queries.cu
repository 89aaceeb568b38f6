/* queries.cu: from the q latent to absorbed queries in one launch.
 *
 * A block has a head and up to four rows. It finishes the latent's norm itself (a factor behind the sums),
 * multiplies with the head's rows of q_b, ropes the second part, and multiplies the first with the head's
 * keys, whose tiles come behind those of q_b in one stream: two of a warp are always on their way, but one
 * before the latents are there. Loads are served in order: with more of them ahead the latents, which all
 * wait for, come later, and so do the last tiles of the launch before. The last blocks write the rows' KV. */
#include "cuda/latent.cuh"
#include "cuda/tile.cuh"

#define WARPS 16u
#define SUBS 4u // warps that share a strip of q_b
#define GROUPS (WARPS / SUBS)
#define ROWS 4u         // of a block
#define RANK_BLOCKS 12u // of 128 values of the q latent
#define NOPE 128u
#define AHEAD 2    // tiles of a warp that are under way, the second once the latents are there
#define STRIPS 16u // of a head's rows of q_b
#define TURNS 2    // rotary pairs of a lane

static_assert(LATENT_MAX / 16 <= AHEAD * WARPS, "a warp's keys are in its registers");
static_assert(RANK_BLOCKS <= WARPS, "a warp for each block of the latent");
static_assert(STRIPS * 16 - NOPE <= TURNS * 64, "a warp's lanes hold a row's rotary pairs");

struct queries_args {
    latent_args l;
    matrix q_b, keys;
    float *qa;
    uint32_t rows;
};

struct queries_memory {
    __align__(16) __half latent[ROWS * RANK_BLOCKS * 256];
    float latent_scale[ROWS * RANK_BLOCKS], squares[ROWS][RANK_BLOCKS], factors[ROWS];
    float sums[SUBS][STRIPS * 16][ROWS];
    __align__(16) float q[ROWS][STRIPS * 16];
    __align__(16) __half first[ROWS * 256];
    float first_scale[ROWS];
};

/* The rows' latents x norm weight in the form of a product, and the sums of their squares: a warp per block
 * of 128, whose weights `norm` it has. */
__device__ static inline vec load_latents(const shape &s, const latent_args &a, float4 norm, uint32_t row0,
                                          uint32_t live, queries_memory &m)
{
    const uint32_t b = threadIdx.x >> 5, lane = threadIdx.x & 31;
    vec x = {};
    x.blocks = s.q_rank / 128;
    x.h = m.latent;
    x.hs = m.latent_scale;
    if (b >= x.blocks) return x;
    float4 v[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < live) v[r] = load_block(a.a + (size_t)(row0 + r) * a.a_stride, s.q_rank, b, lane);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        if (r >= live) break;
        const float4 q = v[r];
        const float sum = warp_sum(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
        if (lane == 0) m.squares[r][b] = sum;
        vec_store(x, r, b, lane, make_float4(q.x * norm.x, q.y * norm.y, q.z * norm.z, q.w * norm.w));
    }
    return x;
}

/* Where a warp is in the stream of its tiles: of q_b, every SUBS-th of every GROUPS-th strip of the head,
 * then the head's keys, a tile a strip. */
struct tiles {
    const uint8_t *data;
    const float *scale;
    uint32_t strip, k; // of q_b
    uint32_t keys;     // next strip of the keys

    __device__ tiles(const queries_args &a, uint32_t head, uint32_t strips)
    {
        const uint32_t warp = threadIdx.x >> 5;
        strip = warp / SUBS;
        k = warp % SUBS;
        keys = warp;
        const size_t at = (size_t)(head * strips + strip) * a.q_b.ktiles + k;
        data = a.q_b.data + at * 2048 + (threadIdx.x & 31) * 16;
        scale = a.q_b.scales + at;
    }

    /* The tile here, if there is one; steps to the next. */
    __device__ void load(const shape &s, const queries_args &a, uint32_t head, uint32_t strips, uint4 w[4],
                         float &f)
    {
        if (strip < strips) {
            load_tile(data, w);
            f = __ldg(scale);
            uint32_t step = SUBS;
            k += SUBS;
            if (k >= a.q_b.ktiles) {
                const uint32_t sub = threadIdx.x / 32 % SUBS;
                step = GROUPS * a.q_b.ktiles + sub + SUBS - k;
                k = sub;
                strip += GROUPS;
            }
            data += (size_t)step * 2048;
            scale += step;
        } else if (keys < s.latent / 16) {
            const size_t at = (size_t)head * (s.latent / 16) + keys;
            load_tile(a.keys.data + at * 2048 + (threadIdx.x & 31) * 16, w);
            f = __ldg(a.keys.scales + at);
            keys += WARPS;
        }
    }
};

/* The blocks behind the heads': one writes the rows' latents, one the keys of their indexer. */
__device__ static inline void write_kv(const shape &s, const latent_args &a, bool latents, uint32_t row0,
                                       uint32_t live)
{
    __shared__ float scratch[33];
    __shared__ __align__(16) float key[256];
    const uint32_t position = early_position(a.j);
    const uint32_t *pages = early_pages(a.j);
    pdl_wait();
    pdl_trigger();
    for (uint32_t r = row0; r < row0 + live; r++)
        if (latents)
            kv_latent(s, a, r, kv_row(s, pages, a.layer, position + r), scratch);
        else
            index_key(s, a, r, kv_index(s, pages, a.layer, position + r), scratch, key);
}

/* q of all rows: the sums of the warps that share a strip, and the norm. */
__device__ static inline void finish_q(uint32_t outputs, uint32_t live, queries_memory &m)
{
    for (uint32_t r = threadIdx.x / (STRIPS * 16), o = threadIdx.x % (STRIPS * 16); r < live;
         r += WARPS * 32 / (STRIPS * 16)) {
        if (o >= outputs) break;
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < SUBS; j++) sum += m.sums[j][o][r];
        m.q[r][o] = sum * m.factors[r];
    }
}

/* The second part of row r's q, turned; a lane has the angles of its pairs. */
__device__ static inline void write_rotary(uint32_t pairs, const float *q, const float2 turn[TURNS],
                                           float *out)
{
    const float2 *from = reinterpret_cast<const float2 *>(q);
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++) {
        const uint32_t p = (threadIdx.x & 31) + i * 32;
        if (p < pairs) reinterpret_cast<float2 *>(out)[p] = rotate(from[p].x, from[p].y, turn[i]);
    }
}

__global__ void __launch_bounds__(WARPS * 32, 1)
    queries_kernel(const __grid_constant__ shape s, const __grid_constant__ queries_args a)
{
    __shared__ queries_memory m;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t row0 = blockIdx.y * ROWS, live = min(ROWS, a.rows - row0), head = blockIdx.x;
    if (head >= s.heads) {
        write_kv(s, a.l, head == s.heads, row0, live);
        return;
    }
    const uint32_t strips = (s.nope + s.rope) / 16, sub = warp % SUBS, width = s.latent + s.rope;
    tiles from(a, head, strips);
    uint4 w[AHEAD][4];
    float scale[AHEAD];
    const float4 norm = load_block(a.l.q_norm, s.q_rank, warp, lane);
    from.load(s, a, head, strips, w[0], scale[0]);
    const auto advance = [&] {
#pragma unroll
        for (int i = 0; i + 1 < AHEAD; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) w[i][j] = w[i + 1][j];
            scale[i] = scale[i + 1];
        }
        from.load(s, a, head, strips, w[AHEAD - 1], scale[AHEAD - 1]);
    };
    pdl_wait();
    pdl_trigger();
    float2 turn[TURNS]; // of row warp - ROWS
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++)
        if (warp >= ROWS && warp < ROWS + live && lane + i * 32 < s.rope / 2)
            turn[i] = a.l.rope[(size_t)(row0 + warp - ROWS) * (s.rope / 2) + lane + i * 32];
    const vec x = load_latents(s, a.l, norm, row0, live, m);
    __syncthreads();
    from.load(s, a, head, strips, w[1], scale[1]);
    if (warp < live) {
        const float sum = warp_sum(lane < x.blocks ? m.squares[warp][lane] : 0.0f);
        if (lane == 0) m.factors[warp] = rsqrtf(sum / (float)s.q_rank + MLA_EPS);
    }
#pragma unroll 1
    for (uint32_t strip = warp / SUBS; strip < strips; strip += GROUPS) {
        float total[1][4] = {};
#pragma unroll 1
        for (uint32_t k = sub; k < a.q_b.ktiles; k += SUBS) {
            tile<MATRIX_FP8, 1>(x, w[0], 0, live, k, scale[0], total);
            advance();
        }
        m.sums[sub][strip * 16 + g][t] = total[0][0];
        m.sums[sub][strip * 16 + g + 8][t] = total[0][1];
    }
    __syncthreads();
    finish_q(strips * 16, live, m);
    __syncthreads();
    vec first = {};
    first.blocks = 1;
    first.h = m.first;
    first.hs = m.first_scale;
    float *qa = a.qa + ((size_t)row0 * s.heads + head) * width;
    const size_t stride = (size_t)s.heads * width;
    if (warp < live) {
        vec_store(first, warp, 0, lane, load_block(m.q[warp], NOPE, 0, lane));
    } else if (warp >= ROWS && warp < ROWS + live) {
        const uint32_t r = warp - ROWS;
        write_rotary(s.rope / 2, m.q[r] + NOPE, turn, qa + r * stride + s.latent);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) { // all of a warp's keys have come
        const uint32_t strip = warp + i * WARPS;
        if (strip >= s.latent / 16) break;
        float total[1][4] = {};
        tile<MATRIX_FP8, 1>(first, w[i], 0, live, 0, scale[i], total);
        if (t < live) {
            qa[t * stride + strip * 16 + g] = total[0][0];
            qa[t * stride + strip * 16 + g + 8] = total[0][1];
        }
    }
}

cudaError_t queries_open()
{
    return gpu_share((const void *)queries_kernel);
}

bool queries_serve(const shape &s, const matrix &q_b, const matrix &keys)
{
    return q_b.type == MATRIX_FP8 && keys.type == MATRIX_FP8 && s.nope == NOPE && s.rope % 16 == 0 &&
           s.nope + s.rope <= STRIPS * 16 && s.latent % 16 == 0 && s.q_rank % 128 == 0 &&
           s.q_rank >= SUBS * 128 && s.q_rank <= RANK_BLOCKS * 128;
}

cudaError_t launch_queries(const shape &s, const latent_args &a, const matrix &q_b, const matrix &keys,
                           float *qa, uint32_t rows, cudaStream_t stream)
{
    const queries_args k = {a, q_b, keys, qa, rows};
    return gpu_launch(queries_kernel, dim3(s.heads + (a.k_norm ? 2 : 1), div_up(rows, ROWS)), WARPS * 32, 0,
                      stream, s, k);
}
