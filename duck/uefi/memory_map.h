/* memory_map.h: what lies where in physical memory, and which of it becomes the duck's arena.
 *
 * Pure: made from UEFI's descriptors while boot services are up, read ever after. After ExitBootServices the
 * firmware's boot services memory is free like any other (UEFI 2.10, 7.2). */
#ifndef DUCK_UEFI_MEMORY_MAP_H
#define DUCK_UEFI_MEMORY_MAP_H

#include <stdint.h>

enum memory_kind {
    MEMORY_FREE,   // ours
    MEMORY_KEPT,   // RAM that holds something: this image, ACPI tables, runtime services
    MEMORY_DEVICE, // not RAM
};

struct memory_range {
    uint64_t start, end; // bytes, multiples of 4 KiB
    enum memory_kind kind;
};

enum { MEMORY_RANGES = 512 };

struct memory_map {
    uint32_t count;
    uint32_t lost; // descriptors that found no room
    struct memory_range range[MEMORY_RANGES];
};

/* One descriptor with UEFI's type number (EFI_MEMORY_TYPE). Neighbours of one kind are merged. */
void memory_map_add(struct memory_map *m, uint32_t efi_type, uint64_t start, uint64_t pages);
/* Ascending, merged: call once all are added. */
void memory_map_sort(struct memory_map *m);
/* Bytes of RAM, whatever it holds. */
uint64_t memory_map_ram(const struct memory_map *m);
/* 1: any RAM lies in [start, end). */
int memory_map_has_ram(const struct memory_map *m, uint64_t start, uint64_t end);

/* Cuts free ranges above 1 MiB to whole 2 MiB pages: the arena's pieces, ascending. Returns how many. */
struct memory_piece {
    uint64_t start, bytes;
};
uint32_t memory_map_arena(const struct memory_map *m, struct memory_piece *out, uint32_t max);

#endif
