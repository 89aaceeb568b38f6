/* tokenizer_internal.h: what a tokenizer is made of; shared by tokenizer.c (use) and tokenizer_load.c
 * (reading).
 *
 * Immutable once tokenizer__load() has returned. */
#ifndef DUCKD_HOST_TEXT_TOKENIZER_INTERNAL_H
#define DUCKD_HOST_TEXT_TOKENIZER_INTERNAL_H

#include "host/text/added_tokens.h"
#include "host/text/bpe.h"
#include "host/text/pretokenizer.h"
#include "host/text/tokenizer.h"

struct token {
    char *bytes; // what the token decodes to; NULL: no token has this id
    size_t length;
    bool added;
};

struct tokenizer {
    struct token *token;
    uint32_t size; // largest id + 1
    struct bpe bpe;
    struct pretokenizer pretokenizer;
    // Tokens marked "normalized" are looked for only in what the others left over.
    struct added_set added[2];
    size_t max_text;
};

/* Fills a zeroed tokenizer from the text of a tokenizer.json, text[length] == 0. On failure the caller closes
 * it. */
int tokenizer__load(struct tokenizer *t, const char *text, size_t length, struct error *err);

#endif
