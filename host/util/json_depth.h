/* json_depth.h: how deep a JSON text is nested, told from its brackets alone. */
#ifndef DUCKD_HOST_UTIL_JSON_DEPTH_H
#define DUCKD_HOST_UTIL_JSON_DEPTH_H

#include <stddef.h>

/* The bracket that nests the text deeper than `limit`, or NULL. With CJSON_NESTING_LIMIT it tells what cJSON
 * itself refuses without saying why. */
const char *json_too_deep(const char *text, size_t length, int limit);

#endif
