/* buffer.c: see buffer.h. */
#include "host/text/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct buffer *b, size_t more)
{
    if (b->failed) return false;
    if (b->length + more + 1 <= b->capacity) return true;
    size_t capacity = 2 * b->capacity > b->length + more + 1 ? 2 * b->capacity : b->length + more + 128;
    char *grown = realloc(b->data, capacity);
    if (!grown) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->capacity = capacity;
    return true;
}

void buffer_append(struct buffer *b, const void *data, size_t length)
{
    if (!reserve(b, length)) return;
    if (length) memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = '\0';
}

void buffer_text(struct buffer *b, const char *text)
{
    buffer_append(b, text, strlen(text));
}

void buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list args;
    char small[512];
    va_start(args, format);
    int length = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (length < 0) return;
    if ((size_t)length < sizeof small) {
        buffer_append(b, small, (size_t)length);
        return;
    }
    if (!reserve(b, (size_t)length)) return;
    va_start(args, format);
    vsnprintf(b->data + b->length, (size_t)length + 1, format, args);
    va_end(args);
    b->length += (size_t)length;
}

void buffer_clear(struct buffer *b)
{
    b->length = 0;
    b->failed = false;
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

/* Length of the well-formed UTF-8 character at s, 0: there is none. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    static const struct {
        unsigned char first, last, low, high, length; // of the lead byte, of the byte behind it
    } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
                 {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                 {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last) continue;
        if (left < forms[i].length || s[1] < forms[i].low || s[1] > forms[i].high) return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if ((s[k] & 0xC0) != 0x80) return 0;
        return forms[i].length;
    }
    return 0;
}

void buffer_json_string(struct buffer *b, const char *text, size_t length)
{
    static const char plain_escapes[] = "\"\"\\\\\nn\rr\tt\bb\ff"; // pairs: character, its letter
    const unsigned char *s = (const unsigned char *)text;
    size_t from = 0, i = 0;
    buffer_append(b, "\"", 1);
    while (i < length) {
        if (s[i] >= 0x20 && s[i] < 0x80 && s[i] != '"' && s[i] != '\\') {
            i++;
            continue;
        }
        size_t whole = s[i] >= 0x80 ? utf8_length(s + i, length - i) : 0;
        if (whole) {
            i += whole;
            continue;
        }
        buffer_append(b, text + from, i - from);
        const char *escape = NULL;
        for (const char *e = plain_escapes; *e && !escape; e += 2)
            if ((unsigned char)*e == s[i]) escape = e + 1;
        if (escape)
            buffer_printf(b, "\\%c", *escape);
        else if (s[i] >= 0x80)
            buffer_text(b, "\\ufffd");
        else
            buffer_printf(b, "\\u%04x", s[i]);
        from = ++i;
    }
    buffer_append(b, text + from, length - from);
    buffer_append(b, "\"", 1);
}

void buffer_json_number(struct buffer *b, double x, int decimals)
{
    if (isfinite(x))
        buffer_printf(b, "%.*f", decimals, x);
    else
        buffer_text(b, "null");
}
