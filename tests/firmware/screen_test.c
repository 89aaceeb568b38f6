/* screen_test.c: text on a framebuffer in memory: the right points, inside of the screen, at every size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "duck/uefi/font.h"
#include "duck/uefi/screen.h"

enum { GUARD = 64 };
#define OTHERS 0xdeadbeefu

static struct screen make(uint32_t width, uint32_t height, uint32_t stride)
{
    size_t n = (size_t)stride * height + 2 * GUARD;
    uint32_t *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = OTHERS;
    struct screen s = {
        .pixels = p + GUARD, .width = width, .height = height, .stride = stride, .ink = 0xc8c8c8};
    screen_start(&s);
    return s;
}

static void end(struct screen *s)
{
    uint32_t *p = (uint32_t *)s->pixels - GUARD;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(p[i], OTHERS);
        assert_int_equal(p[GUARD + (size_t)s->stride * s->height + i], OTHERS);
    }
    for (uint32_t y = 0; y < s->height; y++)
        for (uint32_t x = s->width; x < s->stride; x++)
            assert_int_equal(s->pixels[(size_t)y * s->stride + x], OTHERS);
    free(p);
}

/* The letter at (column, line), found among all letters by its points; 0: none. */
static char letter_at(const struct screen *s, uint32_t column, uint32_t line, uint32_t scale)
{
    for (char c = ' '; c <= '~'; c++) {
        int same = 1;
        for (uint32_t y = 0; y < (FONT_ROWS + 2) * scale && same; y++)
            for (uint32_t x = 0; x < (FONT_COLUMNS + 1) * scale && same; x++) {
                uint32_t px = column * (FONT_COLUMNS + 1) * scale + x,
                         py = line * (FONT_ROWS + 2) * scale + y;
                int on =
                    x / scale < FONT_COLUMNS && y / scale < FONT_ROWS && font_point(c, x / scale, y / scale);
                same = (s->pixels[(size_t)py * s->stride + px] != 0) == on;
            }
        if (same) return c;
    }
    return 0;
}

static void letters_can_be_told_apart(void **state)
{
    (void)state;
    for (char a = ' '; a <= '~'; a++)
        for (char b = ' '; b < a; b++) {
            int differ = 0;
            for (uint32_t i = 0; i < FONT_COLUMNS * FONT_ROWS; i++)
                differ += font_point(a, i % FONT_COLUMNS, i / FONT_COLUMNS) !=
                          font_point(b, i % FONT_COLUMNS, i / FONT_COLUMNS);
            if (differ == 0) fail_msg("%c looks like %c", a, b);
        }
    for (uint32_t i = 0; i < FONT_COLUMNS * FONT_ROWS; i++) // what is no letter
        assert_int_equal(font_point((char)0xc3, i % FONT_COLUMNS, i / FONT_COLUMNS),
                         font_point('?', i % FONT_COLUMNS, i / FONT_COLUMNS));
}

static void lines_are_written_and_cut(void **state)
{
    (void)state;
    static const struct {
        uint32_t width, height, stride, scale;
    } cases[] = {
        {640, 480, 640, 1}, {800, 600, 832, 1}, {1280, 800, 1280, 2}, {1920, 1080, 1984, 2}, {7, 18, 8, 1}};
    char all[400];
    for (size_t i = 0; i < sizeof all - 1; i++) all[i] = (char)(' ' + i % 95);
    all[sizeof all - 1] = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct screen s = make(cases[i].width, cases[i].height, cases[i].stride);
        uint32_t columns = cases[i].width / (6 * cases[i].scale),
                 lines = cases[i].height / (9 * cases[i].scale);
        for (uint32_t n = 0; n < lines + 2; n++) screen_line(&s, all + n);
        for (uint32_t n = 2; n < lines + 2; n++) { // lines 0 and 1 have been overwritten, line 2 is blank
            uint32_t line = n % lines;
            for (uint32_t c = 0; c < columns; c++)
                assert_int_equal(letter_at(&s, c, line, cases[i].scale),
                                 line == 2 % lines ? ' ' : all[n + c]);
        }
        end(&s);
    }
}

