/* count_alloc.c: preloaded into a program under test: counts its allocations, all threads and libraries. The
 * sum is written to file descriptor 2 when the program ends. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic unsigned long count;

void *malloc(size_t bytes)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : 12; // ENOMEM
}

__attribute__((destructor)) static void say(void)
{
    char line[64];
    int n = snprintf(line, sizeof line, "allocations: %lu\n", atomic_load(&count));
    if (write(2, line, (size_t)n) < 0) _exit(3);
}
