/* stop_strings.h: watches a stream of text for strings that end it.
 *
 * Text goes in piece by piece and comes out as soon as it cannot be part of a stop string; a possible
 * beginning of one is held back. The string that is completed first wins (the longest where several end at
 * the same byte), however the text was cut into pieces. A stop string itself never comes out. With valid
 * UTF-8 strings, text is cut only where the pieces were cut or between characters. One per stream, no locks.
 */
#ifndef DUCKD_HOST_ENGINE_STOP_STRINGS_H
#define DUCKD_HOST_ENGINE_STOP_STRINGS_H

#include <stddef.h>

#include "host/util/error.h"

struct stop_text {
    const char *text; // (length) not NUL-terminated, valid until the next call
    size_t length;
};

struct stop_strings;
/* strings[count] are copied; empty ones are refused. count may be 0: everything passes. */
int stop_strings_open(struct stop_strings **out, const char *const *strings, size_t count, struct error *err);
void stop_strings_close(struct stop_strings *s);
/* 1: a stop string was completed (*out is what came before it; the rest of the piece is dropped, as is
 * everything fed later), 0: not yet, -ENOMEM. */
int stop_strings_feed(struct stop_strings *s, const char *piece, size_t length, struct stop_text *out);
/* The stream ended without one: what was held back. */
struct stop_text stop_strings_finish(struct stop_strings *s);

#endif
