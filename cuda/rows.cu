/* rows.cu: what happens to single rows between the products: norms, rotary positions, writing of the KV. */
#include "cuda/cluster.cuh"
#include "cuda/latent.cuh"

__global__ void begin_kernel(shape s, const control *c, job *out, const float *inv_freq, float2 *rope,
                             const float *embed, float *h)
{
    pdl_wait();
    pdl_trigger();
    const uint32_t r = blockIdx.x;
    if (r == 0 && threadIdx.x == 0) *out = c->next;
    const float position = (float)(c->next.position + r);
    for (uint32_t i = threadIdx.x; i < s.rope / 2; i += blockDim.x) {
        float angle = position * inv_freq[i], si, co;
        sincosf(angle, &si, &co);
        rope[r * (s.rope / 2) + i] = make_float2(co * s.rope_factor, si * s.rope_factor);
    }
    if (embed)
        for (uint32_t i = threadIdx.x * 4; i < s.hidden; i += blockDim.x * 4)
            *reinterpret_cast<float4 *>(h + (size_t)r * s.hidden + i) =
                __ldcv(reinterpret_cast<const float4 *>(embed + (size_t)r * s.hidden + i));
}

cudaError_t launch_begin(const shape &s, const control *c, job *j, const float *inv_freq, float2 *rope,
                         const float *embed, float *h, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(begin_kernel, dim3(rows), 512, 0, stream, s, c, j, inv_freq, rope, embed, h);
}

__device__ static inline uint32_t load_flag(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* One thread waits for the host; never longer than the job's deadline, never after an abort. */
__device__ static void await_result(control *c, const job *j, uint32_t wanted, uint32_t step)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while ((int32_t)(load_flag(&c->resume) - wanted) < 0) {
        if (load_flag(&c->abort)) return;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start > (uint64_t)j->deadline_s * 1000000000u) {
            *(volatile uint32_t *)&c->fault = 1 + step;
            return;
        }
    }
}

/* A block per row; a warp owns blocks warp, warp + 32, ... of the row. */
__global__ void __launch_bounds__(1024)
    norm_kernel(const __grid_constant__ shape s, const __grid_constant__ norm_args a)
{
    __shared__ float scratch[33];
    const uint32_t r = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t blocks = (s.hidden + 127) / 128, warps = blockDim.x >> 5;
    float4 v[HIDDEN_MAX / 128 / 32], w[HIDDEN_MAX / 128 / 32];
#pragma unroll
    for (uint32_t i = 0; i < HIDDEN_MAX / 128 / 32; i++)
        if (warp + i * warps < blocks) w[i] = load_block(a.weight, s.hidden, warp + i * warps, lane);
    pdl_wait();
    if (a.y) {
        if (threadIdx.x == 0) await_result(a.c, a.j, a.j->resume_base + a.step, a.step);
        __syncthreads();
    }
    pdl_trigger();
    float *h = a.h + (size_t)r * s.hidden;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < HIDDEN_MAX / 128 / 32; i++) {
        const uint32_t b = warp + i * warps;
        v[i] = make_float4(0, 0, 0, 0);
        if (b >= blocks) continue;
        v[i] = load_block(h, s.hidden, b, lane);
        const uint32_t at = b * 128 + lane * 4;
        if (a.y && at < s.hidden) {
            float4 y = __ldcv(reinterpret_cast<const float4 *>(a.y + (size_t)r * s.hidden + at));
            v[i].x += y.x, v[i].y += y.y, v[i].z += y.z, v[i].w += y.w;
            *reinterpret_cast<float4 *>(h + at) = v[i];
        }
        sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    const float f = rsqrtf(block_sum(sum, scratch) / (float)s.hidden + a.eps);
#pragma unroll
    for (uint32_t i = 0; i < HIDDEN_MAX / 128 / 32; i++) {
        const uint32_t b = warp + i * warps, at = b * 128 + lane * 4;
        if (b >= blocks) continue;
        float4 x =
            make_float4(v[i].x * f * w[i].x, v[i].y * f * w[i].y, v[i].z * f * w[i].z, v[i].w * f * w[i].w);
        vec_store(a.x, r, b, lane, x);
        if (at >= s.hidden) continue;
        if (a.x_host) *reinterpret_cast<float4 *>(a.x_host + (size_t)r * s.hidden + at) = x;
        if (a.ring)
            *reinterpret_cast<float4 *>(a.j->ring +
                                        (size_t)((a.j->position + r) & a.j->ring_mask) * s.hidden + at) = x;
    }
}

