/* load_bar.c: a thread that looks ten times a second. */
#include "host/flock/load_bar.h"

#include <stdio.h>
#include <string.h>

#include "host/util/clock.h"

#define LOOK_NS 100000000
#define CLEARLY 1.25

/* Of a duck that has got nothing yet the rate is less than what is on its way in that time. */
static double seconds_left(const struct duck_loading *d)
{
    double got = (double)(d->held ? d->held : d->under_way);
    return got > 0 ? (double)(d->total - d->held) * ((double)d->ns * 1e-9) / got : 0;
}

int load_bar__slowest(const struct duck_loading *d, uint32_t ducks, int shown)
{
    int slowest = -1;
    for (uint32_t i = 0; i < ducks; i++) {
        if (d[i].held >= d[i].total) continue;
        if (slowest < 0 || seconds_left(&d[i]) > seconds_left(&d[slowest])) slowest = (int)i;
    }
    if (slowest < 0 || shown < 0 || d[shown].held >= d[shown].total) return slowest;
    return seconds_left(&d[slowest]) > CLEARLY * seconds_left(&d[shown]) ? slowest : shown;
}

static uint64_t see_all(struct load_bar *b, uint64_t *total)
{
    uint64_t held = *total = 0;
    for (uint32_t i = 0; i < b->ducks; i++) {
        b->seen[i] = (struct duck_loading){0};
        b->transport->ops->loading(b->transport, i, &b->seen[i]);
        held += b->seen[i].held;
        *total += b->seen[i].total;
    }
    return held;
}

static void look(struct load_bar *b)
{
    if (!b->transport->ops->loading) {
        progress_update(&b->progress, (double)atomic_load(b->given));
        return;
    }
    uint64_t total, held = see_all(b, &total);
    struct progress_part part = {.name = ""};
    b->slowest = b->ducks > 1 ? load_bar__slowest(b->seen, b->ducks, b->slowest) : -1;
    if (b->slowest >= 0) {
        const struct duck_loading *d = &b->seen[b->slowest];
        snprintf(part.name, sizeof part.name, "%s", b->duck[b->slowest].name);
        part.amount = (struct progress_amount){.done = (double)d->held, .total = (double)d->total};
        if (d->ns) part.amount.rate = (double)d->held / ((double)d->ns * 1e-9);
    }
    progress_update_slowest(&b->progress, (double)held, &part);
}

static void *work(void *arg)
{
    struct load_bar *b = arg;
    pthread_mutex_lock(&b->mutex);
    while (!b->end) {
        const uint64_t until = clock_ns() + LOOK_NS;
        look(b);
        clock_wait(&b->cond, &b->mutex, until);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

int load_bar_begin(struct load_bar *b, struct transport *t, const struct spec_duck *duck, uint32_t ducks,
                   const _Atomic uint64_t *given, uint64_t given_total, struct error *err)
{
    *b = (struct load_bar){.transport = t,
                           .duck = duck,
                           .ducks = ducks,
                           .given = given,
                           .slowest = -1,
                           .mutex = PTHREAD_MUTEX_INITIALIZER,
                           .cond = PTHREAD_COND_INITIALIZER};
    uint64_t total = given_total;
    if (t->ops->loading) see_all(b, &total);
    if (total == 0) return 0;
    bool large = total >= 10000000000;
    progress_begin(&b->progress, "loading experts", large ? "GB" : "MB", (double)total, large ? 1e9 : 1e6);
    int rc = -pthread_create(&b->thread, NULL, work, b);
    if (rc) return error_set(err, rc, "no thread to show how far the weights are: %s", strerror(-rc));
    b->begun = true;
    return 0;
}

void load_bar_end(struct load_bar *b)
{
    if (!b->begun) return;
    pthread_mutex_lock(&b->mutex);
    b->end = true;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(b->thread, NULL);
    look(b);
    progress_end(&b->progress);
    b->begun = false;
}
