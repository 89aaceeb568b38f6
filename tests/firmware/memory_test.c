/* memory_test.c: the firmware's memory map and page tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "duck/uefi/boot.h"
#include "duck/uefi/memory_map.h"
#include "duck/uefi/paging.h"

enum { RESERVED = 0, LOADER = 2, BOOT_DATA = 4, RUNTIME = 6, FREE = 7, ACPI = 9, MMIO = 11 };
#define MB ((uint64_t)1 << 20)
#define GB ((uint64_t)1 << 30)

static void add(struct memory_map *m, uint32_t type, uint64_t start, uint64_t end)
{
    memory_map_add(m, type, start, (end - start) / 4096);
}

/* As a small machine with RAM below and above the hole for devices has it, in no order. */
static void small_machine(struct memory_map *m)
{
    *m = (struct memory_map){0};
    add(m, FREE, 4 * GB, 6 * GB);
    add(m, FREE, 0x1000, 0xa0000);
    add(m, FREE, 1 * MB, 100 * MB + 0x3000);
    add(m, BOOT_DATA, 100 * MB + 0x3000, 120 * MB);
    add(m, LOADER, 120 * MB, 121 * MB);
    add(m, FREE, 121 * MB, 2 * GB - 16 * MB);
    add(m, ACPI, 2 * GB - 16 * MB, 2 * GB - 15 * MB);
    add(m, RUNTIME, 2 * GB - 15 * MB, 2 * GB);
    add(m, MMIO, 0xe0000000, 0xf0000000);
    memory_map_sort(m);
}

static void neighbours_are_merged(void **state)
{
    (void)state;
    struct memory_map m;
    small_machine(&m);
    assert_int_equal(m.count, 7);
    for (uint32_t i = 1; i < m.count; i++) assert_true(m.range[i].start >= m.range[i - 1].end);
    assert_int_equal(m.range[1].start, 1 * MB);
    assert_int_equal(m.range[1].end, 120 * MB); // boot services memory is free now
    assert_int_equal(m.range[1].kind, MEMORY_FREE);
    assert_int_equal(memory_map_ram(&m), 4 * GB - 1 * MB + 0x9f000);
    assert_true(memory_map_has_ram(&m, 2 * GB - 4096, 2 * GB));
    assert_false(memory_map_has_ram(&m, 2 * GB, 4 * GB)); // devices do not count
}

static void arena_is_whole_large_pages(void **state)
{
    (void)state;
    struct memory_map m;
    struct memory_piece p[8];
    small_machine(&m);
    assert_int_equal(memory_map_arena(&m, p, 8), 3);
    assert_int_equal(p[0].start, 2 * MB);
    assert_int_equal(p[0].bytes, 118 * MB);
    assert_int_equal(p[1].start, 122 * MB);
    assert_int_equal(p[1].bytes, 2 * GB - 138 * MB);
    assert_int_equal(p[2].bytes, 2 * GB);
    assert_int_equal(memory_map_arena(&m, p, 1), 1); // no more than fit
}

static void too_many_descriptors_are_counted(void **state)
{
    (void)state;
    static struct memory_map m;
    for (uint64_t i = 0; i < MEMORY_RANGES + 3; i++) memory_map_add(&m, FREE, i * 0x2000, 1);
    assert_int_equal(m.count, MEMORY_RANGES);
    assert_int_equal(m.lost, 3);
}

/* A 32 GB notebook with EFI 2.7, as its Linux reports it (BIOS-e820 lines from 1 MiB on, quoted in the GitHub
 * issue stefanpartheym/archlinux-ipu6-webcam#21): what is left for weights. */
