/* bench_compare.h: two runs of `duckd bench`, side by side. */
#ifndef DUCKD_HOST_CLI_BENCH_COMPARE_H
#define DUCKD_HOST_CLI_BENCH_COMPARE_H

#include <stdio.h>

#include "host/util/error.h"

/* a, b: directories that bench has written. Cases are matched by name; what only one of them has is said. */
int bench_compare(FILE *to, const char *a, const char *b, struct error *err);

#endif
