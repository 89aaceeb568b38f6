/* team.c: starting and ending jobs. */
#include "duck/team.h"

void team_start(struct team *t, const struct team_job *job, uint32_t tasks)
{
    uint64_t number = (atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32) + 1;
    // Closed while its description changes: a late core either sees this or fails its exchange.
    atomic_store_explicit(&t->ticket, number << 32 | TEAM_CLOSED, memory_order_seq_cst);
    atomic_store_explicit(&t->tasks, tasks, memory_order_relaxed);
    atomic_store_explicit(&t->finished, 0, memory_order_relaxed);
    t->job = *job;
    if (job->done)
        for (uint32_t i = 0; i < tasks; i++) atomic_store_explicit(&job->done[i], 0, memory_order_relaxed);
    atomic_store_explicit(&t->recall, 0, memory_order_relaxed);
    atomic_store_explicit(&t->ticket, number << 32, memory_order_release);
    atomic_fetch_add_explicit(&t->mail, 1, memory_order_release);
}

int team_is_over(const struct team *t)
{
    return atomic_load_explicit(&t->finished, memory_order_acquire) ==
           atomic_load_explicit(&t->tasks, memory_order_relaxed);
}

void team_abandon(struct team *t)
{
    uint64_t number = (atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&t->ticket, number << 32 | TEAM_CLOSED, memory_order_seq_cst);
    atomic_store_explicit(&t->tasks, 0, memory_order_relaxed);
    atomic_store_explicit(&t->finished, 0, memory_order_relaxed);
}

void team_recall(struct team *t)
{
    atomic_store_explicit(&t->recall, 1, memory_order_release);
}
