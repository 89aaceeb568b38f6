// utf8.c: the well-formed byte sequences of Unicode's table 3-7.
#include "host/text/utf8.h"

#include <string.h>

int utf8_step(const unsigned char *p, size_t n)
{
    unsigned char first = p[0];
    if (first < 0x80) return 1;
    int length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0) return -1;

    // Only the second byte's range depends on the first: no overlong forms, no surrogates, at most U+10FFFF.
    unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n) return 0;
        if (p[i] < low || p[i] > high) return -i;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

uint32_t utf8_code_point(const unsigned char *p, int length)
{
    static const unsigned char first_bits[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = p[0] & first_bits[length];
    for (int i = 1; i < length; i++) code = code << 6 | (p[i] & 0x3fu);
    return code;
}

size_t utf8_valid_length(const unsigned char *p, size_t n)
{
    size_t at = 0;
    while (at < n) {
        int step = utf8_step(p + at, n - at);
        if (step <= 0) break;
        at += (size_t)step;
    }
    return at;
}

size_t utf8_lossy(const unsigned char *p, size_t n, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < n;) {
        int step = utf8_step(p + at, n - at);
        const char *from = step > 0 ? (const char *)p + at : UTF8_REPLACEMENT;
        size_t length = step > 0 ? (size_t)step : UTF8_REPLACEMENT_LENGTH;
        if (out) memcpy(out + written, from, length);
        written += length;
        at += step > 0 ? (size_t)step : step < 0 ? (size_t)-step : n - at;
    }
    return written;
}
