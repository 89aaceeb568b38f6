/* platform_uefi.h: the bare machine under a duck (duck/platform.h). */
#ifndef DUCK_UEFI_PLATFORM_UEFI_H
#define DUCK_UEFI_PLATFORM_UEFI_H

#include "duck/platform.h"
#include "duck/uefi/options.h"

/* Fills everything but cores, memory and name. All cores must be up. */
void platform_uefi_start(struct platform *out, const struct options *o, uint64_t tsc_hz);
/* What the start has shown: bytes of memory tested, bad words, the clock meanwhile; for STATS. */
void platform_uefi_started(uint64_t tested, uint64_t bad, uint32_t mhz);

#endif
