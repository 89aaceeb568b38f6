/* kat_print.c: prints what the known-answer test of seed 1 gives on this machine, as ducks do when they boot.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "duck/kat.h"

int main(void)
{
    const struct fp9_kernels *k = fp9_select(NULL);
    void *memory = aligned_alloc(64, KAT_MEMORY);
    if (!k || !memory) return 1;
    printf("%016" PRIx64 "\n", kat_hash(k, FP9_FP9, memory, 1));
    free(memory);
    return 0;
}
