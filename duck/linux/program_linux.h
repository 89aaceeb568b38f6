/* program_linux.h: the judge's program inside a Linux process: mapped, no page writable and executable. */
#ifndef DUCK_LINUX_PROGRAM_LINUX_H
#define DUCK_LINUX_PROGRAM_LINUX_H

#include "duck/program.h"

extern const struct program_ops program_linux; // one per process

#endif