static void no_screen_is_no_trouble(void **state)
{
    (void)state;
    struct screen none = {0}, flat = make(640, 9, 640); // no room for a line and a blank one
    screen_start(&none);
    screen_line(&none, "nobody sees this");
    screen_line(&flat, "nor this");
    assert_int_equal(letter_at(&flat, 0, 0, 1), ' ');
    end(&flat);
}

/* As OVMF has it; each case changes one thing. */
static struct screen_mode usual(void)
{
    return (struct screen_mode){.address = 0x80000000,
                                .bytes = 1920 * 1080 * 4,
                                .width = 1920,
                                .height = 1080,
                                .stride = 1920,
                                .format = SCREEN_BGR,
                                .mask = {0xff0000, 0xff00, 0xff, 0xff000000}};
}

static void refused(struct screen_mode m)
{
    struct boot_screen s = screen_choose(&m);
    assert_int_equal(s.width | s.height | s.bytes | s.address, 0);
}

static void is_drawn_on_only_what_it_understands(void **state)
{
    (void)state;
    struct screen_mode m = usual();
    for (m.format = SCREEN_RGB; m.format <= SCREEN_MASKS; m.format++) {
        struct boot_screen s = screen_choose(&m);
        assert_int_equal(s.address, 0x80000000);
        assert_int_equal(s.bytes, 1920 * 1080 * 4);
        assert_int_equal(s.width, 1920);
        assert_int_equal(s.height, 1080);
        assert_int_equal(s.stride, 1920);
        assert_int_equal(s.ink, 0xc8c8c8);
    }
    m = usual(), m.format = SCREEN_BLT_ONLY, m.address = m.bytes = 0, refused(m);
    m = usual(), m.format = SCREEN_BLT_ONLY, refused(m);
    m = usual(), m.format = 4, refused(m); // of a later UEFI
    m = usual(), m.address = 0, refused(m);
    m = usual(), m.address = 0x80000002, refused(m);
    m = usual(), m.address = UINT64_MAX - 3, refused(m);
    m = usual(), m.address = ((uint64_t)1 << 46) - 4096, refused(m); // would reach into our mappings
    m = usual(), m.bytes -= 1, refused(m);
    m = usual(), m.width = 0, refused(m);
    m = usual(), m.height = 0, refused(m);
    m = usual(), m.stride = 1919, refused(m);
    m = usual(), m.bytes = UINT64_MAX, m.stride = m.height = UINT32_MAX, refused(m); // 2^66 bytes
}

static void colours_by_masks(void **state)
{
    static const struct {
        uint32_t mask[4], ink; // 0: no
    } cases[] = {
        {{0xff0000, 0xff00, 0xff, 0xff000000}, 0xc8c8c8},
        {{0xff000000, 0xff0000, 0xff00, 0xff}, 0xc8c8c800},
        {{0x3ff00000, 0xffc00, 0x3ff, 0xc0000000}, 0x322u << 20 | 0x322 << 10 | 0x322}, // ten bits each
        {{0xff0000, 0xff00, 0xff, 0}, 0},                                               // pixels of 24 bits
        {{0xf800, 0x7e0, 0x1f, 0}, 0},                                                  // of 16
        {{0xff0000, 0xff00, 0, 0xff000000}, 0},                                         // two colours
        {{0xff0000, 0xff00, 0xff00, 0xff000000}, 0},                                    // the same one twice
        {{0xfd0000, 0xff00, 0xff, 0xff000000}, 0},                                      // in pieces
        {{0, 0, 0, 0}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct screen_mode m = usual();
        m.format = SCREEN_MASKS;
        memcpy(m.mask, cases[i].mask, sizeof m.mask);
        struct boot_screen s = screen_choose(&m);
        assert_int_equal(s.ink, cases[i].ink);
        assert_int_equal(s.width, cases[i].ink ? 1920 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_drawn_on_only_what_it_understands),
        cmocka_unit_test(colours_by_masks),
        cmocka_unit_test(letters_can_be_told_apart),
        cmocka_unit_test(lines_are_written_and_cut),
        cmocka_unit_test(no_screen_is_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
