/* backend_plan.cu: what of the backend takes how much of the device's memory; counted first, then allocated.
 */
#include "cuda/backend.cuh"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE_BYTES ((size_t)512 << 20) // left to the driver, graphs and others
#define RING_BYTES ((size_t)1 << 30)      // at most for the sequences' recent hidden states
#define SEQUENCES 64u
#define KV_SEQUENCES 8u // the KV never takes more than so many sequences of full length

struct plan {
    size_t free_bytes, total_bytes, lane_bytes, ring_bytes, table_bytes, kv_bytes, room; // room: for the KV
    size_t shared_limit; // of shared memory that a block may have
    char device[256], shared[96];
};

static void size_lanes(struct cuda_backend *c, const struct backend_options *o, struct plan *p)
{
    for (uint32_t i = 0; i < c->lanes; i++) {
        struct lane *l = &c->lane[i];
        l->m = &c->m;
        l->s = c->m.s;
        l->big.on = c->prefill;
        l->z = {o->max_tokens, (c->max_positions + 3) / 4 * 4, c->vocab, c->dtype};
        p->lane_bytes = lane_layout(l, nullptr);
    }
}

/* Rows of recent hidden states, tables of pages; the KV gets what is left. */
static void size_sequences(struct cuda_backend *c, const struct backend_options *o, struct plan *p)
{
    struct sequences *q = &c->q;
    c->kv = kv_layout_make(c->m.s, c->m.count, c->dtype);
    q->layers = c->m.count;
    q->max_positions = c->max_positions;
    q->max_pages = div_up(c->max_positions, KV_PAGE);
    q->ring_rows = 16;
    while (q->ring_rows < 2 * o->max_tokens + 16) q->ring_rows *= 2;
    const size_t ring = c->m.mtp ? (size_t)q->ring_rows * c->m.s.hidden * sizeof(float) : 0;
    q->count = SEQUENCES;
    while (q->count > 4 && ring * q->count > RING_BYTES) q->count /= 2;
    p->ring_bytes = ring * q->count;
    p->table_bytes = (size_t)q->count * q->max_pages * sizeof(uint32_t);
    const size_t fixed =
        c->m.bytes + c->lanes * p->lane_bytes + p->ring_bytes + p->table_bytes + RESERVE_BYTES;
    const size_t most = (size_t)KV_SEQUENCES * q->max_pages;
    p->room = p->free_bytes > fixed ? p->free_bytes - fixed : 0;
    q->page_count = (uint32_t)(p->room / c->kv.page_bytes < most ? p->room / c->kv.page_bytes : most);
    p->kv_bytes = (size_t)q->page_count * c->kv.page_bytes;
}

/* What the notice says of shared experts. */
static void describe_shared(const struct cuda_backend *c, const struct backend_options *o, struct plan *p)
{
    if (!o->model->config.shared_experts) return;
    if (c->m.shared)
        snprintf(p->shared, sizeof p->shared, " (shared experts %.2f)", (double)c->m.shared_bytes / 1e9);
    else
        snprintf(p->shared, sizeof p->shared, " (shared experts are the flock's%s)",
                 o->shared == SHARED_AUTO ? ": no room for them and a text of full length" : "");
}

static int say_plan(const struct cuda_backend *c, const struct plan *p, struct error *err)
{
    const double G = 1e9;
    if (c->q.page_count < c->lanes || c->q.page_count == 0)
        return gpu_host->error_set(
            err, -ENOMEM,
            "%s: %.2f GB free of %.2f; weights %.2f%s, %u lanes %.2f, sequences %.2f, reserve %.2f "
            "leave %.2f GB for the KV cache, a page takes %.4f",
            p->device, (double)p->free_bytes / G, (double)p->total_bytes / G, (double)c->m.bytes / G,
            p->shared, c->lanes, (double)(c->lanes * p->lane_bytes) / G,
            (double)(p->ring_bytes + p->table_bytes) / G, (double)RESERVE_BYTES / G, (double)p->room / G,
            (double)c->kv.page_bytes / G);
    gpu_host->log_notice(
        "%s: %.2f of %.2f GB free; weights %.2f%s, %u lanes %.2f, sequences %.2f, KV %.2f GB = %u "
        "positions%s",
        p->device, (double)p->free_bytes / G, (double)p->total_bytes / G, (double)c->m.bytes / G, p->shared,
        c->lanes, (double)(c->lanes * p->lane_bytes) / G, (double)(p->ring_bytes + p->table_bytes) / G,
        (double)p->kv_bytes / G, c->q.page_count * KV_PAGE,
        c->q.page_count < c->q.max_pages ? " (less than one sequence of full length)" : "");
    return 0;
}

