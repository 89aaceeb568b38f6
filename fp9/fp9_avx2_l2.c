/* fp9_avx2_l2.c: the kernels of fp9_avx2.c, whose dots of few tokens read ahead into L2 instead of L1.
 *
 * A line on its way to L1 holds one of the places for lines that L1 awaits, and with those of Zen 4 a core
 * gets 20 of the 32 GB/s that it can read; on its way to L2 it holds none. Intel's cores lose 4 to 8 % by it
 * (docs/numbers.md, "Fetching on Zen 4"), so it is not how all read. */
#define FP9__FETCH "prefetcht1"
#define FP9__FETCH_HINT _MM_HINT_T1
#define FP9__FETCH_AHEAD 4096 // 2 KB take 6 % longer
#include "fp9/fp9_avx2_few.h"

const struct fp9_kernels fp9_avx2_l2 = {.name = "avx2-l2",
                                        .prepare = fp9__avx2_prepare,
                                        .dot = dot,
                                        .dot2 = dot2,
                                        .expert = fp9__avx2_expert,
                                        .down = &fp9__avx2_down};
