/* vocabulary.h: token text -> id while a tokenizer file is read.
 *
 * Texts are NUL-terminated, in the file's own spelling, and belong to the caller. */
#ifndef DUCKD_HOST_TEXT_VOCABULARY_H
#define DUCKD_HOST_TEXT_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

struct vocabulary {
    struct vocabulary_entry {
        const char *text; // NULL: empty slot
        int32_t id;
    } * slots;
    size_t mask;
};

int vocabulary_init(struct vocabulary *v, size_t entries); // 0 or -ENOMEM
void vocabulary_free(struct vocabulary *v);
int vocabulary_add(struct vocabulary *v, const char *text,
                   int32_t id); // 0 or -EEXIST; at most `entries` calls
int32_t vocabulary_find(const struct vocabulary *v, const char *text); // -1: not there

#endif
