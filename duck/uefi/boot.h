/* boot.h: what the firmware learnt from UEFI before it took the machine over. No UEFI type passes it. */
#ifndef DUCK_UEFI_BOOT_H
#define DUCK_UEFI_BOOT_H

#include <stddef.h>
#include <stdint.h>

#include "duck/uefi/acpi.h"
#include "duck/uefi/memory_map.h"

/* Memory that UEFI reserved for us, below 4 GiB; handed out once and never taken back. */
struct boot_pool {
    uint8_t *memory;
    size_t used, bytes;
};
/* Zeroed, 4 KiB-aligned. NULL: used up. */
void *boot_pool_take(struct boot_pool *p, size_t bytes);

enum {
    BOOT_OPTIONS = 1024,     // bytes of text
    BOOT_STACK = 512 << 10,  // per core; the down product alone has 320 KiB of sums on it
    BOOT_TABLES = 768 << 10, // page tables
    BOOT_DMA = 7 << 20,      // rings and buffers of the NIC that wants most (e1000e)
    BOOT_PROGRAM = 1 << 20,
};

/* What the firmware draws on; width 0: nothing that we can. */
struct boot_screen {
    uint64_t address, bytes;
    uint32_t width, height, stride; // 32-bit pixels
    uint32_t ink;                   // a pixel that can be seen on 0
};

struct boot {
    struct memory_map map; // as ExitBootServices accepted it
    struct acpi acpi;
    int acpi_found;
    uint64_t image, image_end;
    uint64_t low_page; // below 1 MiB, for starting cores
    struct boot_screen screen;
    struct boot_pool pool;
    char options[BOOT_OPTIONS];
};

/* The build (build_id.c, made by Makefile.duck): version, and a hash over everything linked. */
extern const char build_version[];
extern const uint64_t build_hash;

/* On a stack of our own, boot services gone. */
_Noreturn void kernel_main(struct boot *boot);

#endif
