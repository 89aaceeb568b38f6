/* tokenizer.h: text <-> token ids, exactly as the original tokenizer.json says.
 *
 * Byte-level BPE with Split / Sequence / ByteLevel pre-tokenizers (regular expressions through PCRE2) and
 * added tokens. Text is bytes: invalid UTF-8 is taken as the same bytes that Hugging Face would see after
 * lossy decoding (each maximal invalid part becomes U+FFFD). Immutable after open, usable from several
 * threads. */
#ifndef DUCKD_HOST_TEXT_TOKENIZER_H
#define DUCKD_HOST_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/util/error.h"

struct tokenizer;

int tokenizer_open(struct tokenizer **out, const char *dir_or_file, struct error *err);
void tokenizer_close(struct tokenizer *t);

/* A growing array of ids; zero-initialise, free with ids_free. */
struct ids {
    int32_t *id;
    size_t count, capacity;
};
int ids_push(struct ids *ids, int32_t id); // 0 or -ENOMEM
void ids_free(struct ids *ids);

/* Appends the ids of text[length]. Added tokens in the text are recognised only with `allow_added`; otherwise
 * they are ordinary text (a message can never smuggle in a control token). Never adds BOS. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t length, bool allow_added,
                     struct ids *out, struct error *err);

/* Bytes of one token (not NUL-terminated); *added: an added token. NULL: no such id. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *length, bool *added);
/* Id of the added token with exactly this text, or -1. */
int32_t tokenizer_added(const struct tokenizer *t, const char *text);
uint32_t tokenizer_size(const struct tokenizer *t); // largest id + 1

/* Incremental detokenizer: gives out whole UTF-8 characters only; bytes of a split character wait.
 * Zero-initialise. Invalid bytes come out as U+FFFD (as the original's lossy decoding does). Added tokens are
 * skipped unless `keep_added`. */
struct detokenizer {
    unsigned char pending[8];
    unsigned pending_count;
    bool keep_added;
};
/* Writes to out (NUL-terminated, at least tokenizer_max_text() + 16 bytes); returns the length. */
size_t detokenizer_push(struct detokenizer *d, const struct tokenizer *t, int32_t id, char *out);
size_t detokenizer_finish(struct detokenizer *d, char *out); // what is still pending
size_t tokenizer_max_text(const struct tokenizer *t);        // longest token in bytes, as lossy UTF-8

#endif
