/* print.c: formatting for log lines. */
#include "duck/uefi/print.h"

#include <stdint.h>

struct sink {
    char *out;
    size_t used, size;
};

static void put(struct sink *s, char c)
{
    if (s->used + 1 < s->size) s->out[s->used++] = c;
}

static void put_number(struct sink *s, uint64_t value, unsigned base, unsigned width, char fill, int negative)
{
    char digits[24];
    unsigned n = 0;
    do {
        digits[n++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    if (negative && fill == ' ') digits[n++] = '-';
    if (negative && fill == '0') put(s, '-');
    unsigned length = n + (negative && fill == '0');
    for (; length < width; length++) put(s, fill);
    while (n) put(s, digits[--n]);
}

size_t print_va(char *out, size_t size, const char *f, va_list args)
{
    struct sink s = {out, 0, size};
    for (; *f; f++) {
        if (*f != '%') {
            put(&s, *f);
            continue;
        }
        char fill = ' ';
        unsigned width = 0, longs = 0;
        if (*++f == '0') fill = *f++;
        while (*f >= '0' && *f <= '9') width = width * 10 + (unsigned)(*f++ - '0');
        while (*f == 'l' || *f == 'z') longs++, f++;
        if (*f == 's') {
            for (const char *t = va_arg(args, const char *); *t; t++) put(&s, *t);
        } else if (*f == 'c') {
            put(&s, (char)va_arg(args, int));
        } else if (*f == 'd') {
            int64_t v = longs ? va_arg(args, long) : va_arg(args, int);
            put_number(&s, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, 10, width, fill, v < 0);
        } else if (*f == 'u' || *f == 'x') {
            uint64_t v = longs ? va_arg(args, unsigned long) : va_arg(args, unsigned);
            put_number(&s, v, *f == 'u' ? 10 : 16, width, fill, 0);
        } else {
            put(&s, '%');
            if (!*f) break;
            if (*f != '%') put(&s, *f);
        }
    }
    s.out[s.used] = 0;
    return s.used;
}

size_t print_to(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t n = print_va(out, size, format, args);
    va_end(args);
    return n;
}