static void arena_of_a_machine_with_32_gb(void **state)
{
    (void)state;
    enum { ACPI_NVS = 10 };
    static const struct {
        uint32_t type;
        uint64_t start, last;
    } e820[] = {
        {FREE, 0x100000, 0x57cb5fff},       {RESERVED, 0x57cb6000, 0x5cd10fff},
        {ACPI_NVS, 0x5cd11000, 0x5d571fff}, {ACPI, 0x5d572000, 0x5d7fefff},
        {FREE, 0x5d7ff000, 0x5d7fffff},     {RESERVED, 0x5d800000, 0x65ffffff},
        {RESERVED, 0x66400000, 0x665fffff}, {RESERVED, 0x66e00000, 0x707fffff},
        {RESERVED, 0xc0000000, 0xcfffffff}, {RESERVED, 0xf9000000, 0xf9ffffff},
        {RESERVED, 0xfed20000, 0xfed7ffff}, {RESERVED, 0xff000000, 0xffffffff},
        {FREE, 0x100000000, 0x88f7fffff},
    };
    static const uint64_t firmware = 12 * MB; // more than image, tables, stacks and DMA of four cores
    struct memory_map m = {0};
    struct memory_piece p[8];
    uint64_t arena = 0;
    for (size_t i = 0; i < sizeof e820 / sizeof *e820; i++)
        add(&m, e820[i].type, e820[i].start, e820[i].last + 1);
    memory_map_sort(&m);
    uint32_t n = memory_map_arena(&m, p, 8);
    for (uint32_t i = 0; i < n; i++) arena += p[i].bytes;
    assert_int_equal(n, 2);
    assert_true((arena - firmware) * 100 >= 32 * GB * 97);
    uint8_t *pool = aligned_alloc(4096, BOOT_TABLES); // the tables for all of it, without 1 GiB pages
    struct paging t;
    paging_start(&t, pool, BOOT_TABLES, 0);
    assert_int_equal(paging_identity(&t, &m, 0x57000000, 0x57040000), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(
            paging_map(&t, 0x400000000000 + (i ? p[0].bytes : 0), p[i].start, p[i].bytes, PAGE_WRITE), 0);
    assert_int_equal(paging_find(&t, 0x400000000000 + arena - 4096) & 0x000ffffffffff000u, 0x88f7ff000);
    free(pool);
}

#define ADDRESS 0x000ffffffffff000u

static void maps_with_the_largest_pages(void **state)
{
    (void)state;
    uint8_t *pool = aligned_alloc(4096, 256 << 10);
    for (int giant = 0; giant < 2; giant++) {
        struct paging p;
        assert_int_equal(paging_start(&p, pool, 256 << 10, giant), 0);
        uint64_t va = 0x400000000000;
        assert_int_equal(paging_map(&p, va, 4 * GB, 2 * GB + 2 * MB + 4096, PAGE_WRITE | PAGE_NO_EXECUTE), 0);
        // root, level 3, [two level 2 tables without giant pages,] level 2 for the rest, level 1 for the last
        // page
        assert_int_equal(p.used / 4096, giant ? 4 : 6);
        for (uint64_t at = 0; at < 2 * GB + 2 * MB + 4096; at += 4096 * 511) {
            uint64_t e = paging_find(&p, va + at);
            assert_int_equal(e & ADDRESS, 4 * GB + at);
            assert_true(e & PAGE_WRITE && e & PAGE_NO_EXECUTE && !(e & PAGE_USER));
        }
        assert_int_equal(paging_find(&p, va + 2 * GB + 2 * MB + 4096), 0);
        assert_int_equal(paging_find(&p, va - 4096), 0);
        assert_int_equal(paging_map(&p, va + MB, 4 * GB + MB, 4096, PAGE_WRITE), 0); // there already
        assert_int_equal(paging_map(&p, va + MB, 5 * GB, 4096, PAGE_WRITE), -2);
    }
    struct paging p;
    assert_int_equal(paging_start(&p, pool, 4096, 0), 0);
    assert_int_equal(paging_map(&p, 0, 0, 4096, 0), -1);
    assert_int_equal(paging_start(&p, pool, 4095, 0), -1);
    free(pool);
}

static void identity_protects(void **state)
{
    (void)state;
    uint8_t *pool = aligned_alloc(4096, 256 << 10);
    struct memory_map m;
    small_machine(&m);
    static const struct {
        const char *what;
        uint64_t at;
        int mapped, cached, executable;
    } cases[] = {
        {"null", 0, 0, 0, 0},
        {"first page of all", 4096, 1, 1, 1},
        {"low memory", 0x9f000, 1, 1, 1},
        {"free memory", 64 * MB, 1, 1, 0},
        {"the image", 120 * MB + 4096, 1, 1, 1},
        {"runtime services", 2 * GB - 8 * MB, 1, 1, 0},
        {"a device", 0xe0000000, 1, 0, 0},
        {"the APIC", 0xfee00000, 1, 0, 0},
        {"high memory", 5 * GB, 1, 1, 0},
        {"beyond memory", 6 * GB, 0, 0, 0},
    };
    for (int giant = 0; giant < 2; giant++) {
        struct paging p;
        paging_start(&p, pool, 256 << 10, giant);
        assert_int_equal(paging_identity(&p, &m, 120 * MB, 120 * MB + 300000), 0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            uint64_t e = paging_find(&p, cases[i].at);
            if (!cases[i].mapped && !e) continue;
            assert_int_equal(e & ADDRESS, cases[i].at);
            assert_int_equal(!(e & PAGE_UNCACHED), cases[i].cached);
            assert_int_equal(!(e & PAGE_NO_EXECUTE), cases[i].executable);
        }
        paging_start(&p, pool, 256 << 10, giant); // an image above 4 GiB
        assert_int_equal(paging_identity(&p, &m, 5 * GB + 4096, 5 * GB + 300000), 0);
        assert_false(paging_find(&p, 5 * GB + 8192) & PAGE_NO_EXECUTE);
        assert_true(paging_find(&p, 5 * GB + 2 * MB) & PAGE_NO_EXECUTE);
        assert_true(paging_find(&p, 5 * GB - 4096) & PAGE_NO_EXECUTE);
        assert_int_equal(paging_find(&p, 6 * GB - 4096) & ADDRESS, 6 * GB - 4096);
    }
    free(pool);
}

static void rights_change_and_nothing_else(void **state)
{
    (void)state;
    uint8_t *pool = aligned_alloc(4096, 64 << 10);
    const uint64_t va = 0x400000000000, pa = 6 * GB;
    struct paging p;
    assert_int_equal(paging_start(&p, pool, 64 << 10, 0), 0);
    assert_int_equal(paging_map(&p, va, pa, 8 * MB + 8192, PAGE_WRITE | PAGE_NO_EXECUTE), 0);
    size_t used = p.used;
    assert_int_equal(paging_protect(&p, va + 2 * MB, 4 * MB, PAGE_USER | PAGE_NO_EXECUTE), 0);
    assert_int_equal(paging_protect(&p, va + 8 * MB + 4096, 4096, PAGE_USER), 0);
    assert_int_equal(p.used, used); // no table is split
    for (uint64_t at = 0; at < 8 * MB + 8192; at += 4096) {
        uint64_t e = paging_find(&p, va + at);
        int read = at >= 2 * MB && at < 6 * MB, execute = at == 8 * MB + 4096;
        assert_int_equal(e & ADDRESS, pa + at);
        assert_int_equal(!!(e & PAGE_USER), read || execute);
        assert_int_equal(!!(e & PAGE_WRITE), !read && !execute);
        assert_int_equal(!!(e & PAGE_NO_EXECUTE), !execute);
    }
    assert_int_equal(paging_protect(&p, va + 2 * MB, MB, 0), -1);     // part of a page
    assert_int_equal(paging_protect(&p, va + 3 * MB, 2 * MB, 0), -1); // askew
    assert_int_equal(paging_protect(&p, va + 8 * MB, 12288, 0), -1);  // beyond what is mapped
    free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_merged),
        cmocka_unit_test(arena_is_whole_large_pages),
        cmocka_unit_test(too_many_descriptors_are_counted),
        cmocka_unit_test(maps_with_the_largest_pages),
        cmocka_unit_test(identity_protects),
        cmocka_unit_test(rights_change_and_nothing_else),
        cmocka_unit_test(arena_of_a_machine_with_32_gb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
