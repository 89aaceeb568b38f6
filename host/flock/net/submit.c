/* submit.c: the engine thread's part of steps: cut into blocks of tokens, pack, publish, take back. */
#include <errno.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "host/util/clock.h"
#include "host/util/trace.h"

#define WAIT_NS 1000000 // longest sleep of the engine thread: it looks for failures in between

/* The slot of the next step, if it is free. */
static struct net_slot *free_slot(struct net_flock *f)
{
    uint32_t step = f->last_step + 1;
    if (step == 0) step = 1;
    struct net_slot *s = &f->slot[step & (f->slots - 1)];
    if (s->step && (!s->counted || atomic_load_explicit(&s->users, memory_order_acquire) != 0)) return NULL;
    return s;
}

static void pack(const struct net_flock *f, struct net_slot *s, const struct mlp_step *step, uint32_t first)
{
    struct wire_step_layout at =
        wire_step_layout(f->hidden, s->tokens, step->top_k, f->activation, f->payload);
    struct wire_step head = {.bank = s->bank,
                             .tokens = s->tokens,
                             .top_k = step->top_k,
                             .activation = (uint8_t)f->activation,
                             .result = (uint8_t)f->result,
                             .lane = (uint16_t)s->lane,
                             .bytes = (uint32_t)at.bytes};
    size_t pairs = (size_t)s->tokens * step->top_k, skip = (size_t)first * step->top_k;
    memcpy(s->packed, &head, sizeof head);
    if (pairs) {
        memcpy(s->packed + at.ids, step->ids + skip, pairs * sizeof *step->ids);
        memcpy(s->packed + at.weights, step->weights + skip, pairs * sizeof *step->weights);
    }
    wire_pack(f->activation, step->x + (size_t)first * f->hidden, s->tokens, f->hidden,
              s->packed + at.scales);
    s->bytes = (uint32_t)at.bytes;
    s->fragments = wire_fragments(at.bytes, f->payload);
}

static void publish(struct net_flock *f, struct net_slot *s, uint32_t lane, uint64_t now)
{
    struct net_lane *l = &f->lane[lane];
    uint32_t left = l->step.tokens - l->next_token;
    if (++f->last_step == 0) f->last_step = 1;
    s->step = f->last_step;
    s->lane = lane;
    s->bank = l->step.layer;
    s->tokens = left < f->block_tokens ? left : f->block_tokens;
    s->counted = false;
    s->begun_ns = now;
    s->y = l->step.y + (size_t)l->next_token * f->hidden;
    pack(f, s, &l->step, l->next_token);
    struct wire_result_plan plan = wire_result_plan(f->hidden, s->tokens, 1, f->result, f->payload);
    uint32_t blocks = plan.blocks * plan.groups;
    for (uint32_t i = 0; i < blocks; i++)
        atomic_store_explicit(&s->left[i], f->bank[s->bank].nodes, memory_order_relaxed);
    atomic_store_explicit(&s->blocks_left, blocks, memory_order_relaxed);
    atomic_store_explicit(&s->users, f->ports + f->live, memory_order_relaxed);
    atomic_store_explicit(&s->first_result_ns, 0, memory_order_relaxed);
    l->next_token += s->tokens;
    l->pending++;
    s->published_ns = clock_ns();
    atomic_store_explicit(&f->published, s->step, memory_order_release);
}

/* The oldest submitted lane with tokens that have not been sent. */
static int waiting_lane(const struct net_flock *f)
{
    int oldest = -1;
    for (uint32_t i = 0; i < f->lanes; i++) {
        const struct net_lane *l = &f->lane[i];
        if (!l->busy || l->next_token == l->step.tokens) continue;
        if (oldest < 0 || l->number < f->lane[oldest].number) oldest = (int)i;
    }
    return oldest;
}

static uint64_t between(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0; // results may overtake the last port's broadcast
}

