/* team.h: one job at a time, cut into tasks, for all cores of a duck.
 *
 * Core 0 starts a job, does tasks of it itself between two looks at the NIC, and sees its end; the other
 * cores take tasks whenever there are any. No locks, no waiting inside. struct team lies in memory that all
 * cores (and the judge's program) can write; only core 0 starts and ends jobs.
 *
 * A job is either a function of the duck (packing weights) or a phase of a step, which the judge's program
 * may run: that one is described by data only, because the program does not share the duck's code. Cores stay
 * in the program from one step to the next until core 0 calls them back. */
#ifndef DUCK_TEAM_H
#define DUCK_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "duck/duck_core.h"

typedef void team_fn(void *arg, uint32_t task);

struct team_job {
    team_fn *fn; // NULL: a phase of `work`
    void *arg;
    struct duck_work *work;
    enum duck_phase phase;
    uint32_t by_program;
    _Atomic uint8_t *done; // (tasks) set to 1 when the task's output is final; may be NULL
};

struct team {
    /* High half: number of the job; low half: the next task, TEAM_CLOSED while there is no job to take from.
     * In one word, so that a core which comes late to an old job cannot take a task of the next one. */
    _Atomic uint64_t ticket;
    _Atomic uint32_t tasks, finished;
    _Atomic uint32_t mail;   // changes with every job: what sleeping cores wait on
    _Atomic uint32_t recall; // 1: cores that find no task inside the program shall leave it
    struct team_job job;     // constant while any of its tasks is unfinished
};

#define TEAM_CLOSED 0xffffffffu

/* Core 0; the job before must be over. tasks < TEAM_CLOSED. The job's done flags are cleared. */
void team_start(struct team *t, const struct team_job *job, uint32_t tasks);
/* Core 0: 1 once all tasks are finished (also when there never was a job). */
int team_is_over(const struct team *t);
/* Core 0, when no core is inside a task: forgets the job. */
void team_abandon(struct team *t);
/* Core 0: nobody waits inside the program for another job once this one has no tasks left. */
void team_recall(struct team *t);

/* Any core: takes a task. 0: there is none. */
static inline int team_take(struct team *t, uint32_t *task)
{
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    for (;;) {
        uint32_t next = (uint32_t)ticket;
        if (next == TEAM_CLOSED || next >= atomic_load_explicit(&t->tasks, memory_order_relaxed)) return 0;
        if (atomic_compare_exchange_weak_explicit(&t->ticket, &ticket, ticket + 1, memory_order_acquire,
                                                  memory_order_acquire)) {
            *task = next;
            return 1;
        }
    }
}

/* Any core: the task it took is finished. */
static inline void team_finish(struct team *t, uint32_t task)
{
    if (t->job.done) atomic_store_explicit(&t->job.done[task], 1, memory_order_release);
    atomic_fetch_add_explicit(&t->finished, 1, memory_order_release);
}

#endif
