/* json_depth.h: how deep a JSON text is nested, told from its brackets alone. */
#ifndef DUCKD_HOST_UTIL_JSON_DEPTH_H
#define DUCKD_HOST_UTIL_JSON_DEPTH_H

#include <stdbool.h>
#include <stddef.h>

/* The bracket that nests the text deeper than `limit`, or NULL. */
const char *json_too_deep(const char *text, size_t length, int limit);
/* Whether a parser that allows `limit` stopped at `end` (NULL: it did not say) for that: cJSON does not say
 * why. */
bool json_stopped_too_deep(const char *text, const char *end, int limit);

#endif
