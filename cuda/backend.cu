/* backend.cu: backend.h on a CUDA device: sequences and their pages, the state of each lane, the flags. */
#include "cuda/lane.cuh"
#include "cuda/sequences.cuh"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"

#define RESERVE_BYTES ((size_t)512 << 20) // left to the driver, graphs and others
#define RING_BYTES ((size_t)1 << 30)      // at most for the sequences' recent hidden states
#define SEQUENCES 64u
#define KV_SEQUENCES 8u        // the KV never takes more than so many sequences of full length
#define RESULT_DEADLINE_S 600u // a step's answer: a flock that lost a duck may reload weights first
#define DEVICE_DEADLINE_NS (30ull * 1000000000u) // a step on the device
#define FLAG_STRIDE 65536u                       // distance of the flags of two jobs

/* A lane moves inside poll only: a follower that must not enter a layer yet is held back by not being polled.
 */
enum lane_state {
    LANE_FREE,
    LANE_STARTED,
    LANE_RESUMED,
    LANE_RUNNING,
    LANE_PUBLISHED,
    LANE_DONE,
    LANE_FAILED
};

struct lane_job {
    enum lane_state state;
    chain k;
    bool graph, last; // last: the step being waited for makes the logits
    uint32_t base, step, logits_from;
    bool candidates;  // the job's
    uint32_t fetched; // of those, rows on the device whose logits are on the host, too: a bit each
    uint64_t since_ns, asked_ns;
    struct error failure;
};

struct cuda_backend {
    struct backend b;
    struct gpu_model m;
    uint32_t lanes, vocab, max_positions;
    kv_layout kv;
    enum kv_dtype dtype;
    struct lane *lane;
    struct lane_job *job;
    uint8_t *lane_memory, *kv_memory;
    struct sequences q;
    uint64_t bytes;
    bool prefill; // large jobs go through cuBLAS
    bool broken;  // the device faulted; nothing works any more
    struct backend_probe probe;
};

static struct cuda_backend *self(struct backend *b)
{
    return reinterpret_cast<struct cuda_backend *>(b);
}

/* ---- open: plan, then allocate ---- */

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

/* Switches for tools: a debugger or race checker that runs a kernel to its end before the next call of the
 * program returns would wait forever for a graph that waits for the program. */
static bool off(const char *variable)
{
    const char *v = getenv(variable);
    return v && !strcmp(v, "0");
}

/* Without cuBLAS or for shapes it does not serve, large jobs run as small ones do: right, but slower. So do
 * they over an fp32 cache, which is for those who want the decode kernels' precision. */
static bool choose_prefill(const shape *s, enum kv_dtype dtype, size_t shared_limit)
{
    struct error why;
    if (off("DUCKD_CUDA_PREFILL") || dtype == KV_F32) return false;
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

static int open_all(struct cuda_backend *c, const struct backend_options *o, struct error *err)
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
        rc = lane_open(&c->lane[i], off("DUCKD_CUDA_GRAPHS") ? 0 : GRAPH_ROWS, err);
    }
    c->b.shared = c->m.shared;
    return rc;
}

static void cuda_close(struct backend *b);

static int cuda_open(struct backend **out, const struct backend_options *o, struct error *err)
{
    *out = nullptr;
    struct cuda_backend *c = (struct cuda_backend *)calloc(1, sizeof *c);
    if (!c) return gpu_host->error_set(err, -ENOMEM, "no memory for the CUDA backend");
    extern const struct backend_ops backend_cuda;
    c->b.ops = &backend_cuda;
    c->lanes = o->lanes;
    c->vocab = o->model->config.vocab_size;
    c->max_positions = o->model->config.max_positions;
    c->dtype = o->kv_dtype_set ? o->kv_dtype : KV_BF16;
    int rc = open_all(c, o, err);
    if (rc) {
        cuda_close(&c->b);
        return rc;
    }
    *out = &c->b;
    return 0;
}

static void cuda_close(struct backend *b)
{
    struct cuda_backend *c = self(b);
    for (uint32_t i = 0; c->lane && i < c->lanes; i++) {
        if (c->lane[i].c && !c->broken) b->ops->cancel(b, i);
        lane_close(&c->lane[i]);
    }
    sequences_close(&c->q);
    cudaFree(c->kv_memory);
    cudaFree(c->lane_memory);
    cudaFree(c->q.tables);
    cudaFree(c->q.rings);
    gpu_model_close(&c->m);
    free(c->lane);
    free(c->job);
    free(c);
}

/* ---- sequences ---- */

static int cuda_seq_open(struct backend *b, backend_seq *out, uint32_t capacity, struct error *err)
{
    return sequence_take(&self(b)->q, out, capacity, err);
}

