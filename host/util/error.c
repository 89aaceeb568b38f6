/* One line says what failed; what does not fit into it is cut. */
#include "host/util/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int(error_set)(struct error *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

void error_prefix(struct error *err, const char *format, ...)
{
    if (!err) return;
    struct error old = *err;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 2 >= sizeof err->text) return;
    snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old.text);
}
