/* screen.h: lines of text on a framebuffer of 32-bit pixels.
 *
 * Never reads the framebuffer, which is slow where it is uncached: instead of scrolling, writing goes on at
 * the top again, and a blank line shows where. One caller at a time. */
#ifndef DUCK_UEFI_SCREEN_H
#define DUCK_UEFI_SCREEN_H

#include <stdint.h>

#include "duck/uefi/boot.h"
#include "duck/uefi/font.h"

enum {
    SCREEN_CELL_COLUMNS = FONT_COLUMNS + 1, // points of a letter with the gap behind and below it
    SCREEN_CELL_ROWS = FONT_ROWS + 2,
    SCREEN_LARGE_FROM = 1280, // pixels of width; from there on a point is 2 x 2 pixels
};

struct screen {
    volatile uint32_t *pixels;      // NULL: there is no screen
    uint32_t width, height, stride; // pixels
    uint32_t ink;
    uint32_t line; // the next one to write
};

/* A graphics mode as UEFI describes it (UEFI 2.10, 12.9.2), with its numbers of pixel formats. */
enum screen_format { SCREEN_RGB, SCREEN_BGR, SCREEN_MASKS, SCREEN_BLT_ONLY };
struct screen_mode {
    uint64_t address, bytes; // of the framebuffer
    uint32_t width, height, stride;
    uint32_t format;
    uint32_t mask[4]; // red, green, blue, reserved; with SCREEN_MASKS only
};
/* What we can draw on; width 0: not on this: no framebuffer, pixels that are not of 32 bits, or a place or
 * size that cannot be. */
struct boot_screen screen_choose(const struct screen_mode *m);

/* Clears it. */
void screen_start(struct screen *s);
/* Writes one line, cut at the right edge. */
void screen_line(struct screen *s, const char *text);

#endif
