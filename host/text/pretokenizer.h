/* pretokenizer.h: cuts text into the pieces that are merged one by one.
 *
 * Owns the compiled regular expressions of the stages; each stage cuts every piece of the one before, seeing
 * nothing outside that piece. Immutable once filled; a `struct splitting` belongs to one caller. */
#ifndef DUCKD_HOST_TEXT_PRETOKENIZER_H
#define DUCKD_HOST_TEXT_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "host/util/error.h"

#define PRETOKENIZER_STAGES 16

struct pretokenizer {
    struct {
        struct pcre2_real_code_8 *code;
        bool drop_matches, drop_gaps; // both false: "Isolated"
    } stage[PRETOKENIZER_STAGES];
    size_t stages;
};

/* Adds a stage. `literal`: the pattern is text to look for, otherwise a regular expression as tokenizer files
 * have it. */
int pretokenizer_add(struct pretokenizer *p, const char *pattern, bool literal, bool drop_matches,
                     bool drop_gaps, struct error *err);
void pretokenizer_free(struct pretokenizer *p);

/* Gets the pieces in order; negative: stop and return that. */
typedef int piece_fn(void *arg, const char *piece, size_t length, struct error *err);

/* Working memory of one caller. */
struct splitting {
    const struct pretokenizer *pretokenizer;
    struct pcre2_real_match_data_8 *match[PRETOKENIZER_STAGES];
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *jit_stack;
    piece_fn *fn;
    void *arg;
    struct error *err;
};
int splitting_open(struct splitting *s, const struct pretokenizer *p, piece_fn *fn, void *arg,
                   struct error *err);
void splitting_close(struct splitting *s);

/* Calls fn for every piece of text[0..length), which must be valid UTF-8. */
int splitting_run(struct splitting *s, const char *text, size_t length);

#endif
