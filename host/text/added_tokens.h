/* added_tokens.h: finds added tokens in text.
 *
 * A set owns nothing but its sorted array; the texts belong to the tokenizer. Leftmost match first, the
 * longest of those that begin at the same place, no overlaps. */
#ifndef DUCKD_HOST_TEXT_ADDED_TOKENS_H
#define DUCKD_HOST_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    char *text;    // owned by the tokenizer
    size_t length; // > 0
    int32_t id;
};

struct added_set {
    struct added_token *token; // sorted by text after added_set_sort()
    size_t count;
    bool starts[256]; // some token begins with this byte
};

void added_set_sort(struct added_set *set);

/* The first token in text[from..length), its place in *at; NULL when there is none. */
const struct added_token *added_set_find(const struct added_set *set, const char *text, size_t length,
                                         size_t from, size_t *at);

#endif
