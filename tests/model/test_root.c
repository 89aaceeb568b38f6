/* test_root.c: see test_root.h. */
#include "tests/model/test_root.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

char test_root[] = "/tmp/duckd-model-XXXXXX";

int make_test_root(void **state)
{
    (void)state;
    return mkdtemp(test_root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

int remove_test_root(void **state)
{
    (void)state;
    return nftw(test_root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
