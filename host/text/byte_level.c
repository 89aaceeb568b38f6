// byte_level.c: the table is computed; the file format fixes its order.
#include "host/text/byte_level.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "host/text/utf8.h"

static bool visible(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static uint32_t code_of(unsigned char byte)
{
    if (visible(byte)) return byte;
    uint32_t code = 0x100;
    for (unsigned b = 0; b < byte; b++) code += !visible(b);
    return code;
}

void byte_level_spell(unsigned char byte, char out[BYTE_LEVEL_SPELLING])
{
    uint32_t code = code_of(byte);
    size_t length = 0;
    if (code >= 0x80) {
        out[length++] = (char)(0xc0 | code >> 6);
        code = 0x80 | (code & 0x3f);
    }
    out[length++] = (char)code;
    out[length] = '\0';
}

/* The byte that a code point spells, or -1. */
static int byte_of(uint32_t code)
{
    if (code < 0x100) return visible((unsigned)code) ? (int)code : -1;
    // U+0100..: 33 bytes up to the space, 34 from DEL to NBSP, then the soft hyphen.
    uint32_t n = code - 0x100;
    if (n < 0x21) return (int)n;
    if (n < 0x21 + 0x22) return (int)(n - 0x21 + 0x7f);
    return n == 0x21 + 0x22 ? 0xad : -1;
}

size_t byte_level_decode(const char *text, char *out)
{
    const unsigned char *from = (const unsigned char *)text;
    size_t length = strlen(text), written = 0;
    for (size_t at = 0; at < length;) {
        int step = utf8_step(from + at, length - at);
        int byte = byte_of(utf8_code_point(from + at, step));
        if (byte < 0) {
            memcpy(out, text, length); // NOLINT(bugprone-not-null-terminated-result): bytes, not a string
            return length;
        }
        out[written++] = (char)byte;
        at += (size_t)step;
    }
    return written;
}
