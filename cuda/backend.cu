/* backend.cu: backend.h on a CUDA device: sequences, the state of each lane, the flags. */
#include "cuda/backend.cuh"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/util/clock.h"

#define RESULT_DEADLINE_S 600u // a step's answer: a flock that lost a duck may reload weights first
#define DEVICE_DEADLINE_NS (30ull * 1000000000u) // a step on the device
#define FLAG_STRIDE 65536u                       // distance of the flags of two jobs

static struct cuda_backend *self(struct backend *b)
{
    return reinterpret_cast<struct cuda_backend *>(b);
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
    int rc = backend_place(c, o, err);
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
    if (gpu_off("DUCKD_CUDA_PDL")) gpu_pdl = false;
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
