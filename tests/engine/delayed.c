/* delayed.c: see delayed.h. */
#include "delayed.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "host/util/clock.h"

static uint64_t now;

/* A look at the clock is about what a turn of a polling loop takes. */
uint64_t delayed_clock_ns(void)
{
    return now += 100;
}

static float experts(uint32_t layer, float x)
{
    return fmodf(x * 3 + (float)layer, 1009);
}

float delayed_expected(uint32_t layers, float x)
{
    for (uint32_t i = 0; i < layers; i++) x = experts(i, x + 1);
    return x;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- backend ---- */

static void begin_segment(struct delayed *d, struct delayed_lane *a)
{
    d->backend_free_ns = later(delayed_clock_ns(), d->backend_free_ns) + d->backend_ns;
    a->ready_ns = d->backend_free_ns;
    a->state = DELAYED_COMPUTE;
}

static int start(struct backend *b, uint32_t lane, const struct backend_job *job, struct error *err)
{
    (void)err;
    struct delayed *d = (struct delayed *)(void *)b;
    struct delayed_lane *a = &d->lane[lane];
    assert(a->state == DELAYED_FREE || a->state == DELAYED_READY);
    *a = (struct delayed_lane){.x = (float)job->ids[0], .ready_ns = UINT64_MAX, .state = DELAYED_COMPUTE};
    return 0;
}

static enum backend_event poll(struct backend *b, uint32_t lane, struct mlp_step *step, struct error *err)
{
    (void)err;
    struct delayed *d = (struct delayed *)(void *)b;
    struct delayed_lane *a = &d->lane[lane];
    assert(a->state == DELAYED_COMPUTE);
    if (a->ready_ns == UINT64_MAX) begin_segment(d, a); // the first one begins when it may
    if (delayed_clock_ns() < a->ready_ns) return BACKEND_BUSY;
    if (a->layer == d->layers) {
        a->state = DELAYED_READY;
        return BACKEND_DONE;
    }
    a->x += 1;
    *step = (struct mlp_step){.layer = a->layer, .tokens = 1, .x = &a->x, .y = &a->y};
    a->state = DELAYED_PUBLISHED;
    return BACKEND_MLP;
}

static void resume(struct backend *b, uint32_t lane)
{
    struct delayed *d = (struct delayed *)(void *)b;
    struct delayed_lane *a = &d->lane[lane];
    assert(a->state == DELAYED_PUBLISHED && !a->at_ducks);
    a->x = a->y;
    a->layer++;
    begin_segment(d, a);
}

static void cancel(struct backend *b, uint32_t lane)
{
    ((struct delayed *)(void *)b)->lane[lane].state = DELAYED_FREE;
}

static const struct backend_ops backend_ops = {
    .name = "delayed", .start = start, .poll = poll, .resume = resume, .cancel = cancel};

/* ---- transport ---- */

static struct delayed *of_transport(struct transport *t)
{
    return (struct delayed *)(void *)((char *)t - offsetof(struct delayed, transport));
}

static int submit(struct transport *t, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    struct delayed *d = of_transport(t);
    struct delayed_lane *a = &d->lane[lane];
    if (a->at_ducks) return error_set(err, -EBUSY, "lane %u has a step already", lane);
    d->duck_free_ns = later(delayed_clock_ns() + d->wire_ns, d->duck_free_ns) + d->duck_ns;
    a->answer_ns = d->duck_free_ns + d->wire_ns;
    a->step = *step;
    a->at_ducks = true;
    return 0;
}

static int poll_ducks(struct transport *t, uint32_t lane, bool wait, struct error *err)
{
    (void)err;
    struct delayed_lane *a = &of_transport(t)->lane[lane];
    assert(a->at_ducks);
    while (delayed_clock_ns() < a->answer_ns)
        if (!wait) return 0;
    a->at_ducks = false;
    *a->step.y = experts(a->step.layer, *a->step.x);
    return 1;
}

static const struct transport_ops transport_ops = {.name = "delayed", .submit = submit, .poll = poll_ducks};

/* ---- the seam between the two ---- */

static int seam_submit(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    struct transport *t = flock;
    return t->ops->submit(t, lane, step, err);
}

static int seam_poll(void *flock, uint32_t lane, bool wait, struct error *err)
{
    struct transport *t = flock;
    return t->ops->poll(t, lane, wait, err);
}

struct flock_seam delayed_flock(struct delayed *d)
{
    return (struct flock_seam){seam_submit, seam_poll, &d->transport, false};
}

void delayed_init(struct delayed *d, uint32_t layers, uint64_t backend_ns, uint64_t duck_ns, uint64_t wire_ns)
{
    if (now == 0) now = clock_ns(); // traces count from there
    *d = (struct delayed){.backend = {&backend_ops},
                          .transport = {&transport_ops},
                          .layers = layers,
                          .backend_ns = backend_ns,
                          .duck_ns = duck_ns,
                          .wire_ns = wire_ns};
}
