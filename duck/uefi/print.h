/* print.h: the firmware's own formatting: %s %c %d %u %x with l, ll and a width, optionally zero-filled.
 * Freestanding; always terminates; never allocates. */
#ifndef DUCK_UEFI_PRINT_H
#define DUCK_UEFI_PRINT_H

#include <stdarg.h>
#include <stddef.h>

/* Returns the characters written, without the zero; what does not fit is cut. size > 0. */
size_t print_va(char *out, size_t size, const char *format, va_list args);
size_t print_to(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
