/* flock.c: specification -> plan -> transport -> weights; then steps are checked and passed on. */
#include "host/flock/flock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck/wire.h"
#include "host/flock/flock_internal.h"
#include "host/flock/load.h"
#include "host/flock/plan_file.h"
#include "host/util/log.h"

/* One file for every flock and kind of model, whatever `--mtp` is. */
static void name_plan(struct flock *f)
{
    const struct model_config *c = &f->config;
    const uint32_t shape[] = {c->hidden_size,    c->layers,       c->experts,
                              c->shared_experts, c->expert_width, c->dense_width};
    uint64_t hash = wire_object_hash((const uint8_t *)shape, sizeof shape);
    for (uint32_t i = 0; i < f->spec.ducks; i++) {
        const struct siphash_key key = {hash, i};
        hash = siphash(&key, f->spec.duck[i].name, strlen(f->spec.duck[i].name));
    }
    snprintf(f->plan_path, sizeof f->plan_path, "%s-%016" PRIx64, f->spec.net->plans, hash);
}

const char *flock_format_name(const struct flock *f)
{
    return fp9_format_name(f->plan.format);
}

static int make_plan(struct flock *f, const struct flock_options *o, struct error *err)
{
    struct plan_duck *ducks = calloc(f->spec.ducks, sizeof *ducks);
    if (!ducks) return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", f->spec.ducks);
    for (uint32_t i = 0; i < f->spec.ducks; i++) ducks[i] = f->spec.duck[i].plan;
    int rc = plan_make(&f->plan, &f->config, o->expert_format, o->mtp, ducks, f->spec.ducks, err);
    free(ducks);
    if (rc == 0 && f->spec.net && *f->spec.net->plans) {
        name_plan(f);
        if (plan_file_stay(&f->plan, f->spec.duck, f->plan_path))
            log_detail("plan: that of %s", f->plan_path);
    }
    return rc;
}

static void keep_plan(const struct flock *f)
{
    struct error why;
    const struct plan *whole = f->losts ? &f->home : &f->plan;
    if (*f->plan_path && plan_file_write(whole, f->spec.duck, f->plan_path, &why))
        log_notice("%s: the next plan may be another", why.text);
}

int flock__load(struct flock *f, struct error *err)
{
    return flock_load(f->transport, &f->plan, f->model, f->spec.duck, f->pool, err);
}

/* A duck that is lost while weights are sent is done without, like one that is lost later. */
static int load_first(struct flock *f, struct error *err)
{
    struct error why = {""};
    int rc = flock__load(f, &why);
    if (rc != 0) rc = flock__take_over(f, rc, &why);
    if (rc != 0 && err) *err = why;
    return rc;
}

int flock_open(struct flock **out, const struct flock_options *o, struct error *err)
{
    *out = NULL;
    struct flock *f = calloc(1, sizeof *f);
    if (!f) {
        flock_spec_free(o->spec);
        return error_set(err, -ENOMEM, "no memory for a flock");
    }
    f->spec = *o->spec;
    *o->spec = (struct flock_spec){0};
    f->config = o->model->config;
    f->lanes = o->lanes;
    f->model = o->model;
    f->pool = o->pool;
    f->lane = calloc(o->lanes + 1, sizeof *f->lane);
    f->max_tokens = o->max_tokens;
    int rc = f->lane ? 0 : error_set(err, -ENOMEM, "no memory for %u lanes", o->lanes);
    if (rc != 0) goto fail;
    if (o->expert_format == FP9_E4M3) rc = flock_check_e4m3(o->model, err);
    if (rc != 0) goto fail;
    if (f->spec.transport->find) rc = f->spec.transport->find(&f->transport, &f->spec, err);
    if (rc == 0) rc = make_plan(f, o, err);
    if (rc == 0) rc = flock__begin_without(f, err);
    if (rc != 0) goto fail;
    f->options = (struct transport_options){.plan = &f->plan,
                                            .duck = f->spec.duck,
                                            .pool = o->pool,
                                            .lanes = o->lanes,
                                            .max_tokens = o->max_tokens,
                                            .max_top_k = o->model->config.top_k,
                                            .element_bytes = flock_element_bytes(o->model),
                                            .activation = o->activation,
                                            .result = o->result};
    rc = f->spec.transport->open(&f->transport, &f->options, err);
    if (rc != 0) goto fail;
    rc = load_first(f, err);
    if (rc == 0) rc = flock__look_for_absent(f, err);
    if (rc != 0) goto fail;
    keep_plan(f);
    f->opened = true;
    *out = f;
    return 0;
fail:
    flock_close(f);
    return rc;
}