static void count_times(struct net_flock *f, const struct net_slot *s)
{
    struct net_times *t = &f->times;
    uint64_t sent = atomic_load_explicit(&s->sent_ns, memory_order_relaxed);
    uint64_t first = atomic_load_explicit(&s->first_result_ns, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&s->last_result_ns, memory_order_relaxed);
    t->steps++;
    t->prepare_ns += between(s->begun_ns, s->published_ns);
    t->send_ns += between(s->published_ns, sent);
    t->judge_wait_ns += between(sent, first);
    t->fetch_ns += between(first, last);
    t->reduce_ns += between(last, atomic_load_explicit(&s->reduced_ns, memory_order_relaxed));
    trace_span(TRACE_FLOCK, s->lane, "prepare", s->begun_ns, s->published_ns, s->bank, 0, s->tokens);
    trace_span(TRACE_FLOCK, s->lane, "send", s->published_ns, sent, s->bank, 0, s->tokens);
    if (first > sent) trace_span(TRACE_FLOCK, s->lane, "judge_wait", sent, first, s->bank, 0, s->tokens);
    trace_span(TRACE_FLOCK, s->lane, "fetch", first, last, s->bank, 0, s->tokens);
    trace_span(TRACE_FLOCK, s->lane, "reduce", last,
               atomic_load_explicit(&s->reduced_ns, memory_order_relaxed), s->bank, 0, s->tokens);
    if (f->last_done_ns) t->judge_gap_ns += between(f->last_done_ns, s->published_ns);
    if (last > f->last_done_ns) f->last_done_ns = last;
}

/* Takes complete steps back and publishes what fits. */
static void pump(struct net_flock *f, uint64_t now)
{
    for (uint32_t i = 0; i < f->slots; i++) {
        struct net_slot *s = &f->slot[i];
        if (!s->step || s->counted || atomic_load_explicit(&s->blocks_left, memory_order_acquire)) continue;
        s->counted = true;
        f->lane[s->lane].pending--;
        count_times(f, s);
    }
    bool news = false;
    for (int lane; (lane = waiting_lane(f)) >= 0; news = true) {
        struct net_slot *s = free_slot(f);
        if (!s) break;
        publish(f, s, (uint32_t)lane, now);
    }
    if (news && f->wake) f->wake(f->wake_self);
}

int net_submit(struct net_flock *f, uint32_t lane, const struct mlp_step *step, uint64_t now,
               struct error *err)
{
    struct net_lane *l = &f->lane[lane];
    int rc = net_failure(f, err);
    if (rc) return rc;
    if (l->busy) return error_set(err, -EBUSY, "lane %u has a step already", lane);
    *l = (struct net_lane){.step = *step, .busy = true, .number = f->submissions++};
    pump(f, now);
    return 0;
}

int net_poll(struct net_flock *f, uint32_t lane, uint64_t now, struct error *err)
{
    struct net_lane *l = &f->lane[lane];
    if (!l->busy) return error_set(err, -EINVAL, "lane %u has no step", lane);
    int rc = net_failure(f, err);
    if (rc) return rc;
    pump(f, now);
    if (l->next_token < l->step.tokens || l->pending) return 0;
    l->busy = false;
    return 1;
}

bool net_settled(const struct net_flock *f)
{
    for (uint32_t i = 0; i < f->slots; i++)
        if (f->slot[i].step && atomic_load_explicit(&f->slot[i].users, memory_order_acquire)) return false;
    return true;
}

static bool any_news(const struct net_flock *f)
{
    for (uint32_t i = 0; i < f->slots; i++) {
        const struct net_slot *s = &f->slot[i];
        if (s->step && !s->counted && atomic_load(&s->blocks_left) == 0) return true;
    }
    return atomic_load(&f->failed);
}

/* As net_wait(), without a system call. */
static void spin(const struct net_flock *f)
{
    uint64_t until = clock_ns() + WAIT_NS;
    while (!any_news(f) && clock_ns() < until) __builtin_ia32_pause();
}

void net_wait(struct net_flock *f)
{
    if (f->config->poll) {
        spin(f);
        return;
    }
    const uint64_t until = clock_ns() + WAIT_NS;
    pthread_mutex_lock(&f->wait_mutex);
    atomic_store(&f->waiting, true);
    if (!any_news(f)) clock_wait(&f->wait_cond, &f->wait_mutex, until);
    atomic_store(&f->waiting, false);
    pthread_mutex_unlock(&f->wait_mutex);
}
