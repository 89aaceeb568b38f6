/* figures.c: what a network flock has counted, for -v, /metrics and the end of a run. */
#include <stdio.h>
#include <stdlib.h>

#include "host/flock/net/internal.h"
#include "host/util/log.h"

static int ascending(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Compute times of all ducks' latest steps. */
static void duck_times(const struct net_flock *f, struct flock_times *out)
{
    size_t n = 0;
    uint32_t *us = malloc((size_t)f->ducks * NET_RECENT * sizeof *us);
    for (uint32_t i = 0; us && i < f->ducks; i++) {
        uint64_t steps = atomic_load(&f->duck[i].count.steps);
        for (uint32_t k = 0; k < NET_RECENT && k < steps; k++)
            us[n++] = atomic_load(&f->duck[i].recent_us[k]);
    }
    if (n) {
        qsort(us, n, sizeof *us, ascending);
        out->duck_p50_us = us[n / 2];
        out->duck_p90_us = us[n * 9 / 10];
        out->duck_max_us = us[n - 1];
    }
    free(us);
}

void net_flock_figures(const struct net_flock *f, struct flock_times *out)
{
    const struct net_times *t = &f->times;
    *out = (struct flock_times){.steps = t->steps,
                                .prepare_ns = t->prepare_ns,
                                .send_ns = t->send_ns,
                                .judge_wait_ns = t->judge_wait_ns,
                                .fetch_ns = t->fetch_ns,
                                .reduce_ns = t->reduce_ns,
                                .judge_gap_ns = t->judge_gap_ns,
                                .session = f->session,
                                .sessions = f->sessions};
    duck_times(f, out);
}

static void link_figures(const struct net_duck *d, struct duck_link_stats *out)
{
    const struct wire_hello *h = &d->hello;
    const struct net_counters *c = &d->count;
    char address[16];
    net_show_address(d->peer.address, address);
    *out = (struct duck_link_stats){.present = !atomic_load(&d->gone),
                                    .cores = h->cores,
                                    .link_mbps = h->link_mbps,
                                    .memory_total = h->memory_total,
                                    .memory_free = h->memory_free,
                                    .read_bytes_per_second = h->read_bytes_per_second,
                                    .frames_in = atomic_load(&c->frames_in),
                                    .bytes_in = atomic_load(&c->bytes_in),
                                    .frames_out = atomic_load(&c->frames_out),
                                    .bytes_out = atomic_load(&c->bytes_out),
                                    .asked_again = atomic_load(&c->resend_asked),
                                    .served_again = atomic_load(&c->resend_served),
                                    .steps_repeated = atomic_load(&c->steps_repeated),
                                    .chunks_repeated = atomic_load(&c->chunks_repeated),
                                    .duplicates = atomic_load(&c->duplicates),
                                    .late = atomic_load(&c->late),
                                    .wait_ns = 1000 * atomic_load(&c->wait_us)};
    snprintf(out->address, sizeof out->address, "%s:%u", address, d->peer.port);
    snprintf(out->firmware, sizeof out->firmware, "%s", h->firmware);
    snprintf(out->cpu, sizeof out->cpu, "%s", h->cpu);
}

void net_duck_figures(const struct net_duck *d, struct duck_stats *out)
{
    const struct net_counters *c = &d->count;
    for (uint32_t i = 0; i < d->shape.runs; i++) out->slices += d->run[i].count;
    out->weight_bytes = d->shape.runs ? duck_core_bytes(&d->shape) : 0;
    out->steps = atomic_load(&c->steps);
    out->expert_reads = atomic_load(&c->experts);
    out->expert_bytes = atomic_load(&c->expert_bytes);
    out->compute_ns = 1000 * atomic_load(&c->compute_us);
    out->networked = true;
    link_figures(d, &out->link);
}

static void say_times(const struct net_flock *f)
{
    struct flock_times t;
    net_flock_figures(f, &t);
    if (t.steps == 0) return;
    double k = 1e3 * (double)t.steps;
    log_detail(
        "a step in us: prepare %.1f, send %.1f, judge_wait %.1f, fetch %.1f, reduce %.1f, judge_gap %.1f; "
        "duck p50 %u, p90 %u, max %u; %llu steps",
        (double)t.prepare_ns / k, (double)t.send_ns / k, (double)t.judge_wait_ns / k, (double)t.fetch_ns / k,
        (double)t.reduce_ns / k, (double)t.judge_gap_ns / k, t.duck_p50_us, t.duck_p90_us, t.duck_max_us,
        (unsigned long long)t.steps);
}

void net_say_figures(const struct net_flock *f)
{
    say_times(f);
    for (uint32_t i = 0; i < f->ducks; i++) {
        struct duck_link_stats l;
        link_figures(&f->duck[i], &l);
        log_detail("%s: %llu frames in, %llu MB out alone, asked again %llu, served again %llu, steps "
                   "repeated %llu, "
                   "chunks repeated %llu, duplicates %llu, late %llu",
                   net_duck_name(&f->duck[i]).s, (unsigned long long)l.frames_in,
                   (unsigned long long)(l.bytes_out / 1000000), (unsigned long long)l.asked_again,
                   (unsigned long long)l.served_again, (unsigned long long)l.steps_repeated,
                   (unsigned long long)l.chunks_repeated, (unsigned long long)l.duplicates,
                   (unsigned long long)l.late);
    }
}
