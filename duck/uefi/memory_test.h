/* memory_test.h: whether memory keeps what it is given: first all of it is filled with a pattern that names
 * the place, then all of it is read. Pure. */
#ifndef DUCK_UEFI_MEMORY_TEST_H
#define DUCK_UEFI_MEMORY_TEST_H

#include <stdint.h>

/* bytes: a multiple of 64. */
void memory_test_fill(void *memory, uint64_t bytes);
uint64_t memory_test_check(const void *memory, uint64_t bytes); // 8-byte words that differ

#endif
