/* screen.c: drawing text. Compiled without vector registers: exceptions are shown as well. */
#include "duck/uefi/screen.h"

#define INK 0x00c8c8c8u // grey in every order of colours
#define PAPER 0u

/* Points are squares of so many pixels. */
static uint32_t scale(const struct screen *s)
{
    return s->width >= SCREEN_LARGE_FROM ? 2 : 1;
}

static uint32_t lines(const struct screen *s)
{
    return s->height / (SCREEN_CELL_ROWS * scale(s));
}

static void draw_line(struct screen *s, uint32_t line, const char *text)
{
    uint32_t k = scale(s), top = line * SCREEN_CELL_ROWS * k, columns = s->width / (SCREEN_CELL_COLUMNS * k);
    for (uint32_t y = 0; y < SCREEN_CELL_ROWS * k; y++) {
        volatile uint32_t *p = s->pixels + (uint64_t)(top + y) * s->stride;
        uint32_t row = y / k, x = 0;
        for (uint32_t i = 0; i < columns && text[i] && row < FONT_ROWS; i++)
            for (uint32_t column = 0; column < SCREEN_CELL_COLUMNS; column++) {
                int on = column < FONT_COLUMNS && font_point(text[i], column, row);
                for (uint32_t n = 0; n < k; n++) p[x++] = on ? INK : PAPER;
            }
        while (x < s->width) p[x++] = PAPER;
    }
}

void screen_start(struct screen *s)
{
    for (uint32_t y = 0; s->pixels && y < s->height; y++)
        for (uint32_t x = 0; x < s->width; x++) s->pixels[(uint64_t)y * s->stride + x] = PAPER;
    s->line = 0;
}

void screen_line(struct screen *s, const char *text)
{
    uint32_t count = lines(s);
    if (!s->pixels || count < 2) return;
    draw_line(s, s->line, text);
    s->line = (s->line + 1) % count;
    draw_line(s, s->line, "");
}
