/* prompt.h: one text -> the ids the model reads. */
#ifndef DUCKD_HOST_CLI_PROMPT_H
#define DUCKD_HOST_CLI_PROMPT_H

#include "host/cli/session.h"

struct prompt_form {
    const char *system; // NULL: none
    bool think;
    bool raw; // no chat encoding: BOS and the text
};

/* The text as one message of a user, or raw. Special tokens in it are plain text either way. */
int prompt_encode(const struct session *s, const struct prompt_form *form, const char *text, size_t length,
                  struct ids *out, struct error *err);

#endif
