/* user.h: ring 3: entering the judge's program, and what becomes of its faults.
 *
 * A core enters with interrupts on; all it does there ends in one of four ways: the program returns, it
 * raises an exception, it does not get on (PROGRAM_TASK_NS), or another core failed. The last three make
 * user_enter() return TEAM_CLOSED. The first fault of all cores is kept. Compiled without vector registers:
 * it runs in the middle of the program. */
#ifndef DUCK_UEFI_USER_H
#define DUCK_UEFI_USER_H

#include <stdatomic.h>
#include <stdint.h>

#include "duck/team.h"

struct trap;
struct wire_fault;

/* Per core. */
struct user {
    uint64_t stack, stack_end; // in ring 3; a core's beat lies behind its end
    _Atomic uint32_t *beat;    // odd: has a task in hand (duck/program.h)
    const struct team *team;   // of the present visit
    uint32_t beat_seen;        // at the last tick; for so many ticks it has been the same
    uint32_t same_beat;
    uint32_t ticks;  // 1: the timer runs
    uint32_t rights; // version of the page rights it knows
};

/* Every core, once: SYSCALL, and what keeps ring 3 from looking around. */
void user_enable(void);

/* Where the program lies. Forgets a fault. */
void user_program(uint64_t code, uint64_t bytes);
/* Enters `entry` on this core's stack of ring 3, through the page that holds user_page. */
uint32_t user_run(uint64_t page, uint64_t entry, struct team *team, uint32_t task, uint32_t most);
/* 1: a core has failed; its fault is complete. run() must not enter any more. */
int user_has_failed(void);
/* The fault of user_has_failed(). */
void user_fault(struct wire_fault *out);

/* trap.c: from ring 3; they may not return. */
void user_interrupt(const struct trap *t);
void user_exception(const struct trap *t);

extern const uint8_t user_page[], user_page_end[];

#endif
