/* input.h: what a command reads: texts, JSON, token ids. "-" is stdin. Messages name the file and the place.
 */
#ifndef DUCKD_HOST_CLI_INPUT_H
#define DUCKD_HOST_CLI_INPUT_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "host/text/tokenizer.h"
#include "host/util/error.h"

/* What messages call the file. */
const char *input_name(const char *path);
/* The whole file, NUL-terminated; free *out. */
int input_text(const char *path, char **out, size_t *length, struct error *err);
/* The whole file as JSON; trailing text is refused. cJSON_Delete *out. */
int input_json(const char *path, cJSON **out, struct error *err);

/* A JSON array of ids. `name` is used in messages only. */
int input_ids_from(const cJSON *array, const char *name, struct ids *out, struct error *err);
int input_ids(const char *path, struct ids *out, struct error *err);
/* An array of ids, or an array of arrays of ids; free each and *out. */
int input_id_lists(const char *path, struct ids **out, size_t *count, struct error *err);
/* Refuses ids outside 0 .. vocab - 1 and names the first. */
int input_check_ids(const struct ids *ids, uint32_t vocab, const char *name, struct error *err);

/* Finds a file or folder that comes with duckd: below the current directory, then beside the program's source
 * tree or in its installed share folder. `out` has 4096 bytes; `relative` itself when it is nowhere. */
void input_find_shared(const char *relative, char *out);

#endif