cudaError_t launch_norm(const shape &s, const norm_args &a, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(norm_kernel, dim3(rows), 1024, 0, stream, s, a);
}

#define WEIGH_BLOCKS 8u

#define WEIGH_ROWS 4u // done beside each other

/* A warp per 128 values of every row, eight blocks as one cluster: the word in host memory is polled by one
 * thread only (reads of one such word follow each other at 1 us each, whoever asks), the answer is fetched by
 * all. An answer means that the kernel that asked for it is through with h, so that its end need not be
 * waited for before, unless a shared expert is added to h meanwhile. */
__global__ void __launch_bounds__(HIDDEN_MAX / 128 / WEIGH_BLOCKS * 32)
    weigh_kernel(const __grid_constant__ shape s, const __grid_constant__ norm_args a, uint32_t rows)
{
    const uint32_t b = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    const uint32_t at = b * 128 + lane * 4;
    const bool in = at < s.hidden;
    const float4 w = load_block(a.weight, s.hidden, b, lane), zero = make_float4(0, 0, 0, 0);
    if (!a.y || a.changed) pdl_wait();
    for (uint32_t row0 = 0; row0 < rows; row0 += WEIGH_ROWS) {
        float4 v[WEIGH_ROWS], y[WEIGH_ROWS];
#pragma unroll
        for (uint32_t i = 0; i < WEIGH_ROWS; i++)
            v[i] = in && row0 + i < rows
                       ? __ldcg(reinterpret_cast<const float4 *>(a.h + (size_t)(row0 + i) * s.hidden + at))
                       : zero;
        if (a.y && row0 == 0) {
            if (blockIdx.x == 0 && threadIdx.x == 0)
                await_result(a.c, a.j, __ldcg(&a.j->resume_base) + a.step, a.step);
            cluster_barrier();
        }
#pragma unroll
        for (uint32_t i = 0; i < WEIGH_ROWS; i++)
            y[i] = a.y && in && row0 + i < rows
                       ? __ldcv(reinterpret_cast<const float4 *>(a.y + (size_t)(row0 + i) * s.hidden + at))
                       : zero;
        if (row0 == 0) pdl_trigger();
        if (b >= a.x.blocks) continue;
#pragma unroll
        for (uint32_t i = 0; i < WEIGH_ROWS; i++) {
            const uint32_t r = row0 + i;
            if (r >= rows) break;
            const float4 h = make_float4(v[i].x + y[i].x, v[i].y + y[i].y, v[i].z + y[i].z, v[i].w + y[i].w);
            if (a.y && in) *reinterpret_cast<float4 *>(a.h + (size_t)r * s.hidden + at) = h;
            const float sum = warp_sum(h.x * h.x + h.y * h.y + h.z * h.z + h.w * h.w);
            if (lane == 0) a.x.squares[(size_t)r * a.x.blocks + b] = sum;
            vec_store(a.x, r, b, lane, make_float4(h.x * w.x, h.y * w.y, h.z * w.z, h.w * w.w));
        }
    }
    pdl_wait(); // for those behind: whoever has waited for this kernel has waited for all before it
}

cudaError_t launch_weigh(const shape &s, const norm_args &a, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch_clusters(weigh_kernel, dim3(WEIGH_BLOCKS), div_up(a.x.blocks, WEIGH_BLOCKS) * 32,
                               WEIGH_BLOCKS, stream, s, a, rows);
}

