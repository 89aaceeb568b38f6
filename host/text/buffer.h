/* buffer.h: a growing run of bytes, and JSON written into it.
 *
 * Running out of memory is remembered instead of returned: writers go on without effect and the owner asks
 * once, at the end, with buffer_failed(). Zero-initialise; buffer_free() in any case. */
#ifndef DUCKD_HOST_TEXT_BUFFER_H
#define DUCKD_HOST_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    char *data; // (length), a NUL behind it; NULL while empty
    size_t length, capacity;
    bool failed;
};

void buffer_append(struct buffer *b, const void *data, size_t length);
void buffer_text(struct buffer *b, const char *text);
void buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buffer_clear(struct buffer *b); // keeps its memory
void buffer_free(struct buffer *b);
static inline bool buffer_failed(const struct buffer *b)
{
    return b->failed;
}

/* A JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD, so that the output always parses. */
void buffer_json_string(struct buffer *b, const char *text, size_t length);
/* A finite number with `decimals` places; null where it is not finite. */
void buffer_json_number(struct buffer *b, double x, int decimals);

#endif
