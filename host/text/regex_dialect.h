/* regex_dialect.h: the regular expressions of tokenizer files, rewritten for PCRE2.
 *
 * The files are written for Oniguruma (Ruby syntax, UTF-8). Where PCRE2 means something else by the same
 * characters the pattern is rewritten; a construct whose meaning differs and is not rewritten is refused by
 * name. What passes means the same set of matches on both sides. */
#ifndef DUCKD_HOST_TEXT_REGEX_DIALECT_H
#define DUCKD_HOST_TEXT_REGEX_DIALECT_H

#include "host/util/error.h"

/* *out: a new string, to be freed. 0, -EINVAL (refused) or -ENOMEM. */
int regex_to_pcre2(const char *pattern, char **out, struct error *err);

#endif
