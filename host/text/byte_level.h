/* byte_level.h: how byte-level BPE spells bytes in its file.
 *
 * Each byte is one printable character: visible Latin-1 characters stand for themselves, the others for
 * U+0100 and up, in order. */
#ifndef DUCKD_HOST_TEXT_BYTE_LEVEL_H
#define DUCKD_HOST_TEXT_BYTE_LEVEL_H

#include <stddef.h>

/* The pattern that a ByteLevel pre-tokenizer cuts by when its use_regex is true (GPT-2's). */
#define BYTE_LEVEL_PATTERN                                                                                   \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define BYTE_LEVEL_SPELLING 3 // bytes of one spelling, its NUL included
void byte_level_spell(unsigned char byte, char out[BYTE_LEVEL_SPELLING]);

/* The bytes that `text` (valid UTF-8) spells, or its own bytes when any character in it spells none (as
 * special tokens have). out: strlen(text) bytes; returns the length. */
size_t byte_level_decode(const char *text, char *out);

#endif
