/* scratch.c: see scratch.h. */
#include "tests/model/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

char scratch_root[] = "/tmp/duckd-model-XXXXXX";

int make_scratch(void **state)
{
    (void)state;
    return mkdtemp(scratch_root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

int remove_scratch(void **state)
{
    (void)state;
    return nftw(scratch_root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
