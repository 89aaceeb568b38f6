/* expect.h: what a table of refused inputs needs: a message is one line and names all that matters. */
#ifndef DUCKD_TESTS_MODEL_EXPECT_H
#define DUCKD_TESTS_MODEL_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/util/error.h"

#define EXPECT_PARTS 5

/* Fails unless rc says "failed" and the message, one line, has all the parts. */
static inline void expect_refusal(int rc, const struct error *err, const char *const parts[EXPECT_PARTS])
{
    if (rc >= 0) fail_msg("accepted, but should be refused with \"%s\"", parts[0]);
    if (strchr(err->text, '\n') || !*err->text) fail_msg("not one line: \"%s\"", err->text);
    for (size_t i = 0; i < EXPECT_PARTS && parts[i]; i++)
        if (!strstr(err->text, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], err->text);
    if (getenv("SHOW_MESSAGES")) print_message("%s\n", err->text);
}

#endif
