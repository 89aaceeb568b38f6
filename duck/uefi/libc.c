/* libc.c: the functions of string.h that the compiler or the duck core calls. String instructions: fast on
 * every CPU since 2013 (ERMS), and the compiler cannot turn them into calls of themselves. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    void *d = to;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(n) : : "memory");
    return to;
}

void *memset(void *to, int value, size_t n)
{
    void *d = to;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(value) : "memory");
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    if ((uintptr_t)to - (uintptr_t)from >= n) return memcpy(to, from, n);
    uint8_t *d = (uint8_t *)to + n;
    const uint8_t *s = (const uint8_t *)from + n;
    while (n--) {
        *--d = *--s;
        __asm__ volatile("" : : : "memory"); // or this loop becomes a call of memmove
    }
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const volatile uint8_t *x = a, *y = b; // volatile: as above
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

size_t strlen(const char *s)
{
    const volatile char *p = s; // volatile: as above
    size_t n = 0;
    while (p[n]) n++;
    return n;
}
