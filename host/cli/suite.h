/* suite.h: the prompts of `duckd bench`, from a JSON file.
 *
 * {"name": ..., "n": tokens per answer, "cases": [...]}; a case has a name (letters, digits, . _ -), its
 * prompt as one of "prompt", "prompt_file" (relative to the suite), "tokens" (ids, as they are) or "repeat"
 * (a text that is repeated until the prompt has about "repeat_tokens" tokens; "prompt" then follows it), and
 * may have "n", "system", "think", "raw", "ignore_eos" and "about" (a remark). Unknown keys are refused by
 * name. */
#ifndef DUCKD_HOST_CLI_SUITE_H
#define DUCKD_HOST_CLI_SUITE_H

#include <cjson/cJSON.h>

#include "host/cli/session.h"

struct suite_case {
    const char *name, *about; // in the suite's JSON
    struct ids prompt;
    uint32_t n; // 0: until the model stops
    bool ignore_eos;
};

struct suite {
    const char *name;
    struct suite_case *cases;
    size_t count;
    cJSON *json;
};

/* Reads the file and encodes every prompt with the session's tokenizer; checks that they fit the model. */
int suite_read(struct suite *out, const char *path, const struct session *s, struct error *err);
/* One case of random ids, for a session without text: a prompt of so many, and n tokens of answer. */
int suite_synthetic(struct suite *out, const struct session *s, uint32_t prompt, uint32_t n,
                    struct error *err);
void suite_free(struct suite *suite);

#endif
