/* program.h: the judge's program, fp9_kernels.elf: the arithmetic of a step, sent by the host.
 *
 * One static position-independent ELF64 (ET_DYN, x86-64) for all cores and all kinds of ducks. The duck keeps
 * everything else: frames, weights, the order of phases. The program sees a duck's memory: weights (read only
 * on bare metal), struct team, and the step's scratch.
 *
 * ENTRY  e_entry is program_entry_fn, System V calling convention, direction flag clear, MXCSR 0x1f80, AVX
 * state enabled. `task` has been taken already; the program runs and finishes it, takes more of the team with
 * team_take(), up to `most` in all, and returns TEAM_CLOSED. With PROGRAM_STAY it waits inside for further
 * tasks, of this job and of later ones, and returns once team->recall is set. A job that has job.fn set is
 * the duck's own: a task of such a job that it took is returned, unfinished. `beat` is odd while the program
 * has a task in hand: it is when entered, and the program adds 1 whenever it has finished a task or taken
 * one. A task that it holds for PROGRAM_TASK_NS is held to be stuck. With PROGRAM_PIECES it does about
 * DUCK_PIECE_WORK, several small tasks or a piece of a large one, and returns the task that it is in the
 * middle of; only core 0 asks for pieces, and goes on with that task before it takes another. It needs 384
 * KiB of stack, calls nothing outside of itself, has no constructors and no relocations other than
 * R_X86_64_RELATIVE. A bare-metal duck runs it in ring 3 and gives it a return address that leads to a system
 * call.
 *
 * ABI  The program is built from the same struct duck_work, and for the same packed layout (fp9/fp9.h), as
 * the duck that began the step. A note section tells: the ELF note "duckd", type PROGRAM_NOTE, whose 4-byte
 * descriptor is PROGRAM_ABI. */
#ifndef DUCK_PROGRAM_H
#define DUCK_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "duck/team.h"

#define PROGRAM_ABI 6u
#define PROGRAM_NOTE 0x4b435544u

#define PROGRAM_STAY UINT32_MAX                // `most`: wait for further tasks
#define PROGRAM_PIECES 0u                      // `most`: little at a time
#define PROGRAM_TASK_NS ((uint64_t)1000000000) // a task takes some microseconds

typedef uint32_t program_entry_fn(struct team *team, uint32_t task, uint32_t most, _Atomic uint32_t *beat);

enum program_problem {
    PROGRAM_OK,
    PROGRAM_NOT_ELF,     // no ELF64 little-endian ET_DYN of x86-64
    PROGRAM_BAD_SEGMENT, // outside of the file, overlapping, too large, writable and executable
    PROGRAM_BAD_RELOC,   // a relocation of another kind, or outside of its segments
    PROGRAM_OTHER_ABI,   // no note, or another ABI
    PROGRAM_BAD_ENTRY,   // entry not in an executable segment
    PROGRAM_NO_MEMORY,
};

/* What the program may do with memory of the duck. */
enum program_rights { PROGRAM_NOTHING, PROGRAM_READ, PROGRAM_WRITE };

struct wire_fault;

/* How a platform holds and enters a program. load() and share() are core 0's, called when there is no job and
 * the team has been recalled; they wait until nobody is inside. */
struct program_ops {
    /* Replaces the program there was. Returns enum program_problem. */
    int (*load)(void *self, const uint8_t *elf, size_t bytes);
    /* Any core: enters the program, returns what it returns (TEAM_CLOSED also after a fault). */
    uint32_t (*run)(void *self, struct team *team, uint32_t task, uint32_t most);
    /* Sets the rights to the duck's memory [at, at + bytes), both multiples of `grain`. NULL: the program
     * sees all of it. */
    void (*share)(void *self, void *at, uint64_t bytes, enum program_rights rights);
    uint64_t grain;
    /* Core 0: 1 if the program failed on any core, which *out describes; nobody is inside it any more, and
     * nobody enters before another load(). NULL: a failure ends the duck. */
    int (*failed)(void *self, struct wire_fault *out);
};

#endif
