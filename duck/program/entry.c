/* entry.c: fp9_kernels.elf: the judge's program (duck/program.h). */
#include "duck/program.h"
#include "duck/program/note.h"

#include <string.h>

#include "fp9/fp9.h"

program_entry_fn program_entry;

/* The compiler may call these. */
void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    unsigned char *t = to;
    __asm__ volatile("rep movsb" : "+D"(t), "+S"(from), "+c"(n) : : "memory");
    return to;
}

void *memset(void *to, int value, size_t n)
{
    unsigned char *t = to;
    __asm__ volatile("rep stosb" : "+D"(t), "+c"(n) : "a"(value) : "memory");
    return to;
}

/* 0: the program shall be left. */
static int next_task(struct team *team, uint32_t *task, int stay)
{
    while (!team_take(team, task)) {
        if (!stay || atomic_load_explicit(&team->recall, memory_order_acquire)) return 0;
        __builtin_ia32_pause();
    }
    return 1;
}

static void step(_Atomic uint32_t *beat) // this core's own
{
    atomic_store_explicit(beat, atomic_load_explicit(beat, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* Several tasks or a piece of one; the task that has to be gone on with. */
static uint32_t pieces(struct team *team, uint32_t task, const struct fp9_kernels *k, _Atomic uint32_t *beat)
{
    size_t work = DUCK_PIECE_WORK;
    for (;;) {
        int over = duck_work_run_piece(team->job.work, k, team->job.phase, task, &work);
        if (over) team_finish(team, task);
        step(beat);
        if (!over) return task;
        if (work == 0 || !next_task(team, &task, 0)) return TEAM_CLOSED;
        step(beat);
    }
}

uint32_t program_entry(struct team *team, uint32_t task, uint32_t most, _Atomic uint32_t *beat)
{
    const struct fp9_kernels *k = fp9_select(NULL);
    int stay = most == PROGRAM_STAY;
    if (!k) __builtin_trap(); // a duck without AVX2 is not admitted
    if (most == PROGRAM_PIECES) return pieces(team, task, k, beat);
    for (;;) {
        if (team->job.fn) return task;
        duck_work_run_with(team->job.work, k, team->job.phase, task);
        team_finish(team, task);
        step(beat);
        if ((!stay && --most == 0) || !next_task(team, &task, stay)) return TEAM_CLOSED;
        step(beat);
    }
}
