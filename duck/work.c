/* work.c: the cores: taking tasks, spinning, sleeping. */
#include "duck/duck_internal.h"

enum { SLEEP_NS = 50000000 }; // a wake-up that got lost costs this much at most

/* The job may be looked at only with a task of it in hand: else it may be changing. */
static void run_tasks(struct duck *d, uint32_t most)
{
    struct team *t = d->team;
    uint32_t task;
    while (most-- && team_take(t, &task)) {
        if (!t->job.fn && t->job.by_program) task = d->p->program->run(d->p->self, t, task, most + 1);
        if (task == TEAM_CLOSED) continue;
        if (t->job.fn)
            t->job.fn(t->job.arg, task);
        else
            duck_work_run(t->job.work, t->job.phase, task);
        team_finish(t, task);
    }
}

int duck__work_once(struct duck *d, uint32_t most)
{
    if (!team_has_tasks(d->team)) return 0;
    run_tasks(d, most);
    return 1;
}

void duck__drain(struct duck *d)
{
    while (!team_is_over(d->team))
        if (!duck__work_once(d, 1)) __builtin_ia32_pause();
    if (d->store.packing.r) duck__pack_over(d);
    d->judge.running = NULL;
}

void duck_worker(struct duck *d, const _Atomic uint32_t *stop)
{
    const struct platform *p = d->p;
    uint64_t idle_since = 0;
    while (!atomic_load_explicit(stop, memory_order_relaxed)) {
        uint32_t mail = atomic_load_explicit(&d->team->mail, memory_order_acquire);
        if (team_has_tasks(d->team)) {
            run_tasks(d, UINT32_MAX);
            idle_since = 0;
            continue;
        }
        uint64_t now = p->now(p->self);
        if (idle_since == 0) idle_since = now;
        if (now - idle_since > p->spin_ns)
            p->sleep(p->self, &d->team->mail, mail, SLEEP_NS);
        else
            __builtin_ia32_pause();
    }
}
