/* no_mutants.c: for test programs that only run the driver itself. */
#include "tests/nic/exercise.h"

const struct mutant mutants[1] = {{0}};
const uint32_t mutants_count = 0;
