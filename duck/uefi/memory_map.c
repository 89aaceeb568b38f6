/* memory_map.c: sorting UEFI's memory map into free, kept and device memory. */
#include "duck/uefi/memory_map.h"

#define PAGE ((uint64_t)4096)
#define LARGE ((uint64_t)2 << 20)

/* UEFI 2.10, table 7.6. */
static enum memory_kind kind_of(uint32_t efi_type)
{
    enum { BOOT_CODE = 3, BOOT_DATA = 4, CONVENTIONAL = 7, MMIO = 11, MMIO_PORTS = 12, RESERVED = 0 };
    switch (efi_type) {
    case BOOT_CODE:
    case BOOT_DATA:
    case CONVENTIONAL:
        return MEMORY_FREE;
    case RESERVED:
    case MMIO:
    case MMIO_PORTS:
        return MEMORY_DEVICE;
    default:
        return MEMORY_KEPT;
    }
}

void memory_map_add(struct memory_map *m, uint32_t efi_type, uint64_t start, uint64_t pages)
{
    struct memory_range r = {start, start + pages * PAGE, kind_of(efi_type)};
    struct memory_range *last = m->count ? &m->range[m->count - 1] : 0;
    if (r.end <= r.start) return;
    if (last && last->kind == r.kind && last->end == r.start) {
        last->end = r.end;
    } else if (m->count < MEMORY_RANGES) {
        m->range[m->count++] = r;
    } else {
        m->lost++;
    }
}

void memory_map_sort(struct memory_map *m)
{
    for (uint32_t i = 1; i < m->count; i++) {
        struct memory_range r = m->range[i];
        uint32_t j = i;
        for (; j && m->range[j - 1].start > r.start; j--) m->range[j] = m->range[j - 1];
        m->range[j] = r;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        struct memory_range *last = kept ? &m->range[kept - 1] : 0;
        if (last && last->kind == m->range[i].kind && last->end == m->range[i].start)
            last->end = m->range[i].end;
        else
            m->range[kept++] = m->range[i];
    }
    m->count = kept;
}

uint64_t memory_map_ram(const struct memory_map *m)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->count; i++)
        if (m->range[i].kind != MEMORY_DEVICE) bytes += m->range[i].end - m->range[i].start;
    return bytes;
}

int memory_map_has_ram(const struct memory_map *m, uint64_t start, uint64_t end)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->range[i].kind != MEMORY_DEVICE && m->range[i].start < end && m->range[i].end > start) return 1;
    return 0;
}

uint32_t memory_map_arena(const struct memory_map *m, struct memory_piece *out, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct memory_range *r = &m->range[i];
        if (r->kind != MEMORY_FREE) continue;
        uint64_t start = r->start < LARGE ? LARGE : (r->start + LARGE - 1) / LARGE * LARGE;
        uint64_t end = r->end / LARGE * LARGE;
        if (start < end && n < max) out[n++] = (struct memory_piece){start, end - start};
    }
    return n;
}