static int cuda_seq_fork(struct backend *b, backend_seq *out, backend_seq from, uint32_t positions,
                         uint32_t capacity, struct error *err)
{
    struct cuda_backend *c = self(b);
    const int rc = sequence_fork(&c->q, out, from, positions, capacity, err);
    if (rc == -EIO) c->broken = true;
    return rc;
}

static void cuda_seq_close(struct backend *b, backend_seq seq)
{
    sequence_give(&self(b)->q, seq);
}

static uint64_t cuda_kv_bytes(const struct backend *b, uint32_t positions)
{
    return sequence_bytes(&reinterpret_cast<const struct cuda_backend *>(b)->q, positions);
}

static int cuda_kv_save(struct backend *b, backend_seq seq, uint32_t positions, void *image,
                        struct error *err)
{
    struct cuda_backend *c = self(b);
    const int rc = sequence_save(&c->q, seq, positions, image, err);
    if (rc) c->broken = true;
    return rc;
}

static int cuda_kv_load(struct backend *b, backend_seq seq, uint32_t positions, const void *image,
                        struct error *err)
{
    struct cuda_backend *c = self(b);
    const int rc = sequence_load(&c->q, seq, positions, image, err);
    if (rc) c->broken = true;
    return rc;
}

/* ---- jobs ---- */

