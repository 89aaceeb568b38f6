/* program_elf.h: reading the judge's program: checks everything before a byte of it is used.
 *
 * The platform reserves `span` bytes of zeroed memory, has the program placed there, and then gives each
 * segment its rights: none is both writable and executable. Freestanding, never allocates. */
#ifndef DUCK_PROGRAM_ELF_H
#define DUCK_PROGRAM_ELF_H

#include "duck/program.h"

enum { PROGRAM_SEGMENTS = 8, PROGRAM_PAGE = 4096 };

struct program_segment {
    uint64_t at, bytes;                        // in memory, from the start of the span; whole pages
    uint64_t file_at, file_bytes, file_offset; // what is copied
    int writable, executable;
};

struct program_image {
    uint64_t span, entry;                   // bytes of memory; where to enter, from its start
    uint64_t relocations, relocation_bytes; // Elf64_Rela table in the span
    uint32_t segments;
    struct program_segment segment[PROGRAM_SEGMENTS];
};

/* Returns enum program_problem. */
int program_check(const uint8_t *elf, size_t bytes, struct program_image *out);
/* Copies and relocates into `memory` (image->span bytes, zero), which the program will see at `address`. */
int program_place(const uint8_t *elf, const struct program_image *image, uint8_t *memory, uint64_t address);

#endif
