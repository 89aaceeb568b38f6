/* screen.c: drawing text. Compiled without vector registers: exceptions are shown as well. */
#include "duck/uefi/screen.h"

#define PAPER 0u

#define LIGHT 200u                   // of 255
#define FARTHEST ((uint64_t)1 << 46) // where our own mappings begin

/* A colour's share of a pixel; 0: its bits are not in one piece. */
static uint32_t light_in(uint32_t mask)
{
    uint32_t low = mask & (~mask + 1), most = low ? mask / low : 0;
    if (most & (most + 1)) return 0;
    return (uint32_t)((uint64_t)most * LIGHT / 255) * low;
}

/* 0: no pixels of 32 bits with three colours. Pixels are as wide as their highest bit needs. */
static uint32_t ink_of(const struct screen_mode *m)
{
    const uint32_t rgb[3] = {0xff, 0xff00, 0xff0000}, *mask = m->format == SCREEN_MASKS ? m->mask : rgb;
    uint32_t used = 0, ink = 0;
    if (m->format >= SCREEN_BLT_ONLY) return 0;
    for (int i = 0; i < 3; i++) {
        uint32_t light = light_in(mask[i]);
        if (!light || used & mask[i]) return 0;
        used |= mask[i];
        ink |= light;
    }
    if (m->format == SCREEN_MASKS && !((used | mask[3]) >> 24)) return 0;
    return ink;
}

struct boot_screen screen_choose(const struct screen_mode *m)
{
    enum { LARGEST = 1 << 15 };
    const struct boot_screen none = {0};
    uint32_t ink = ink_of(m);
    if (!ink || !m->address || m->address % 4 || m->address >= FARTHEST) return none;
    if (!m->width || !m->height || m->height > LARGEST || m->stride > LARGEST || m->stride < m->width)
        return none;
    uint64_t bytes = (uint64_t)m->stride * m->height * 4;
    if (bytes > m->bytes || bytes > FARTHEST - m->address) return none;
    return (struct boot_screen){.address = m->address,
                                .bytes = bytes,
                                .width = m->width,
                                .height = m->height,
                                .stride = m->stride,
                                .ink = ink};
}

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
                for (uint32_t n = 0; n < k; n++) p[x++] = on ? s->ink : PAPER;
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
