/* faulty.c: programs for the judge that go wrong in their first task, each built with another FAULT. */
#include "duck/duck_core_internal.h"
#include "duck/program.h"
#include "duck/program/note.h"

program_entry_fn program_entry;

static uint32_t go_wrong(const struct team *team)
{
#if FAULT == 1 // divides by zero
    volatile uint32_t none = 0;
    return (uint32_t)team->job.phase / none;
#elif FAULT == 2 // writes to weights; struct duck_work begins with a pointer to its core
    const struct duck_core *core = *(const struct duck_core *const *)(const void *)team->job.work;
    volatile uint8_t *weight = core->run[0].experts;
    *weight = (uint8_t)(*weight + 1); // reading is allowed
    return 0;
#elif FAULT == 3 // spins
    for (volatile uint32_t phase = 0; phase < DUCK_PHASES;) phase = (uint32_t)team->job.phase;
    return 0;
#else            // 4: looks for the duck's key, which lies in front of the team
    return *(volatile const uint32_t *)((uintptr_t)team - 4096);
#endif
}

uint32_t program_entry(struct team *team, uint32_t task, uint32_t most, _Atomic uint32_t *beat)
{
    (void)task, (void)most, (void)beat;
    uint32_t (*volatile f)(const struct team *) = go_wrong; // a call that shows up in the backtrace
    return f(team) | TEAM_CLOSED;
}
