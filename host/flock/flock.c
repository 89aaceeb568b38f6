/* flock.c: specification -> plan -> transport -> weights; then steps are checked and passed on. */
#include "host/flock/flock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/flock/load.h"
#include "host/flock/spec.h"
#include "host/flock/transport.h"
#include "host/util/log.h"

struct flock {
    struct model_config config;
    uint32_t lanes, max_tokens;
    struct flock_spec spec;
    struct plan plan;
    struct transport *transport;
    bool opened;
};

static int make_plan(struct flock *f, bool mtp, struct error *err)
{
    struct plan_duck *ducks = calloc(f->spec.ducks, sizeof *ducks);
    if (!ducks) return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", f->spec.ducks);
    for (uint32_t i = 0; i < f->spec.ducks; i++) ducks[i] = f->spec.duck[i].plan;
    int rc = plan_make(&f->plan, &f->config, mtp, ducks, f->spec.ducks, err);
    free(ducks);
    return rc;
}

int flock_open(struct flock **out, const struct flock_options *o, struct error *err)
{
    *out = NULL;
    struct flock *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, -ENOMEM, "no memory for a flock");
    f->config = o->model->config;
    f->lanes = o->lanes;
    f->max_tokens = o->max_tokens;
    int rc = flock_spec_read(&f->spec, o->spec, err);
    if (rc != 0) goto fail;
    if (f->spec.transport->find) rc = f->spec.transport->find(&f->transport, &f->spec, err);
    if (rc == 0) rc = make_plan(f, o->mtp, err);
    if (rc != 0) goto fail;
    struct transport_options t = {.plan = &f->plan,
                                  .duck = f->spec.duck,
                                  .pool = o->pool,
                                  .lanes = o->lanes,
                                  .max_tokens = o->max_tokens,
                                  .max_top_k = o->model->config.top_k,
                                  .element_bytes = flock_element_bytes(o->model),
                                  .activation = o->activation,
                                  .result = o->result};
    rc = f->spec.transport->open(&f->transport, &t, err);
    if (rc != 0) goto fail;
    rc = flock_load(f->transport, &f->plan, o->model, o->pool, err);
    if (rc == 0 && f->transport->ops->loaded) rc = f->transport->ops->loaded(f->transport, err);
    if (rc != 0) goto fail;
    f->opened = true;
    *out = f;
    return 0;
fail:
    flock_close(f);
    return rc;
}

/* What every duck has done, with -v: the proof where experts were computed. */
static void say_stats(const struct flock *f)
{
    for (uint32_t i = 0; i < f->plan.ducks; i++) {
        struct duck_stats s;
        flock_duck_stats(f, i, &s);
        if (s.steps == 0) continue;
        log_detail("%s: %" PRIu64 " steps, %" PRIu64
                   " expert reads, %.1f MB of weights read, %.1f ms computing",
                   s.name, s.steps, s.expert_reads, (double)s.expert_bytes / 1e6, (double)s.compute_ns / 1e6);
    }
}

void flock_close(struct flock *f)
{
    if (!f) return;
    if (f->opened) say_stats(f);
    if (f->transport) f->transport->ops->close(f->transport);
    plan_free(&f->plan);
    flock_spec_free(&f->spec);
    free(f);
}

static int check_ids(const struct mlp_step *step, uint32_t experts, struct error *err)
{
    for (uint32_t t = 0; t < step->tokens; t++) {
        const int32_t *ids = step->ids + (size_t)t * step->top_k;
        for (uint32_t k = 0; k < step->top_k; k++) {
            if (ids[k] < 0 || (uint32_t)ids[k] >= experts) {
                return error_set(err, -EINVAL, "layer %u, token %u: expert %d of %u", step->layer, t, ids[k],
                                 experts);
            }
            if (k > 0 && ids[k] <= ids[k - 1]) {
                return error_set(err, -EINVAL, "layer %u, token %u: expert %d after %d, they must ascend",
                                 step->layer, t, ids[k], ids[k - 1]);
            }
        }
    }
    return 0;
}

static int check_step(const struct flock *f, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    if (lane >= f->lanes) return error_set(err, -EINVAL, "lane %u of %u", lane, f->lanes);
    if (step->layer >= f->plan.banks) {
        return error_set(err, -EINVAL, "layer %u: the flock holds layers 0 .. %u", step->layer,
                         f->plan.banks - 1);
    }
    if (step->tokens == 0 || step->tokens > f->max_tokens) {
        return error_set(err, -EINVAL, "layer %u: %u tokens in a step, 1 .. %u are possible", step->layer,
                         step->tokens, f->max_tokens);
    }
    uint32_t routed = f->plan.bank[step->layer].routed, most = routed > 0 ? f->config.top_k : 0;
    if (step->top_k > most) {
        return error_set(err, -EINVAL, "layer %u: %u experts a token, at most %u are possible", step->layer,
                         step->top_k, most);
    }
    return check_ids(step, routed, err);
}

int flock_submit(struct flock *f, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    int rc = check_step(f, lane, step, err);
    return rc != 0 ? rc : f->transport->ops->submit(f->transport, lane, step, err);
}

int flock_poll(struct flock *f, uint32_t lane, bool wait, struct error *err)
{
    if (lane >= f->lanes) return error_set(err, -EINVAL, "lane %u of %u", lane, f->lanes);
    return f->transport->ops->poll(f->transport, lane, wait, err);
}

uint32_t flock_ducks(const struct flock *f)
{
    return f->plan.ducks;
}

void flock_duck_stats(const struct flock *f, uint32_t duck, struct duck_stats *out)
{
    *out = (struct duck_stats){0};
    f->transport->ops->stats(f->transport, duck, out);
    snprintf(out->name, sizeof out->name, "%s", f->spec.duck[duck].name);
}