/* With -v a line per duck: where the work was done. */
static void say_stats(const struct flock *f)
{
    flock_settle(f);
    for (uint32_t i = 0; i < f->plan.ducks; i++) {
        struct duck_stats d;
        flock_duck_stats(f, i, &d);
        log_detail("duck %s: %" PRIu64 " slices, %.1f MB of %s; %" PRIu64 " steps, %" PRIu64
                   " expert reads, %.1f MB read, %.1f ms computing",
                   d.name, d.slices, (double)d.weight_bytes * 1e-6, flock_format_name(f), d.steps,
                   d.expert_reads, (double)d.expert_bytes * 1e-6, (double)d.compute_ns * 1e-6);
    }
}

void flock_close(struct flock *f)
{
    if (!f) return;
    nursery_close(f->nursery); // works with the transport
    if (f->opened) say_stats(f);
    if (f->transport) f->transport->ops->close(f->transport);
    plan_free(&f->plan);
    plan_free(&f->home);
    flock_spec_free(&f->spec);
    free(f->lane);
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
    struct error why = {""};
    int rc = check_step(f, lane, step, err);
    if (rc == 0 && f->nursery) rc = flock__take_back(f, err);
    if (rc == 0 && f->stranded) rc = error_set(err, -EHOSTDOWN, "%s", f->stranded_by.text);
    if (rc != 0) return rc;
    // This step is not among those that a take-over submits again.
    while ((rc = f->transport->ops->submit(f->transport, lane, step, &why)) < 0) {
        rc = flock__take_over(f, rc, &why);
        if (rc == 0) continue;
        if (err) *err = why;
        return rc;
    }
    f->lane[lane] = (struct flock_lane){*step, true, f->submitted++};
    return 0;
}

int flock_poll(struct flock *f, uint32_t lane, bool wait, struct error *err)
{
    struct error why = {""};
    int rc;
    if (lane >= f->lanes) return error_set(err, -EINVAL, "lane %u of %u", lane, f->lanes);
    if (f->stranded) {
        f->lane[lane].busy = false;
        return error_set(err, -EHOSTDOWN, "%s", f->stranded_by.text);
    }
    while ((rc = f->transport->ops->poll(f->transport, lane, wait, &why)) < 0) {
        rc = flock__take_over(f, rc, &why);
        if (rc == 0) continue;
        if (err) *err = why;
        break;
    }
    if (rc != 0) f->lane[lane].busy = false; // done, or given up: nobody will submit it again
    return rc;
}

int flock_look(struct flock *f, struct error *err)
{
    const struct transport_ops *ops = f->transport->ops;
    struct error why = {""};
    if (f->nursery) flock__take_back(f, NULL); // what fails is said by the next step
    if (!f->stranded && ops->lost && ops->lost(f->transport, &why) >= 0)
        flock__take_over(f, -EHOSTDOWN, &why);
    return f->stranded ? error_set(err, -EHOSTDOWN, "%s", f->stranded_by.text) : 0;
}

uint32_t flock_ducks(const struct flock *f)
{
    return f->plan.ducks;
}

void flock_settle(const struct flock *f)
{
    if (f->transport->ops->settle) f->transport->ops->settle(f->transport);
}

void flock_duck_stats(const struct flock *f, uint32_t duck, struct duck_stats *out)
{
    *out = (struct duck_stats){0};
    f->transport->ops->stats(f->transport, duck, out);
    snprintf(out->name, sizeof out->name, "%s", f->spec.duck[duck].name);
}

bool flock_times(const struct flock *f, struct flock_times *out)
{
    *out = (struct flock_times){0};
    if (!f->transport->ops->times) return false;
    f->transport->ops->times(f->transport, out);
    return true;
}
