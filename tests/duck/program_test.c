/* program_test.c: the loader of the judge's program: what it makes of the real one, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck/duck_core.h"
#include "duck/program.h"
#include "duck/program_elf.h"
#include "duck/program_trace.h"
#include "tests/fp9/fp9_random.h"

enum { MOST = 1 << 20 };
static uint8_t elf[MOST];
static size_t bytes;

static int read_program(void **state)
{
    (void)state;
    FILE *f = fopen(BINARY_DIR "/duck/fp9_kernels.elf", "rb");
    if (!f) return -1;
    bytes = fread(elf, 1, MOST, f);
    fclose(f);
    return bytes > 0 ? 0 : -1;
}

static void the_real_program_is_sound(void **state)
{
    (void)state;
    struct program_image image;
    assert_int_equal(program_check(elf, bytes, &image), PROGRAM_OK);
    assert_true(image.segments >= 3 && image.span < 1 << 20 && image.relocation_bytes > 0);
    int executable = 0;
    for (uint32_t i = 0; i < image.segments; i++) {
        assert_false(image.segment[i].writable && image.segment[i].executable);
        executable += image.segment[i].executable;
    }
    assert_int_equal(executable, 1);
    uint8_t *a = calloc(1, image.span), *b = calloc(1, image.span);
    assert_int_equal(program_place(elf, &image, a, 0x100000), PROGRAM_OK);
    assert_int_equal(program_place(elf, &image, b, 0x300000), PROGRAM_OK);
    uint64_t moved = 0; // relocated words, and nothing else, move with the address
    for (uint64_t at = 0; at + 8 <= image.span; at += 8) {
        uint64_t x, y;
        memcpy(&x, a + at, 8);
        memcpy(&y, b + at, 8);
        assert_true(x == y || y - x == 0x200000);
        moved += x != y;
    }
    assert_int_equal(moved, image.relocation_bytes / 24);
    free(a);
    free(b);
}

/* Offset in the file of the n-th program header of a type. */
static size_t header_at(uint32_t type, uint32_t n)
{
    for (size_t at = 64;; at += 56) {
        uint32_t t;
        memcpy(&t, elf + at, 4);
        if (t == type && n-- == 0) return at;
    }
}

static void what_is_wrong_is_told_apart(void **state)
{
    (void)state;
    const size_t load1 = header_at(1, 1), load2 = header_at(1, 2), dynamic = header_at(2, 0),
                 note = header_at(4, 0);
    size_t table = 0, rela_size = 0;
    uint64_t dynamic_at;
    memcpy(&dynamic_at, elf + dynamic + 8, 8);
    for (size_t at = dynamic_at; elf[at]; at += 16) {
        if (elf[at] == 7 && elf[at + 1] == 0)
            memcpy(&table, elf + at + 8, 8); // the first segment: file offset = address
        if (elf[at] == 8 && elf[at + 1] == 0) rela_size = at + 8;
    }
    const struct {
        size_t at;
        uint8_t value;
        int problem;
    } cases[] = {
        {0, 0, PROGRAM_NOT_ELF},
        {4, 1, PROGRAM_NOT_ELF},                 // 32 bits
        {16, 2, PROGRAM_NOT_ELF},                // not position-independent
        {18, 3, PROGRAM_NOT_ELF},                // i386
        {57, 0xff, PROGRAM_NOT_ELF},             // program headers beyond the file
        {load1 + 4, 7, PROGRAM_BAD_SEGMENT},     // writable and executable
        {load1 + 15, 0xff, PROGRAM_BAD_SEGMENT}, // offset
        {load2 + 18, 0, PROGRAM_BAD_SEGMENT},    // address before the end of the one before
        {load2 + 23, 0x7f, PROGRAM_BAD_SEGMENT},
        {load2 + 35, 0xff, PROGRAM_BAD_SEGMENT}, // file size above memory size
        {note, 9, PROGRAM_OTHER_ABI},            // no note
        {26, 9, PROGRAM_BAD_ENTRY},
        {rela_size + 5, 1, PROGRAM_BAD_RELOC}, // table beyond the span
        {table + 8, 1, PROGRAM_BAD_RELOC},     // another kind
        {table + 5, 1, PROGRAM_BAD_RELOC},     // target outside
        {table + 1, 0, PROGRAM_BAD_RELOC},     // target not writable
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct program_image image;
        uint8_t was = elf[cases[i].at];
        elf[cases[i].at] = cases[i].value;
        if (cases[i].at == load2 + 18) elf[load2 + 17] = 0;
        int rc = program_check(elf, bytes, &image);
        if (rc == PROGRAM_OK) {
            uint8_t *memory = calloc(1, image.span);
            rc = program_place(elf, &image, memory, 0);
            free(memory);
        }
        if (rc != cases[i].problem) fail_msg("case %zu: %d, not %d", i, rc, cases[i].problem);
        elf[cases[i].at] = was;
        if (cases[i].at == load2 + 18) assert_int_equal(read_program(NULL), 0);
    }
}

