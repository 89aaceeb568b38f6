/* scratch.h: a temporary folder for all that a test program writes; made and removed with its group. */
#ifndef DUCKD_TESTS_MODEL_SCRATCH_H
#define DUCKD_TESTS_MODEL_SCRATCH_H

extern char scratch_root[];
int make_scratch(void **state);
int remove_scratch(void **state);

#endif
