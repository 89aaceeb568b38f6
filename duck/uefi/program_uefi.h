/* program_uefi.h: the judge's program on a bare machine (struct program_ops of duck/program.h): in pages of
 * its own, none writable and executable, run in ring 3; of the duck's memory it sees what share() gives it.
 */
#ifndef DUCK_UEFI_PROGRAM_UEFI_H
#define DUCK_UEFI_PROGRAM_UEFI_H

#include "duck/program.h"
#include "duck/uefi/boot.h"
#include "duck/uefi/paging.h"

/* Core 0, once all cores are up: maps pages for the program and every core's stack in ring 3, from the pool.
 * NULL: no memory. */
const struct program_ops *program_uefi_start(struct boot *boot, struct paging *paging);

#endif
