/* screen_read.c: prints the text on a screendump (PPM) of the firmware's screen. usage: screen-read FILE. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "duck/uefi/font.h"
#include "duck/uefi/screen.h"

static uint8_t *pixels; // (height, width, 3)
static unsigned width, height;

static int read_ppm(const char *path)
{
    FILE *f = fopen(path, "rb");
    int rc = -1;
    if (!f) return -1;
    if (fscanf(f, "P6 %u %u 255%*1c", &width, &height) == 2 && width <= 8192 && height <= 8192) {
        pixels = malloc((size_t)width * height * 3);
        if (pixels && fread(pixels, 3, (size_t)width * height, f) == (size_t)width * height) rc = 0;
    }
    fclose(f);
    return rc;
}

/* 0: not a letter. */
static char letter_at(unsigned left, unsigned top, unsigned scale)
{
    for (char c = ' '; c <= '~'; c++) {
        unsigned differ = 0;
        for (unsigned y = 0; y < FONT_ROWS; y++)
            for (unsigned x = 0; x < FONT_COLUMNS; x++) {
                size_t at = (size_t)(top + y * scale) * width + left + x * scale;
                differ += (pixels[3 * at] != 0) != font_point(c, x, y);
            }
        if (differ == 0) return c;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2 || read_ppm(argv[1]) < 0) return 1;
    unsigned scale = width >= SCREEN_LARGE_FROM ? 2 : 1;
    for (unsigned y = 0; y + SCREEN_CELL_ROWS * scale <= height; y += SCREEN_CELL_ROWS * scale) {
        char line[2048];
        unsigned n = 0, end = 0;
        for (unsigned x = 0; x + SCREEN_CELL_COLUMNS * scale <= width; x += SCREEN_CELL_COLUMNS * scale) {
            char c = letter_at(x, y, scale);
            line[n++] = c ? c : '\1';
            if (c != ' ') end = n;
        }
        printf("%.*s\n", (int)end, line);
    }
    free(pixels);
    return 0;
}
