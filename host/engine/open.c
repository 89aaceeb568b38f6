/* open.c: an engine on a checkpoint: opens model, threads, backend and flock, and closes what it opened. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/backend_cuda.h"
#include "host/engine/engine_internal.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "host/model/synthetic.h"
#include "host/util/log.h"

/* An engine on its way: what is known and open of it before it exists. */
struct opening {
    const struct engine_options *o;
    struct flock_spec spec; // until the flock has it
    bool local;             // the flock's ducks are computed by this process
    struct engine_parts parts;
    struct engine_settings set;
};

static int submit(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    return flock_submit(flock, lane, step, err);
}

static int poll(void *flock, uint32_t lane, bool wait, struct error *err)
{
    return flock_poll(flock, lane, wait, err);
}

static void close_parts(struct engine_parts *p)
{
    if (p->backend) p->backend->ops->close(p->backend);
    flock_close(p->flock);
    synthetic_flock_close(p->synthetic);
    pool_close(p->pool);
    if (p->model) model_close(p->model);
    free(p->model);
    if (p->held) model_close(p->held);
    free(p->held);
    free(p->routed);
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

/* Backend and flock get a model each: the whole shape, and what is held of its experts. */
static int open_synthetic(struct engine_parts *p, const struct synthetic_options *o, struct error *err)
{
    struct model_config c;
    struct synthetic_format format;
    int rc = synthetic_config_read(&c, &format, o->config, err);
    if (!rc && o->experts && o->experts < c.top_k)
        rc = error_set(err, -EINVAL, "%u experts are held, but a token chooses %u", o->experts, c.top_k);
    if (!rc) rc = synthetic_open(p->model, &c, format, o->config, err);
    if (rc) return rc;
    p->model->distinct_layers = o->layers;
    const struct model_config held =
        synthetic_flock_config(&c, o->layers ? o->layers : c.layers, o->experts ? o->experts : c.experts);
    p->held = calloc(1, sizeof *p->held);
    if (!p->held) return error_set(err, -ENOMEM, "no memory for the flock's model");
    return synthetic_open(p->held, &held, format, o->config, err);
}

static int open_model(struct opening *w, struct error *err)
{
    w->parts.model = calloc(1, sizeof *w->parts.model);
    if (!w->parts.model) return error_set(err, -ENOMEM, "no memory for the model");
    return w->o->synthetic ? open_synthetic(&w->parts, w->o->synthetic, err)
                           : model_open(w->parts.model, w->o->model_dir, err);
}

/* Positions that the MTP layer is given before the first draft. More do not make drafts of duckling better,
 * and each costs its last layer, a sixth of the model. */
#define MTP_WINDOW 32u

static void suit_backend(struct opening *w, const struct backend_ops *ops)
{
    struct engine_settings *s = &w->set;
    s->verify = mtp_verify_policy(ops->name, w->local);
    s->cut_anywhere = ops == &backend_cpu; // see the numeric contract in backend.h
    s->mtp_window = ops->mtp_window && s->prefill_chunk >= MTP_WINDOW ? MTP_WINDOW : 0;
}

/* What a position takes in all layers, as backends store it. */
static uint64_t position_bytes(const struct engine_options *o, const struct model_config *c, bool mtp,
                               const char *backend)
{
    enum kv_dtype dtype = o->kv_dtype_set ? o->kv_dtype : strcmp(backend, "cpu") == 0 ? KV_F32 : KV_BF16;
    uint64_t values = c->kv_lora_rank + c->qk_rope_dim + (c->index_topk ? c->index_head_dim : 0);
    return values * (c->layers + (mtp ? 1 : 0)) * (dtype == KV_F32 ? 4 : dtype == KV_BF16 ? 2 : 1);
}

static void settle(struct opening *w, const struct backend_ops *ops)
{
    const struct engine_options *o = w->o;
    const struct model_config *c = &w->parts.model->config;
    w->set = (struct engine_settings){
        .lanes = o->lanes ? o->lanes : ENGINE_DEFAULT_LANES,
        .prefill_chunk = o->prefill_chunk ? o->prefill_chunk : ENGINE_DEFAULT_CHUNK,
        .step_timeout_ms = o->step_timeout_ms ? o->step_timeout_ms : ENGINE_DEFAULT_TIMEOUT_MS,
        .mtp = o->mtp && c->mtp_layers > 0,
        .adapt = !o->mtp_always,
        .prefix_cache_bytes = o->prefix_cache_bytes};
    struct engine_settings *s = &w->set;
    if (s->prefill_chunk < 2) s->prefill_chunk = 2; // a draft is verified as two rows of one job
    suit_backend(w, ops);
    s->bytes_per_position = position_bytes(o, c, s->mtp, ops->name);
    if (o->mtp && !s->mtp) log_notice("the model has no MTP layer: one token a round");
}

/* A device that "auto" found but that cannot take the model is no reason to stop. */
static int open_backend(struct opening *w, const struct backend_ops *ops, struct error *err)
{
    struct engine_parts *p = &w->parts;
    const struct backend_options options = {.model = p->model,
                                            .pool = p->pool,
                                            .lanes = w->set.lanes,
                                            .max_tokens = w->set.prefill_chunk,
                                            .kv_dtype = w->o->kv_dtype,
                                            .kv_dtype_set = w->o->kv_dtype_set,
                                            .mtp = w->set.mtp,
                                            .shared = w->o->gpu_shared};
    int rc = ops->open(&p->backend, &options, err);
    if (!rc || ops == &backend_cpu || !is_automatic(w->o->backend)) return rc;
    log_notice("attention runs on the CPU: %s", err->text);
    suit_backend(w, &backend_cpu);
    return backend_cpu.open(&p->backend, &options, err);
}

/* The model as ducks see it: without shared experts where the backend has them. */
static int choose_flock_model(struct opening *w, const struct model **out, struct error *err)
{
    struct engine_parts *p = &w->parts;
    *out = p->held ? p->held : p->model;
    if (!p->backend->shared) {
        if (w->o->gpu_shared != SHARED_BACKEND) return 0;
        return error_set(err, -EINVAL,
                         "--gpu-shared on: the %s backend leaves the model's %u shared experts to the flock",
                         p->backend->ops->name, p->model->config.shared_experts);
    }
    if (p->held) {
        p->held->config.shared_experts = 0;
        return 0;
    }
    p->routed = malloc(sizeof *p->routed);
    if (!p->routed) return error_set(err, -ENOMEM, "no memory for the flock's model");
    *p->routed = *p->model;
    p->routed->config.shared_experts = 0;
    *out = p->routed;
    return 0;
}

/* After the backend: it holds what the backend leaves. */
static int open_flock(struct opening *w, struct error *err)
{
    struct engine_parts *p = &w->parts;
    const bool synthetic = p->held != NULL; // its flock answers for the MTP layer with another one
    const struct model *model;
    int rc = choose_flock_model(w, &model, err);
    if (rc) return rc;
    const struct flock_options options = {.model = model,
                                          .pool = p->pool,
                                          .spec = &w->spec,
                                          .lanes = w->set.lanes,
                                          .max_tokens = w->set.prefill_chunk,
                                          .mtp = w->set.mtp && !synthetic,
                                          .expert_format = w->o->expert_format,
                                          .activation = w->o->wire_activation,
                                          .result = w->o->wire_result};
    rc = flock_open(&p->flock, &options, err);
    if (rc || !synthetic) return rc;
    p->synthetic =
        synthetic_flock_open(p->flock, p->model, &p->held->config, w->set.lanes, w->set.prefill_chunk);
    return p->synthetic ? 0 : error_set(err, -ENOMEM, "no memory for a synthetic flock");
}

static int assemble(struct engine **out, const struct opening *w, struct error *err)
{
    const struct engine_parts *p = &w->parts;
    const struct flock_seam seam = p->synthetic ? synthetic_flock_seam(p->synthetic, w->local)
                                                : (struct flock_seam){submit, poll, p->flock, w->local};
    int rc = engine__assemble(out, p->model, p->backend, &seam, &w->set, err);
    if (rc) return rc;
    (*out)->parts = *p;
    (*out)->close_parts = close_parts;
    return 0;
}

static int open_kv_dir(struct engine *e, const struct engine_options *o, struct error *err)
{
    if (!o->kv_dir) return 0;
    if (!e->prefixes)
        return error_set(err, -EINVAL, "%s: KV comes back through the KV cache, which is off", o->kv_dir);
    const struct kv_store_options store = {.dir = o->kv_dir,
                                           .budget_bytes = o->kv_dir_bytes,
                                           .backend = e->backend,
                                           .identity = engine__kv_identity(e, o)};
    return engine__open_store(e, &store, err);
}

int engine_open(struct engine **out, const struct engine_options *o, struct error *err)
{
    const struct backend_ops *ops = find_backend(o->backend, err);
    if (!ops) return -EINVAL;
    struct opening w = {.o = o};
    int rc =
        flock_spec_read(&w.spec, o->flock, err); // what is wrong with it shows before anything large is read
    if (rc) return rc;
    w.local = !w.spec.transport->network;
    rc = open_model(&w, err);
    if (!rc) settle(&w, ops);
    if (!rc) rc = pool_open(&w.parts.pool, o->threads, err);
    if (!rc) rc = open_backend(&w, ops, err);
    if (!rc) rc = open_flock(&w, err);
    struct engine *e = NULL;
    if (!rc) rc = assemble(&e, &w, err);
    flock_spec_free(&w.spec);
    if (rc) {
        close_parts(&w.parts);
        return rc;
    }
    rc = open_kv_dir(e, o, err);
    if (rc) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}
