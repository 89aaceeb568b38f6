/* json.h: strict reading of the JSON files of a checkpoint, on top of cJSON.
 *
 * Refused, with the file's name and the byte where it happens: anything after the value, NUL bytes, nesting
 * deeper than JSON_MAX_DEPTH, and an object that has the same key twice (two readers could disagree about
 * which one counts). Numbers arrive as doubles; json_uint() lets only exact integers through. */
#ifndef DUCKD_HOST_MODEL_JSON_H
#define DUCKD_HOST_MODEL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "host/util/error.h"

#define JSON_MAX_DEPTH 32

/* `name` is used in messages only. The caller frees *out with cJSON_Delete(). */
int json_parse(cJSON **out, const char *text, size_t length, const char *name, struct error *err);

/* Parses a whole file of at most max_bytes. -ENOENT when there is none, but not for a link
 * into nowhere. */
int json_read(cJSON **out, const char *path, size_t max_bytes, struct error *err);

/* The member, or NULL when it is absent or null. Keys are case sensitive. */
const cJSON *json_get(const cJSON *object, const char *key);

/* -EINVAL: a member whose key is not in the NULL-terminated list. `where` begins the message. */
int json_check_keys(const cJSON *object, const char *const *known, const char *where, struct error *err);

/* True for an exact integer 0 .. 2^53 (beyond that doubles skip integers). */
bool json_uint(const cJSON *item, uint64_t *out);

/* An item as it can stand in a one-line message: strings quoted, shortened, control characters as '?'. */
struct json_text {
    char s[72];
};
struct json_text json_show(const cJSON *item);
struct json_text json_show_string(const char *text);

/* The end of a path that still fits into a message beside the rest. */
const char *json_path_tail(const char *path);

#endif
