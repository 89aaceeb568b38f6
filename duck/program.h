/* program.h: the judge's program, fp9_kernels.elf: the arithmetic of a step, sent by the host.
 *
 * One static position-independent ELF64 (ET_DYN, x86-64) for all cores and all kinds of ducks. The duck keeps
 * everything else: frames, weights, the order of phases. The program sees a duck's memory: weights (read only
 * on bare metal), struct team, and the step's scratch.
 *
 * ENTRY  e_entry is program_entry_fn, System V calling convention, direction flag clear, MXCSR 0x1f80, AVX
 * state enabled. `task` has been taken already; the program runs and finishes it, takes more of the team with
 * team_take(), up to `most` in all, and returns TEAM_CLOSED. A job that has job.fn set is the duck's own: a
 * task of such a job that it took is returned, unfinished. It needs 192 KiB of stack, calls nothing outside of
 * itself, has no constructors and no relocations other than R_X86_64_RELATIVE. A bare-metal duck runs it in
 * ring 3 and gives it a return address that leads to a system call.
 *
 * ABI  The program is built from the same struct duck_work as the duck that began the step. A note section
 * tells: the ELF note "duckd", type PROGRAM_NOTE, whose 4-byte descriptor is PROGRAM_ABI. */
#ifndef DUCK_PROGRAM_H
#define DUCK_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "duck/team.h"

#define PROGRAM_ABI 1u
#define PROGRAM_NOTE 0x4b435544u

typedef uint32_t program_entry_fn(struct team *team, uint32_t task, uint32_t most);

enum program_problem {
    PROGRAM_OK,
    PROGRAM_NOT_ELF,     // no ELF64 little-endian ET_DYN of x86-64
    PROGRAM_BAD_SEGMENT, // outside of the file, overlapping, too large, writable and executable
    PROGRAM_BAD_RELOC,   // a relocation of another kind, or outside of its segments
    PROGRAM_OTHER_ABI,   // no note, or another ABI
    PROGRAM_BAD_ENTRY,   // entry not in an executable segment
    PROGRAM_NO_MEMORY,
};

/* How a platform holds and enters a program. */
struct program_ops {
    /* Replaces the program there was. Returns enum program_problem. */
    int (*load)(void *self, const uint8_t *elf, size_t bytes);
    /* Any core: enters the program, returns what it returns (TEAM_CLOSED also after a fault). */
    uint32_t (*run)(void *self, struct team *team, uint32_t task, uint32_t most);
};

#endif
