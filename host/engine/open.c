/* open.c: an engine on a checkpoint: opens model, threads, flock and backend, and closes what it opened. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "duck/siphash.h"
#include "host/backend/backend_cuda.h"
#include "host/engine/engine_internal.h"
#include "host/flock/spec.h"
#include "host/model/synthetic.h"
#include "host/util/log.h"

static int submit(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    return flock_submit(flock, lane, step, err);
}

static int poll(void *flock, uint32_t lane, bool wait, struct error *err)
{
    return flock_poll(flock, lane, wait, err);
}

static void close_parts(struct engine *e)
{
    if (e->backend) e->backend->ops->close(e->backend);
    flock_close(e->flock);
    synthetic_flock_close(e->synthetic);
    pool_close(e->pool);
    model_close(e->opened);
    free(e->opened);
    if (e->held) model_close(e->held);
    free(e->held);
    free(e->routed);
}

static bool is_automatic(const char *backend)
{
    return !backend || strcmp(backend, "auto") == 0;
}

/* "auto" takes the CUDA backend where there is one, and says in one line why not. */
static const struct backend_ops *find_backend(const char *name, struct error *err)
{
    const bool automatic = is_automatic(name);
    if (!automatic && strcmp(name, backend_cpu.name) == 0) return &backend_cpu;
    if (!automatic && strcmp(name, "cuda") != 0) {
        error_set(err, -EINVAL, "backend '%s' is not in this build; it has: %s, cuda", name,
                  backend_cpu.name);
        return NULL;
    }
    struct error why = {""};
    const struct backend_ops *cuda = backend_cuda_load(&why);
    if (cuda || !automatic) {
        if (!cuda) error_set(err, -ENODEV, "backend 'cuda': %s", why.text);
        return cuda;
    }
    log_notice("attention runs on the CPU: %s", why.text);
    return &backend_cpu;
}

/* The model as ducks see it: without shared experts where the backend has them. */
static int choose_flock_model(struct engine *e, const struct engine_options *o, const struct model **out,
                              struct error *err)
{
    *out = o->synthetic ? e->held : e->model;
    if (!e->backend->shared) {
        if (o->gpu_shared != SHARED_BACKEND) return 0;
        return error_set(err, -EINVAL,
                         "--gpu-shared on: the %s backend leaves the model's %u shared experts to the flock",
                         e->backend->ops->name, e->model->config.shared_experts);
    }
    if (o->synthetic) {
        e->held->config.shared_experts = 0;
        return 0;
    }
    e->routed = malloc(sizeof *e->routed);
    if (!e->routed) return error_set(err, -ENOMEM, "no memory for the flock's model");
    *e->routed = *e->model;
    e->routed->config.shared_experts = 0;
    *out = e->routed;
    return 0;
}

static int open_flock(struct engine *e, const struct engine_options *o, const char *spec, struct error *err)
{
    const bool synthetic = o->synthetic != NULL; // its flock answers for the MTP layer with another one
    const struct model *model;
    int rc = choose_flock_model(e, o, &model, err);
    if (rc) return rc;
    const struct flock_options options = {.model = model,
                                          .pool = e->pool,
                                          .spec = spec,
                                          .lanes = e->set.lanes,
                                          .max_tokens = e->set.prefill_chunk,
                                          .mtp = e->set.mtp && !synthetic,
                                          .activation = o->wire_activation,
                                          .result = o->wire_result};
    rc = flock_open(&e->flock, &options, err);
    if (rc || !synthetic) return rc;
    e->synthetic =
        synthetic_flock_open(e->flock, e->model, &e->held->config, e->set.lanes, e->set.prefill_chunk);
    return e->synthetic ? 0 : error_set(err, -ENOMEM, "no memory for a synthetic flock");
}

/* Positions that the MTP layer is given before the first draft. More do not make drafts of duckling better,
 * and each costs its last layer, a sixth of the model. */
