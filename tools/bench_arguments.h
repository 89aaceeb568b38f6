/* bench_arguments.h: options of the benches: what cannot be is said in one line on stderr, beside what can.
 */
#ifndef DUCKD_TOOLS_BENCH_ARGUMENTS_H
#define DUCKD_TOOLS_BENCH_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

struct bench_range {
    uint32_t low, high, step; // low, low + step, ...
};

/* The option's number; false: it is none, or out of range, and has been said. */
bool bench_number(const char *option, const char *text, struct bench_range can, uint32_t *out);
/* Which of the names it is; false: none of them, and it has been said. */
bool bench_choice(const char *option, const char *text, const char *const *names, int count, int *out);
/* Says anything else that cannot be; always false. */
bool bench_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