/* Whatever the bytes: nothing outside of file and span is touched (the sanitizer watches). */
static void rubbish_is_survived(void **state)
{
    (void)state;
    uint64_t seed = 1, sound = 0;
    for (int i = 0; i < 4000; i++) {
        size_t n = i % 4 ? bytes : random_below(&seed, (uint32_t)bytes);
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, elf, n);
        for (uint32_t k = 1 + random_below(&seed, 6); k && n; k--)
            copy[random_below(&seed, n < 1400 ? (uint32_t)n : 1400)] = (uint8_t)random_next(&seed);
        struct program_image image;
        if (program_check(copy, n, &image) == PROGRAM_OK) {
            uint8_t *memory = calloc(1, image.span);
            sound += program_place(copy, &image, memory, 0) == PROGRAM_OK;
            free(memory);
        }
        free(copy);
    }
    assert_true(sound > 0 && sound < 4000);
}

static void calls_are_told_from_other_words(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint8_t before[8]; // the bytes in front of the address
        uint32_t found;
    } cases[] = {
        {"call rel32", {0, 0, 0, 0xe8, 1, 2, 3, 4}, 1},
        {"call *%rax", {0, 0, 0, 0, 0, 0, 0xff, 0xd0}, 1},
        {"call *8(%rax)", {0, 0, 0, 0, 0, 0xff, 0x50, 8}, 1},
        {"call *(%rax,%rcx)", {0, 0, 0, 0, 0, 0xff, 0x14, 8}, 1},
        {"call *8(%rsp)", {0, 0, 0, 0, 0xff, 0x54, 0x24, 8}, 1},
        {"call *x(%rip)", {0, 0, 0xff, 0x15, 1, 2, 3, 4}, 1},
        {"call *x(%rsp)", {0, 0xff, 0x94, 0x24, 1, 2, 3, 4}, 1},
        {"jmp *%rax", {0, 0, 0, 0, 0, 0, 0xff, 0xe0}, 0},
        {"nothing", {0, 0, 0, 0, 0, 0, 0, 0}, 0},
    };
    uint8_t code[24];
    const uint64_t start = 0x500000200000;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(code, 0, sizeof code);
        memcpy(code + 8, cases[i].before, 8);
        uint64_t out[2], stack[] = {1, start + 16, start + 3, start + 25, start - 1};
        if (program_trace((const uint8_t *)stack, sizeof stack, code, start, 24, out, 2) != cases[i].found)
            fail_msg("%s", cases[i].what);
        if (cases[i].found) assert_int_equal(out[0], start + 16);
    }
    memset(code, 0xe8, sizeof code); // innermost first, no more than fit, and no half words
    uint64_t out[2], stack[] = {start + 10, start + 11, start + 12};
    assert_int_equal(program_trace((const uint8_t *)stack, sizeof stack, code, start, 24, out, 2), 2);
    assert_true(out[0] == start + 10 && out[1] == start + 11);
    assert_int_equal(program_trace((const uint8_t *)stack, 15, code, start, 24, out, 2), 1);
}

/* A duck runs a program of its own ABI only, so whoever changes what the two share has to count it up. Sizes
 * give most changes away: of an expert, and of a step of several tokens and slice runs. */
static void the_abi_counts_what_a_step_lays_out(void **state)
{
    (void)state;
    const struct duck_bank_shape bank = {.routed = 8, .always = 1, .width = 128};
    const struct duck_run run[] = {{0, 1, 5}, {0, 9, 2}};
    for (int f = 0; f < FP9_FORMATS; f++) {
        const struct duck_shape shape = {
            .hidden = 288, .banks = 1, .bank = &bank, .runs = 2, .run = run, .format = (enum fp9_format)f};
        const size_t room = duck_core_bytes(&shape);
        void *memory = aligned_alloc(64, room);
        const struct duck_core *d = duck_core_init(memory, room, &shape, fp9_select("scalar"));
        const struct {
            uint32_t abi;
            size_t core, step;
        } now = {PROGRAM_ABI, room, duck_step_scratch_bytes(d, 33, 3)},
          known = {6, f == FP9_FP9 ? 510656 : 440960, 623872};
        free(memory);
        if (now.abi != known.abi || now.core != known.core || now.step != known.step)
            fail_msg(
                "format %d: ABI %u had %zu bytes of weights and %zu of a step, %u has %zu and %zu: count "
                "PROGRAM_ABI up for another layout, and write its sizes down here",
                f, known.abi, known.core, known.step, now.abi, now.core, now.step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_program_is_sound),
        cmocka_unit_test(what_is_wrong_is_told_apart),
        cmocka_unit_test(rubbish_is_survived),
        cmocka_unit_test(calls_are_told_from_other_words),
        cmocka_unit_test(the_abi_counts_what_a_step_lays_out),
    };
    return cmocka_run_group_tests(tests, read_program, NULL);
}
