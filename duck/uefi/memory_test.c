/* memory_test.c: a pattern of addresses: wrong bits and wrong address lines both show. */
#include "duck/uefi/memory_test.h"

static uint64_t pattern(const uint64_t *at)
{
    return (uint64_t)(uintptr_t)at * 0x9e3779b97f4a7c15u; // odd: no two places alike
}

void memory_test_fill(void *memory, uint64_t bytes)
{
    uint64_t *word = memory;
    for (uint64_t i = 0; i < bytes / 8; i++) word[i] = pattern(&word[i]);
}

uint64_t memory_test_check(const void *memory, uint64_t bytes)
{
    const uint64_t *word = memory;
    uint64_t bad = 0;
    for (uint64_t i = 0; i < bytes / 8; i++) bad += word[i] != pattern(&word[i]);
    return bad;
}
