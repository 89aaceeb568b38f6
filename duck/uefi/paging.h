/* paging.h: four-level page tables (Intel SDM vol. 3, 4.5) in a pool of pages given at start.
 *
 * Pure but for the pool, in which a table's address is its physical address. Uses the largest page that
 * fits: 1 GiB (where the CPU has them), 2 MiB, 4 KiB. Never unmaps, never moves a mapping. */
#ifndef DUCK_UEFI_PAGING_H
#define DUCK_UEFI_PAGING_H

#include <stddef.h>
#include <stdint.h>

#include "duck/uefi/memory_map.h"

#define PAGE_PRESENT ((uint64_t)1)
#define PAGE_WRITE ((uint64_t)1 << 1)
#define PAGE_USER ((uint64_t)1 << 2)
#define PAGE_UNCACHED ((uint64_t)3 << 3) // PWT | PCD: PAT entry 3, uncacheable after reset
#define PAGE_LARGE ((uint64_t)1 << 7)
#define PAGE_NO_EXECUTE ((uint64_t)1 << 63)

struct paging {
    uint64_t *root;
    uint8_t *pool; // 4 KiB-aligned
    size_t used, bytes;
    int has_giant; // 1 GiB pages
};

/* -1: the pool has no room for the root. */
int paging_start(struct paging *p, void *pool, size_t bytes, int has_giant);
/* Maps [va, va + bytes) to pa .., all multiples of 4 KiB; flags without PAGE_PRESENT. What is mapped already
 * to the same place stays as it is. Returns 0; -1: the pool is used up; -2: mapped to another place. */
int paging_map(struct paging *p, uint64_t va, uint64_t pa, uint64_t bytes, uint64_t flags);
/* Gives pages that are mapped other rights: PAGE_WRITE, PAGE_USER and PAGE_NO_EXECUTE as in flags. Returns
 * -1: a page is not there, or is not wholly in [va, va + bytes). Cores may know the old rights until they
 * load CR3. */
int paging_protect(struct paging *p, uint64_t va, uint64_t bytes, uint64_t flags);
/* The entry that translates va with its address part replaced by va's physical address; 0: not mapped. */
uint64_t paging_find(const struct paging *p, uint64_t va);

/* Physical memory at its own address: RAM cached, what is not RAM below 4 GiB uncached; executable is only
 * what lies in the 2 MiB pages of [code, code_end) and in the first 2 MiB, whose page 0 stays unmapped. */
int paging_identity(struct paging *p, const struct memory_map *m, uint64_t code, uint64_t code_end);

#endif