__global__ void __launch_bounds__(1024)
    mtp_input_kernel(shape s, const job *j, const float *embed, const float *enorm, const float *hnorm, vec x)
{
    __shared__ float scratch[33];
    const uint32_t r = blockIdx.x, half = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t blocks = (s.hidden + 127) / 128, warps = blockDim.x >> 5;
    pdl_wait();
    pdl_trigger();
    const float *in =
        half ? j->ring + (size_t)((j->position + r) & j->ring_mask) * s.hidden : embed + (size_t)r * s.hidden;
    const float *weight = half ? hnorm : enorm;
    float sum = 0.0f;
    for (uint32_t b = warp; b < blocks; b += warps) {
        float4 v = load_block(in, s.hidden, b, lane);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float f = rsqrtf(block_sum(sum, scratch) / (float)s.hidden + s.eps);
    // The two halves lie behind each other without padding: a block may hold the end of one and the start of
    // the other, so the shared vector is written in plain fp32 and packed by the next launch.
    for (uint32_t i = threadIdx.x; i < s.hidden; i += blockDim.x)
        x.f32[(size_t)r * x.blocks * 128 + half * s.hidden + i] = in[i] * f * weight[i];
}

cudaError_t launch_mtp_input(const shape &s, const job *j, const float *embed, const float *enorm,
                             const float *hnorm, vec x, uint32_t rows, cudaStream_t stream)
{
    cudaError_t e =
        gpu_launch(mtp_input_kernel, dim3(rows, 2), 1024, 0, stream, s, j, embed, enorm, hnorm, x);
    if (e) return e;
    return launch_pack(x.f32, nullptr, 2 * s.hidden, x.blocks * 128, x, rows, stream);
}

__global__ void __launch_bounds__(256)
    latent_kernel(const __grid_constant__ shape s, const __grid_constant__ latent_args a)
{
    __shared__ float scratch[33];
    __shared__ __align__(16) float key[256];
    const uint32_t r = blockIdx.y, position = early_position(a.j) + r;
    const uint32_t *pages = early_pages(a.j);
    uint8_t *row =
        blockIdx.x == 2 ? kv_index(s, pages, a.layer, position) : kv_row(s, pages, a.layer, position);
    pdl_wait();
    pdl_trigger();
    if (blockIdx.x == 0)
        latent_norm(a.a + (size_t)r * a.a_stride, a.q_norm, s.q_rank, scratch,
                    [&](uint32_t b, float4 v) { vec_store(a.q, r, b, threadIdx.x & 31, v); });
    if (blockIdx.x == 1) kv_latent(s, a, r, row, scratch);
    if (blockIdx.x == 2) index_key(s, a, r, row, scratch, key);
}

cudaError_t launch_latent(const shape &s, const latent_args &a, bool kv, uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(latent_kernel, dim3(!kv ? 1 : a.k_norm ? 3 : 2, rows), 256, 0, stream, s, a);
}

/* A head's query as half floats, roped; a warp. */
__device__ static inline void wide_query(const shape &s, const query_args &a, const float *q,
                                         const float2 *cs, uint32_t r, uint32_t head)
{
    const uint32_t lane = threadIdx.x & 31, rope = s.rope / 2;
    __half2 *out = reinterpret_cast<__half2 *>(a.wide + ((size_t)r * s.heads + head) * a.wide_stride);
    for (uint32_t i = lane; i < a.wide_stride / 2; i += 32) {
        float2 p = make_float2(0.0f, 0.0f);
        if (i < s.nope / 2 + rope) p = make_float2(q[2 * i], q[2 * i + 1]);
        if (i >= s.nope / 2 && i < s.nope / 2 + rope) p = rotate(p.x, p.y, cs[i - s.nope / 2]);
        out[i] = __float22half2_rn(p);
    }
}

/* A warp per head; heads of the indexer behind those of the attention. */
__global__ void __launch_bounds__(128)
    query_kernel(const __grid_constant__ shape s, const __grid_constant__ query_args a)
{
    const uint32_t r = blockIdx.y, lane = threadIdx.x & 31, half = s.rope / 2;
    uint32_t head = blockIdx.x * 4 + (threadIdx.x >> 5);
    pdl_wait();
    pdl_trigger();
    const float2 *cs = a.rope + (size_t)r * half;
    if (a.wide) {
        if (head < s.heads) {
            wide_query(s, a, a.q + ((size_t)r * s.heads + head) * (s.nope + s.rope), cs, r, head);
            return;
        }
        head -= s.heads;
    }
    if (!a.iq || head >= s.index_heads) return;
    float *q = a.iq + ((size_t)r * s.index_heads + head) * s.index_dim;
    for (uint32_t i = lane; i < half; i += 32) {
        float2 p = rotate(q[i], q[half + i], cs[i]);
        q[i] = p.x;
        q[half + i] = p.y;
    }
    if (lane == 0) a.iw[(size_t)r * s.index_heads + head] *= s.index_scale;
}

cudaError_t launch_query(const shape &s, const query_args &a, uint32_t rows, cudaStream_t stream)
{
    const uint32_t warps = (a.wide ? s.heads : 0) + (a.iq ? s.index_heads : 0);
    return gpu_launch(query_kernel, dim3(div_up(warps, 4), rows), 128, 0, stream, s, a);
}

__global__ void __launch_bounds__(128)
    pack_kernel(const float *x, const float *up, uint32_t n, uint32_t stride, vec v)
{
    const uint32_t b = blockIdx.x * 4 + (threadIdx.x >> 5), r = blockIdx.y, lane = threadIdx.x & 31;
    pdl_wait();
    pdl_trigger();
    if (b >= v.blocks) return;
    float4 q = load_block(x + (size_t)r * stride, n, b, lane);
    if (up) {
        float4 u = load_block(up + (size_t)r * stride, n, b, lane);
        q = make_float4(silu(q.x) * u.x, silu(q.y) * u.y, silu(q.z) * u.z, silu(q.w) * u.w);
    }
    vec_store(v, r, b, lane, q);
}

cudaError_t launch_pack(const float *x, const float *up, uint32_t n, uint32_t stride, vec v, uint32_t rows,
                        cudaStream_t stream)
{
    return gpu_launch(pack_kernel, dim3(div_up(v.blocks, 4), rows), 128, 0, stream, x, up, n, stride, v);
}

/* A block per row. */
__global__ void __launch_bounds__(1024)
    pack_rows_kernel(const float *x, const float *up, uint32_t n, vec v, float *scale)
{
    __shared__ float tops[33];
    const uint32_t r = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    pdl_wait();
    pdl_trigger();
    x += (size_t)r * n;
    up += (size_t)r * n;
    float top = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, fabsf(silu(x[i]) * up[i]));
    top = warp_max(top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    if (warp == 0) {
        top = warp_max(lane < warps ? tops[lane] : 0.0f);
        if (lane == 0) tops[32] = top;
    }
    __syncthreads();
    const unsigned bits = (__float_as_uint(tops[32]) >> 23) & 255, exponent = bits < 15 ? 15 : bits;
    const float down = __uint_as_float((268 - exponent) << 23); // brings the largest into [2^14, 2^15)
    if (threadIdx.x == 0) scale[r] = __uint_as_float((exponent - 14) << 23);
    for (uint32_t b = warp; b < v.blocks; b += warps) {
        const float4 q = load_block(x, n, b, lane), u = load_block(up, n, b, lane);
        vec_store(v, r, b, lane,
                  make_float4(silu(q.x) * u.x * down, silu(q.y) * u.y * down, silu(q.z) * u.z * down,
                              silu(q.w) * u.w * down));
    }
}

cudaError_t launch_pack_rows(const float *x, const float *up, uint32_t n, vec v, float *scale, uint32_t rows,
                             cudaStream_t stream)
{
    return gpu_launch(pack_rows_kernel, dim3(rows), 1024, 0, stream, x, up, n, v, scale);
}

__global__ void __launch_bounds__(256)
    add_rows_kernel(float *h, const float *y, const float *scale, uint32_t n)
{
    const size_t at = (size_t)blockIdx.y * n;
    pdl_wait();
    pdl_trigger();
    const float f = scale[blockIdx.y];
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        h[at + i] = fmaf(y[at + i], f, h[at + i]);
}

cudaError_t launch_add_rows(float *h, const float *y, const float *scale, uint32_t n, uint32_t rows,
                            cudaStream_t stream)
{
    return gpu_launch(add_rows_kernel, dim3(div_up(n, 1024), rows), 256, 0, stream, h, y, scale, n);
}

cudaError_t rows_open()
{
    const void *const kernels[] = {(const void *)norm_kernel, (const void *)weigh_kernel,
                                   (const void *)latent_kernel, (const void *)query_kernel,
                                   (const void *)pack_kernel};
    for (const void *kernel : kernels) {
        cudaError_t e = gpu_share(kernel);
        if (e) return e;
    }
    return cudaSuccess;
}
