/* paging.c: building page tables. */
#include "duck/uefi/paging.h"

#include <string.h>

#define SMALL ((uint64_t)4096)
#define LARGE ((uint64_t)2 << 20)
#define GIANT ((uint64_t)1 << 30)
#define FOUR_GIB ((uint64_t)4 << 30)
#define ADDRESS ((uint64_t)0x000ffffffffff000)

static uint64_t *new_table(struct paging *p)
{
    if (p->bytes - p->used < SMALL) return NULL;
    uint64_t *t = (uint64_t *)(void *)(p->pool + p->used);
    p->used += SMALL;
    memset(t, 0, SMALL);
    return t;
}

int paging_start(struct paging *p, void *pool, size_t bytes, int has_giant)
{
    *p = (struct paging){.pool = pool, .bytes = bytes, .has_giant = has_giant};
    p->root = new_table(p);
    return p->root ? 0 : -1;
}

/* Level 4 is the root; an entry of level L covers 2^(12 + 9 (L - 1)) bytes. */
static uint64_t span(unsigned level)
{
    return SMALL << 9 * (level - 1);
}

static uint64_t *entry_in(uint64_t *table, unsigned level, uint64_t va)
{
    return &table[va / span(level) & 511];
}

static uint64_t *table_of(uint64_t entry)
{
    return (uint64_t *)(uintptr_t)(entry & ADDRESS);
}

/* The entry for one page of `size` at va, which is not mapped yet, with the tables above it. */
static uint64_t *walk(struct paging *p, uint64_t va, uint64_t size)
{
    uint64_t *table = p->root;
    for (unsigned level = 4;; level--) {
        uint64_t *e = entry_in(table, level, va);
        if (span(level) == size) return e;
        if (!(*e & PAGE_PRESENT)) {
            uint64_t *below = new_table(p);
            if (!below) return NULL;
            *e = (uint64_t)(uintptr_t)below | PAGE_PRESENT | PAGE_WRITE | PAGE_USER; // pages decide
        }
        table = table_of(*e);
    }
}

static uint64_t largest_page(const struct paging *p, uint64_t va, uint64_t pa, uint64_t bytes)
{
    if (p->has_giant && (va | pa) % GIANT == 0 && bytes >= GIANT) return GIANT;
    return (va | pa) % LARGE == 0 && bytes >= LARGE ? LARGE : SMALL;
}

/* Maps the first page of the range. Returns its size, 0: no memory, 1: mapped elsewhere. */
static uint64_t map_first(struct paging *p, uint64_t va, uint64_t pa, uint64_t bytes, uint64_t flags)
{
    uint64_t here = paging_find(p, va);
    if (here) {
        if ((here & ADDRESS) != pa) return 1;
        return SMALL;
    }
    uint64_t size = largest_page(p, va, pa, bytes);
    uint64_t *e = walk(p, va, size);
    while (e && size > SMALL && *e & PAGE_PRESENT) { // a table of smaller pages is there
        size /= 512;
        e = walk(p, va, size);
    }
    if (!e) return 0;
    *e = pa | flags | PAGE_PRESENT | (size > SMALL ? PAGE_LARGE : 0);
    return size;
}

int paging_map(struct paging *p, uint64_t va, uint64_t pa, uint64_t bytes, uint64_t flags)
{
    while (bytes) {
        uint64_t size = map_first(p, va, pa, bytes, flags);
        if (size < SMALL) return size ? -2 : -1;
        va += size;
        pa += size;
        bytes -= size;
    }
    return 0;
}

/* The entry of the page around va, *size its bytes. NULL: not mapped. */
static uint64_t *page_at(const struct paging *p, uint64_t va, uint64_t *size)
{
    uint64_t *table = p->root;
    for (unsigned level = 4; level; level--) {
        uint64_t *e = entry_in(table, level, va);
        if (!(*e & PAGE_PRESENT)) return NULL;
        *size = span(level);
        if (level == 1 || (level < 4 && *e & PAGE_LARGE)) return e;
        table = table_of(*e);
    }
    return NULL;
}

uint64_t paging_find(const struct paging *p, uint64_t va)
{
    uint64_t size, *e = page_at(p, va, &size);
    if (!e) return 0;
    uint64_t base = *e & ADDRESS & ~(size - 1);
    return (*e & ~ADDRESS) | ((base + va % size) & ADDRESS);
}

int paging_protect(struct paging *p, uint64_t va, uint64_t bytes, uint64_t flags)
{
    const uint64_t rights = PAGE_WRITE | PAGE_USER | PAGE_NO_EXECUTE;
    for (uint64_t end = va + bytes, size; va < end; va += size) {
        uint64_t *e = page_at(p, va, &size);
        if (!e || va % size || end - va < size) return -1;
        *e = (*e & ~rights) | (flags & rights);
    }
    return 0;
}

int paging_identity(struct paging *p, const struct memory_map *m, uint64_t code, uint64_t code_end)
{
    int rc = paging_map(p, SMALL, SMALL, LARGE - SMALL, PAGE_WRITE);
    for (uint64_t at = LARGE; rc == 0 && at < FOUR_GIB; at += LARGE) {
        uint64_t flags = PAGE_WRITE;
        if (!memory_map_has_ram(m, at, at + LARGE)) flags |= PAGE_UNCACHED;
        if (at + LARGE <= code || at >= code_end) flags |= PAGE_NO_EXECUTE;
        rc = paging_map(p, at, at, LARGE, flags);
    }
    if (rc == 0 && code_end > FOUR_GIB) { // mapped already: stays executable below
        uint64_t start = code / LARGE * LARGE;
        rc = paging_map(p, start, start, (code_end + LARGE - 1) / LARGE * LARGE - start, PAGE_WRITE);
    }
    for (uint32_t i = 0; rc == 0 && i < m->count; i++) {
        const struct memory_range *r = &m->range[i];
        if (r->kind == MEMORY_DEVICE || r->end <= FOUR_GIB) continue;
        uint64_t start = r->start < FOUR_GIB ? FOUR_GIB : r->start;
        rc = paging_map(p, start, start, r->end - start, PAGE_WRITE | PAGE_NO_EXECUTE);
    }
    return rc;
}
