/* test_root.h: a temporary folder for all that a test program writes; made and removed with its group. */
#ifndef DUCKD_TESTS_MODEL_TEST_ROOT_H
#define DUCKD_TESTS_MODEL_TEST_ROOT_H

extern char test_root[];
int make_test_root(void **state);
int remove_test_root(void **state);

#endif