static void store_flag(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static uint32_t load_flag(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

/* While a graph waits for the host, the host must not do anything that may wait for the device, and a
 * library's first launch of a kernel may (the driver loads it then). So graphs and large jobs, which are
 * cuBLAS's, take turns: while one lane has a large job, jobs of other lanes run step by step, where no kernel
 * ever waits, and a large job is not launched before the last graph is through. */
static bool graph_in_flight(const struct cuda_backend *c)
{
    for (uint32_t i = 0; i < c->lanes; i++) {
        const struct lane_job *j = &c->job[i];
        if (j->graph && (j->state == LANE_RUNNING || j->state == LANE_PUBLISHED || j->state == LANE_RESUMED))
            return true;
    }
    return false;
}

static bool large_job(const struct cuda_backend *c)
{
    for (uint32_t i = 0; i < c->lanes; i++) {
        const struct lane_job *j = &c->job[i];
        if (j->k.big && (j->state == LANE_STARTED || j->state == LANE_RUNNING || j->state == LANE_PUBLISHED ||
                         j->state == LANE_RESUMED))
            return true;
    }
    return false;
}

/* What start or resume asked for: the graph is launched or let on, or the next step's kernels are launched.
 */
static int advance(struct cuda_backend *c, uint32_t lane, struct error *err)
{
    struct lane *l = &c->lane[lane];
    struct lane_job *j = &c->job[lane];
    const bool begin = j->state == LANE_STARTED;
    if (begin && j->k.big && graph_in_flight(c)) return 0; // asked again by the next poll
    if (begin) j->graph = lane_graph(l, &j->k) && !large_job(c);
    j->state = LANE_RUNNING;
    j->since_ns = j->asked_ns = clock_ns();
    store_flag(&l->c->resume, j->base + j->step);
    if (!j->graph) return chain_step(l, &j->k, &j->last, err);
    if (!begin) return 0;
    return gpu_check(cudaGraphLaunch(lane_graph(l, &j->k), l->stream), err, "cudaGraphLaunch");
}

static int check_job(struct cuda_backend *c, uint32_t lane, const struct backend_job *job, struct error *err)
{
    const struct sequence *s = &c->q.sequence[job->seq];
    if (c->broken) return gpu_host->error_set(err, -EIO, "the CUDA device failed earlier");
    if (c->job[lane].state != LANE_FREE && c->job[lane].state != LANE_DONE)
        return gpu_host->error_set(err, -EBUSY, "lane %u has a job", lane);
    if (job->tokens == 0 || job->tokens > c->lane[lane].z.rows)
        return gpu_host->error_set(err, -E2BIG, "a job of %u rows, the backend takes 1 to %u", job->tokens,
                                   c->lane[lane].z.rows);
    if (!s->open || (uint64_t)job->position + job->tokens > s->capacity)
        return gpu_host->error_set(err, -E2BIG, "positions %u to %u of a sequence with %u", job->position,
                                   job->position + job->tokens, s->capacity);
    if (job->candidates && job->tokens - job->logits_from > PART_ROWS)
        return gpu_host->error_set(err, -E2BIG, "candidates of %u rows, the backend has them of %u",
                                   job->tokens - job->logits_from, PART_ROWS);
    if (job->kind == BACKEND_MTP && !c->m.mtp)
        return gpu_host->error_set(err, -EINVAL, "the MTP layer is not loaded");
    for (uint32_t i = 0; i < job->tokens; i++)
        if (job->ids[i] < 0 || (uint32_t)job->ids[i] >= c->vocab)
            return gpu_host->error_set(err, -EINVAL, "token %d, the vocabulary has %u", job->ids[i],
                                       c->vocab);
    return 0;
}

static int cuda_start(struct backend *b, uint32_t lane, const struct backend_job *job, struct error *err)
{
    struct cuda_backend *c = self(b);
    struct lane *l = &c->lane[lane];
    struct lane_job *j = &c->job[lane];
    int rc = check_job(c, lane, job, err);
    if (!rc) rc = sequence_own(&c->q, job->seq, job->position, job->position + job->tokens, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < job->tokens; i++)
        gpu_host->weight_row(&c->m.embed, (uint64_t)job->ids[i], l->embed_host + (size_t)i * c->m.s.hidden);
    j->base += FLAG_STRIDE;
    j->step = 0;
    j->last = false;
    j->logits_from = job->logits_from;
    l->c->next = {job->position,
                  job->tokens,
                  c->q.tables + (size_t)job->seq * c->q.max_pages,
                  c->q.rings ? c->q.rings + (size_t)job->seq * c->q.ring_rows * c->m.s.hidden : nullptr,
                  c->q.ring_rows - 1,
                  j->base,
                  j->base,
                  RESULT_DEADLINE_S,
                  (uint32_t)(job->candidates  ? WANT_CANDIDATES
                             : job->best_only ? WANT_BEST
                                              : WANT_ALL),
                  job->temperature > 0.0f ? 1.0 / (double)job->temperature : 1.0};
    j->candidates = job->candidates;
    j->fetched = 0;
    store_flag(&l->c->resume, j->base);
    store_flag(&l->c->abort, 0);
    store_flag(&l->c->fault, 0);
    j->k = chain_begin(l, job->kind, job->position, job->tokens, job->logits_from);
    j->graph = false;
    j->state = LANE_STARTED;
    return 0;
}

/* Layer of step `step` of a job (the first is 1), or the number of layers when it is the last one. */
static uint32_t layer_of(const struct cuda_backend *c, enum backend_job_kind kind, uint32_t step)
{
    uint32_t i = kind == BACKEND_MAIN ? 0 : c->m.main_layers;
    const uint32_t end = kind == BACKEND_MAIN ? c->m.main_layers : c->m.main_layers + 1;
    for (; i < end; i++)
        if (!c->m.layers[i].dense && --step == 0) return i;
    return UINT32_MAX;
}

static enum backend_event fail(struct cuda_backend *c, struct lane_job *j, struct error *err)
{
    j->state = LANE_FAILED;
    c->broken = true;
    if (err) *err = j->failure;
    return BACKEND_FAILED;
}

/* The flag is not there yet: every millisecond see whether the device still works. */
static enum backend_event busy(struct cuda_backend *c, uint32_t lane, struct error *err)
{
    struct lane_job *j = &c->job[lane];
    const uint64_t now = clock_ns();
    if (now - j->asked_ns < 1000000) return BACKEND_BUSY;
    j->asked_ns = now;
    const uint32_t fault = load_flag(&c->lane[lane].c->fault);
    cudaError_t e = cudaStreamQuery(c->lane[lane].stream);
    if (e != cudaSuccess && e != cudaErrorNotReady) {
        gpu_check(e, &j->failure, "job");
        return fail(c, j, err);
    }
    if (fault) {
        gpu_host->error_set(&j->failure, -ETIMEDOUT, "CUDA: no feed-forward result of layer %u within %u s",
                            layer_of(c, j->k.kind, fault - 1), RESULT_DEADLINE_S);
        return fail(c, j, err);
    }
    if (now - j->since_ns > DEVICE_DEADLINE_NS) {
        gpu_host->error_set(&j->failure, -ETIMEDOUT,
                            "CUDA: step %u of a job of %u rows took more than %llu s", j->step + 1, j->k.rows,
                            DEVICE_DEADLINE_NS / 1000000000u);
        return fail(c, j, err);
    }
    return BACKEND_BUSY;
}

static enum backend_event cuda_poll(struct backend *b, uint32_t lane, struct mlp_step *step,
                                    struct error *err)
{
    struct cuda_backend *c = self(b);
    struct lane *l = &c->lane[lane];
    struct lane_job *j = &c->job[lane];
    if (j->state == LANE_FAILED) return fail(c, j, err);
    if (j->state == LANE_DONE) return BACKEND_DONE;
    if ((j->state == LANE_STARTED || j->state == LANE_RESUMED) && advance(c, lane, &j->failure))
        return fail(c, j, err);
    if (j->state == LANE_STARTED) return BACKEND_BUSY;
    if (j->state == LANE_RUNNING) {
        if ((int32_t)(load_flag(&l->c->published) - (j->base + j->step + 1)) < 0) return busy(c, lane, err);
        j->step++;
        j->state = layer_of(c, j->k.kind, j->step) == UINT32_MAX ? LANE_DONE : LANE_PUBLISHED;
        if (j->state == LANE_DONE) return BACKEND_DONE;
    }
    *step = {layer_of(c, j->k.kind, j->step),
             j->k.rows,
             c->m.s.top_k,
             l->x_host,
             l->ids_host,
             l->weights_host,
             l->y_host};
    return BACKEND_MLP;
}

static void cuda_resume(struct backend *b, uint32_t lane)
{
    self(b)->job[lane].state = LANE_RESUMED;
}

/* Row whose logits come first on the device: a graph makes those of all rows. */
static uint32_t first_row(const struct lane_job *j)
{
    return j->graph ? 0 : j->logits_from;
}

/* A row that stayed on the device. The lane's stream is idle: its job is done. */
static int fetch_row(struct lane *l, uint32_t at, float *out, struct error *err)
{
    GPU_TRY(cudaMemcpyAsync(out, l->logits + (size_t)at * l->z.vocab, l->z.vocab * sizeof(float),
                            cudaMemcpyDeviceToHost, l->stream));
    GPU_TRY(cudaStreamSynchronize(l->stream));
    return 0;
}

static const float *cuda_logits(struct backend *b, uint32_t lane, uint32_t row)
{
    struct cuda_backend *c = self(b);
    struct lane_job *j = &c->job[lane];
    float *out = c->lane[lane].logits_host + (size_t)row * c->vocab;
    const uint32_t at = row - first_row(j);
    if (!j->candidates || j->fetched >> at & 1) return out;
    j->fetched |= 1u << at;
    if (fetch_row(&c->lane[lane], at, out, &j->failure)) {
        c->broken = true;                          // said by the next start
        memset(out, 0xff, c->vocab * sizeof *out); // NaN: nobody chooses by these
    }
    return out;
}

static const struct backend_candidates *cuda_candidates(struct backend *b, uint32_t lane, uint32_t row)
{
    const struct cuda_backend *c = self(b);
    return c->lane[lane].candidates_host + (row - first_row(&c->job[lane]));
}

static int32_t cuda_best(struct backend *b, uint32_t lane, uint32_t row)
{
    return self(b)->lane[lane].best_host[row];
}

static void cuda_cancel(struct backend *b, uint32_t lane)
{
    struct cuda_backend *c = self(b);
    struct lane *l = &c->lane[lane];
    struct lane_job *j = &c->job[lane];
    if (j->state == LANE_RUNNING || j->state == LANE_PUBLISHED || j->state == LANE_RESUMED) {
        store_flag(&l->c->abort, 1);
        const uint64_t start = clock_ns();
        cudaError_t e;
        while ((e = cudaStreamQuery(l->stream)) == cudaErrorNotReady &&
               clock_ns() - start < DEVICE_DEADLINE_NS) {
        }
        if (e != cudaSuccess) c->broken = true; // said by the next start
    }
    j->state = LANE_FREE;
}

static void cuda_set_probe(struct backend *b, const struct backend_probe *probe)
{
    struct cuda_backend *c = self(b);
    if (probe) c->probe = *probe;
    for (uint32_t i = 0; i < c->lanes; i++) c->lane[i].probe = probe ? &c->probe : nullptr;
}

static uint64_t cuda_memory_bytes(const struct backend *b)
{
    return reinterpret_cast<const struct cuda_backend *>(b)->bytes;
}

extern const struct backend_ops backend_cuda = {
    "cuda",         cuda_open,         cuda_close,    cuda_seq_open, cuda_seq_fork, cuda_seq_close,
    cuda_start,     cuda_poll,         cuda_resume,   cuda_logits,   cuda_best,     cuda_cancel,
    cuda_set_probe, cuda_memory_bytes, cuda_kv_bytes, cuda_kv_save,  cuda_kv_load,  cuda_candidates,
    false};

extern "C" __attribute__((visibility("default"))) cuda_backend_fn duckd_cuda_backend;

const struct backend_ops *duckd_cuda_backend(const struct cuda_host *host, struct error *err)
{
    int devices = 0;
    if (host->abi != CUDA_HOST_ABI) {
        host->error_set(err, -EINVAL, "libduckd-cuda.so was built for interface %u, this program has %u",
                        CUDA_HOST_ABI, host->abi);
        return nullptr;
    }
    gpu_host = host;
    if (off("DUCKD_CUDA_PDL")) gpu_pdl = false;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaErrorInsufficientDriver) {
        host->error_set(err, -ENODEV, "no NVIDIA driver, or one older than this build's CUDA %d.%d",
                        CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        return nullptr;
    }
    if (gpu_check(e, err, "cudaGetDeviceCount")) return nullptr;
    if (devices == 0) {
        host->error_set(err, -ENODEV, "no CUDA device");
        return nullptr;
    }
    return &backend_cuda;
}
