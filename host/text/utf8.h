/* utf8.h: one step over bytes that may or may not be UTF-8.
 *
 * Invalid bytes are grouped as Unicode's "maximal subpart" practice says (the rule of Rust's lossy decoding,
 * and of the WHATWG decoders): the longest start of some well-formed character is one invalid part, any other
 * byte is one by itself. Overlong forms, surrogates and values above U+10FFFF are not well-formed. */
#ifndef DUCKD_HOST_TEXT_UTF8_H
#define DUCKD_HOST_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD
#define UTF8_REPLACEMENT_LENGTH 3

/* What begins at p[0..n), n > 0: > 0 the length of a whole character; < 0 minus the length of an invalid
 * part; 0: all n bytes (at most 3) are the start of a character whose rest is not there. */
int utf8_step(const unsigned char *p, size_t n);

/* The code point of a whole character of `length` bytes, as utf8_step() found it. */
uint32_t utf8_code_point(const unsigned char *p, int length);

/* Length of the well-formed text at the start of p[0..n). */
size_t utf8_valid_length(const unsigned char *p, size_t n);

/* Writes p[0..n) with every invalid part as U+FFFD to out (at most 3 n bytes; NULL: only measures) and
 * returns the length. */
size_t utf8_lossy(const unsigned char *p, size_t n, char *out);

#endif