#define MTP_WINDOW 32u

static void suit_backend(struct engine_settings *s, const struct backend_ops *ops, bool local)
{
    s->verify = mtp_verify_policy(ops->name, local);
    s->cut_anywhere = ops == &backend_cpu; // see the numeric contract in backend.h
    s->mtp_window = ops->mtp_window && s->prefill_chunk >= MTP_WINDOW ? MTP_WINDOW : 0;
}

/* A device that "auto" found but that cannot take the model is no reason to stop. */
static int open_backend(struct engine *e, const struct engine_options *o, const struct backend_ops *ops,
                        bool local, struct error *err)
{
    const struct backend_options options = {.model = e->model,
                                            .pool = e->pool,
                                            .lanes = e->set.lanes,
                                            .max_tokens = e->set.prefill_chunk,
                                            .kv_dtype = o->kv_dtype,
                                            .kv_dtype_set = o->kv_dtype_set,
                                            .mtp = e->set.mtp,
                                            .shared = o->gpu_shared};
    int rc = ops->open(&e->backend, &options, err);
    if (!rc || ops == &backend_cpu || !is_automatic(o->backend)) return rc;
    log_notice("attention runs on the CPU: %s", err->text);
    suit_backend(&e->set, &backend_cpu, local);
    return backend_cpu.open(&e->backend, &options, err);
}

/* What a position takes in all layers, as backends store it. */
static uint64_t position_bytes(const struct engine_options *o, const struct model_config *c, bool mtp,
                               const char *backend)
{
    enum kv_dtype dtype = o->kv_dtype_set ? o->kv_dtype : strcmp(backend, "cpu") == 0 ? KV_F32 : KV_BF16;
    uint64_t values = c->kv_lora_rank + c->qk_rope_dim + (c->index_topk ? c->index_head_dim : 0);
    return values * (c->layers + (mtp ? 1 : 0)) * (dtype == KV_F32 ? 4 : dtype == KV_BF16 ? 2 : 1);
}

static struct engine_settings settings(const struct engine_options *o, const struct model_config *c,
                                       const struct backend_ops *ops, bool local)
{
    struct engine_settings s = {.lanes = o->lanes ? o->lanes : ENGINE_DEFAULT_LANES,
                                .prefill_chunk = o->prefill_chunk ? o->prefill_chunk : ENGINE_DEFAULT_CHUNK,
                                .step_timeout_ms =
                                    o->step_timeout_ms ? o->step_timeout_ms : ENGINE_DEFAULT_TIMEOUT_MS,
                                .mtp = o->mtp && c->mtp_layers > 0,
                                .adapt = !o->mtp_always};
    if (s.prefill_chunk < 2) s.prefill_chunk = 2; // a draft is verified as two rows of one job
    suit_backend(&s, ops, local);
    s.prefix_cache_bytes = o->prefix_cache_bytes;
    s.bytes_per_position = position_bytes(o, c, s.mtp, ops->name);
    if (o->mtp && !s.mtp) log_notice("the model has no MTP layer: one token a round");
    return s;
}

/* Backend and flock get a model each: the whole shape, and what is held of its experts. */
static int open_synthetic(struct engine *parts, const struct synthetic_options *o, struct error *err)
{
    struct model_config c;
    struct synthetic_format format;
    int rc = synthetic_config_read(&c, &format, o->config, err);
    if (!rc && o->experts && o->experts < c.top_k)
        rc = error_set(err, -EINVAL, "%u experts are held, but a token chooses %u", o->experts, c.top_k);
    if (!rc) rc = synthetic_open(parts->opened, &c, format, o->config, err);
    if (rc) return rc;
    parts->opened->distinct_layers = o->layers;
    const struct model_config held =
        synthetic_flock_config(&c, o->layers ? o->layers : c.layers, o->experts ? o->experts : c.experts);
    parts->held = calloc(1, sizeof *parts->held);
    if (!parts->held) return error_set(err, -ENOMEM, "no memory for the flock's model");
    return synthetic_open(parts->held, &held, format, o->config, err);
}

