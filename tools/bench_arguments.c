/* bench_arguments.c: reads numbers and names, and says what is wrong with them. */
#include "tools/bench_arguments.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bench_wrong(const char *format, ...)
{
    const char *program = program_invocation_short_name;
    va_list ap;
    fprintf(stderr, "%s: ", program);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fprintf(stderr, " (try: %s --help)\n", program);
    return false;
}

bool bench_number(const char *option, const char *text, struct bench_range can, uint32_t *out)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end) return bench_wrong("--%s takes a number, not '%s'", option, text);
    if (errno || n < can.low || n > can.high)
        return bench_wrong("--%s is %s, it can be %u to %u", option, text, can.low, can.high);
    if ((n - can.low) % can.step)
        return bench_wrong("--%s is %s, it must be a multiple of %u", option, text, can.step);
    *out = (uint32_t)n;
    return true;
}

bool bench_choice(const char *option, const char *text, const char *const *names, int count, int *out)
{
    char all[256] = "";
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return true;
        }
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", names[i]);
    }
    return bench_wrong("--%s can be %s, not '%s'", option, all, text);
}