static int describe_device(struct plan *p, struct error *err)
{
    int device, limit;
    cudaDeviceProp d;
    GPU_TRY(cudaGetDevice(&device));
    GPU_TRY(cudaGetDeviceProperties(&d, device));
    GPU_TRY(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (d.major < 9)
        return gpu_host->error_set(err, -ENOTSUP,
                                   "%s has compute capability %d.%d, this build needs 9.0 or later", d.name,
                                   d.major, d.minor);
    p->shared_limit = (size_t)limit;
    memcpy(p->device, d.name, sizeof p->device);
    GPU_TRY(cudaMemGetInfo(&p->free_bytes, &p->total_bytes));
    return 0;
}

static int allocate(struct cuda_backend *c, const struct plan *p, struct error *err)
{
    GPU_TRY(cudaMalloc((void **)&c->kv_memory, p->kv_bytes));
    GPU_TRY(cudaMalloc((void **)&c->lane_memory, c->lanes * p->lane_bytes));
    GPU_TRY(cudaMalloc((void **)&c->q.tables, p->table_bytes));
    if (p->ring_bytes) GPU_TRY(cudaMalloc((void **)&c->q.rings, p->ring_bytes));
    if (p->ring_bytes) GPU_TRY(cudaMemset(c->q.rings, 0, p->ring_bytes));
    c->kv.base = c->kv_memory;
    c->bytes = c->m.bytes + p->kv_bytes + c->lanes * p->lane_bytes + p->table_bytes + p->ring_bytes;
    shape s = c->m.s;
    s.kv = c->kv;
    return sequences_open(&c->q, s, err);
}

/* Without cuBLAS or for shapes it does not serve, large jobs run as small ones do: right, but slower. So do
 * they over an fp32 cache, which is for those who want the decode kernels' precision. */
static bool choose_prefill(const shape *s, enum kv_dtype dtype, size_t shared_limit)
{
    struct error why;
    if (gpu_off("DUCKD_CUDA_PREFILL") || dtype == KV_F32) return false;
    if (!flash_serves(*s, shared_limit)) {
        gpu_host->log_notice(
            "CUDA: prompts run row by row: heads of %u + %u and %u values do not fit the prefill "
            "kernel (192 and 128)",
            s->nope, s->rope, s->v);
        return false;
    }
    if (blas_load(&why)) {
        gpu_host->log_notice("CUDA: prompts run row by row, without cuBLAS: %s", why.text);
        return false;
    }
    return true;
}

static int plan_memory(struct cuda_backend *c, const struct backend_options *o, struct plan *p, bool shared,
                       struct error *err)
{
    const int rc = gpu_model_plan(&c->m, o->model, o->mtp, shared, err);
    if (rc) return rc;
    c->prefill = o->max_tokens > PREFILL_ROWS && choose_prefill(&c->m.s, c->dtype, p->shared_limit);
    size_lanes(c, o, p);
    size_sequences(c, o, p);
    return 0;
}

/* Shared experts go where there is room for them beside a sequence of full length, unless one insists. */
static int make_plan(struct cuda_backend *c, const struct backend_options *o, struct plan *p,
                     struct error *err)
{
    int rc = plan_memory(c, o, p, o->shared != SHARED_FLOCK, err);
    if (!rc && c->m.shared && o->shared == SHARED_AUTO && c->q.page_count < c->q.max_pages) {
        gpu_model_close(&c->m);
        rc = plan_memory(c, o, p, false, err);
    }
    if (rc) return rc;
    describe_shared(c, o, p);
    return say_plan(c, p, err);
}

int backend_place(struct cuda_backend *c, const struct backend_options *o, struct error *err)
{
    struct plan p = {};
    c->lane = (struct lane *)calloc(c->lanes, sizeof *c->lane);
    c->job = (struct lane_job *)calloc(c->lanes, sizeof *c->job);
    if (!c->lane || !c->job) return gpu_host->error_set(err, -ENOMEM, "no memory for %u lanes", c->lanes);
    int rc = describe_device(&p, err);
    if (!rc) rc = make_plan(c, o, &p, err);
    if (!rc) rc = gpu_model_load(&c->m, o->model, err);
    if (!rc) rc = allocate(c, &p, err);
    if (rc) return rc;
    GPU_TRY(attention_open(c->m.s, c->dtype, p.shared_limit));
    if (c->prefill) GPU_TRY(flash_open());
    for (uint32_t i = 0; i < c->lanes && !rc; i++) {
        c->lane[i].s.kv = c->kv;
        lane_layout(&c->lane[i], c->lane_memory + i * p.lane_bytes);
        rc = lane_open(&c->lane[i], gpu_off("DUCKD_CUDA_GRAPHS") ? 0 : GRAPH_ROWS, err);
    }
    c->b.shared = c->m.shared;
    return rc;
}
