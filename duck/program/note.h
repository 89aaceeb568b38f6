/* note.h: the ELF note by which a program for the judge is known (duck/program.h). Included by exactly one
 * file of a program: it defines the note. */
#ifndef DUCK_PROGRAM_NOTE_H
#define DUCK_PROGRAM_NOTE_H

#include "duck/program.h"

static const struct {
    uint32_t name_bytes, descriptor_bytes, type;
    char name[8];
    uint32_t abi;
} note __attribute__((section(".note.duckd"), used, aligned(4))) = {6, 4, PROGRAM_NOTE, "duckd", PROGRAM_ABI};

#endif
