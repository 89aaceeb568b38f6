/* font.h: the letters of the screen. Pure. */
#ifndef DUCK_UEFI_FONT_H
#define DUCK_UEFI_FONT_H

#include <stdint.h>

enum { FONT_COLUMNS = 5, FONT_ROWS = 7 };

/* 1: point (column, row), counted from the upper left, belongs to c; what is not ASCII looks like '?'. */
int font_point(char c, uint32_t column, uint32_t row);

#endif