/* What makes KV useless to another process: other weights, another shape or another arithmetic. Files are
 * told apart by name, size and time, as a restart must not read them all. */
static uint64_t kv_identity(const struct engine_options *o, const struct engine *e)
{
    const struct model *m = e->model;
    char path[4200], text[512];
    static const struct siphash_key key = {1, 2};
    uint64_t sum = 0;
    int n =
        snprintf(text, sizeof text, "%s %d %d %u %u %u %u %llu", e->backend->ops->name, e->set.mtp,
                 e->backend->shared, o->kv_dtype_set ? o->kv_dtype + 1u : 0u, (unsigned)o->wire_activation,
                 (unsigned)o->wire_result, m->config.layers, (unsigned long long)e->set.bytes_per_position);
    sum ^= siphash(&key, text, (size_t)n);
    for (uint32_t i = 0; i <= checkpoint_files(m->checkpoint); i++) {
        struct stat st;
        if (i < checkpoint_files(m->checkpoint))
            snprintf(path, sizeof path, "%s", checkpoint_file(m->checkpoint, i));
        else
            snprintf(path, sizeof path, "%s/config.json", m->dir);
        if (stat(path, &st)) continue;
        const char *name = strrchr(path, '/');
        n = snprintf(text, sizeof text, "%llx %s %lld %lld %ld", (unsigned long long)sum, name ? name : path,
                     (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
        sum = siphash(&key, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    }
    return sum;
}

int engine_open(struct engine **out, const struct engine_options *o, struct error *err)
{
    const char *spec = o->flock_spec ? o->flock_spec : "local";
    bool local = strncmp(spec, "local", 5) == 0 && (spec[5] == '\0' || spec[5] == ':');
    const struct backend_ops *ops = find_backend(o->backend, err);
    if (!ops) return -EINVAL;
    int rc = flock_spec_check(spec, err);
    if (rc) return rc;

    struct engine parts = {.opened =
                               calloc(1, sizeof *parts.opened)}; // until the engine exists: what is open
    if (!parts.opened) return error_set(err, -ENOMEM, "no memory for the model");
    rc = o->synthetic ? open_synthetic(&parts, o->synthetic, err)
                      : model_open(parts.opened, o->model_dir, err);
    if (rc) {
        close_parts(&parts);
        return rc;
    }
    parts.model = parts.opened;
    parts.set = settings(o, &parts.model->config, ops, local);
    rc = pool_open(&parts.pool, o->threads, err);
    if (!rc) rc = open_backend(&parts, o, ops, local, err);
    if (!rc) rc = open_flock(&parts, o, spec, err); // holds what the backend leaves

    const struct flock_seam seam = parts.synthetic ? synthetic_flock_seam(parts.synthetic, local)
                                                   : (struct flock_seam){submit, poll, parts.flock, local};
    struct engine *e = NULL;
    if (!rc) rc = engine__assemble(&e, parts.model, parts.backend, &seam, &parts.set, err);
    if (rc) {
        close_parts(&parts);
        return rc;
    }
    e->opened = parts.opened;
    e->held = parts.held;
    e->routed = parts.routed;
    e->synthetic = parts.synthetic;
    e->pool = parts.pool;
    e->flock = parts.flock;
    e->close_parts = close_parts;
    if (o->kv_dir) {
        const struct kv_store_options store = {.dir = o->kv_dir,
                                               .budget_bytes = o->kv_dir_bytes,
                                               .backend = e->backend,
                                               .identity = kv_identity(o, e)};
        rc = e->prefixes
                 ? engine__open_store(e, &store, err)
                 : error_set(err, -EINVAL, "%s: KV comes back through the KV cache, which is off", o->kv_dir);
    }
    if (rc) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}
