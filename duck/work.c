/* work.c: the cores: taking tasks, spinning, sleeping. */
#include "duck/duck_internal.h"

enum { SLEEP_NS = 50000000 }; // a wake-up that got lost costs this much at most

void duck__start_job(struct duck *d, const struct team_job *job, uint32_t tasks)
{
    d->job = *job;
    d->job_tasks = tasks;
    team_start(d->team, job, tasks);
}

/* A task that was not the program's is over. */
static void finish(struct duck *d, uint32_t task)
{
    if (d->job.done) atomic_store_explicit(&d->job.done[task], 1, memory_order_release);
    atomic_fetch_add_explicit(&d->team->finished, 1, memory_order_release);
}

/* The job may be looked at only with a task of it in hand: else it may be changing. Looked at is the duck's
 * own copy: the program can write the team's. */
static void run_task(struct duck *d, uint32_t task)
{
    if (!d->job.fn && d->job.by_program) {
        task = d->p->program->run(d->p->self, d->team, task, PROGRAM_STAY);
        if (task == TEAM_CLOSED) return;
    }
    const struct team_job *job = &d->job; // maybe a later one than before: the program stayed inside
    if (task >= d->job_tasks) return;
    if (job->fn)
        job->fn(job->arg, task);
    else if (!job->by_program)
        duck_work_run(job->work, job->phase, task);
    finish(d, task);
}

/* Returns the task that has to be gone on with; TEAM_CLOSED: none. */
static uint32_t run_pieces(struct duck *d, uint32_t task)
{
    const struct team_job *job = &d->job;
    size_t work = DUCK_PIECE_WORK;
    if (!job->fn && job->by_program) {
        task = d->p->program->run(d->p->self, d->team, task, PROGRAM_PIECES);
        return task < d->job_tasks ? task : TEAM_CLOSED;
    }
    do {
        if (job->fn)
            job->fn(job->arg, task);
        else if (!duck_work_run_piece(job->work, d->kernels, job->phase, task, &work))
            return task;
        finish(d, task);
    } while (!job->fn && work && team_take(d->team, &task));
    return TEAM_CLOSED;
}

int duck__work_once(struct duck *d)
{
    if (d->piece_of == TEAM_CLOSED && !team_take(d->team, &d->piece_of)) {
        d->piece_of = TEAM_CLOSED;
        return 0;
    }
    d->piece_of = run_pieces(d, d->piece_of);
    return 1;
}

int duck__check_program(struct duck *d)
{
    const struct program_ops *program = d->p->program;
    struct wire_fault fault;
    if (!program || !program->failed || !program->failed(d->p->self, &fault)) return 0;
    duck_fault(d, &fault);
    return 1;
}

void duck__drain(struct duck *d)
{
    while (!team_is_over(d->team) && !duck__check_program(d))
        if (!duck__work_once(d)) __builtin_ia32_pause();
    team_recall(d->team);
    if (d->store.packing.r) duck__pack_over(d);
    d->known.work = NULL; // its phases are not complete
    d->judge.running = NULL;
}

void duck_worker(struct duck *d, const _Atomic uint32_t *stop)
{
    const struct platform *p = d->p;
    uint64_t idle_since = 0;
    while (!atomic_load_explicit(stop, memory_order_relaxed)) {
        uint32_t task, mail = atomic_load_explicit(&d->team->mail, memory_order_acquire);
        if (team_take(d->team, &task)) {
            run_task(d, task);
            idle_since = 0;
            continue;
        }
        uint64_t now = p->now(p->self);
        if (idle_since == 0) idle_since = now;
        // Called back: core 0 is about to sleep.
        if (now - idle_since > p->spin_ns || atomic_load_explicit(&d->team->recall, memory_order_relaxed))
            p->sleep(p->self, &d->team->mail, mail, SLEEP_NS);
        else
            __builtin_ia32_pause();
    }
}
