/* program_trace.c: return addresses on a stack. */
#include "duck/program_trace.h"

#include <string.h>

enum { LONGEST_CALL = 7 };

/* Intel SDM vol. 2, CALL: E8 with a 32-bit offset, or FF /2 with its operand in 0, 1, 2, 4 or 5 more bytes.
 */
static int follows_call(const uint8_t *at)
{
    static const uint8_t length[] = {2, 3, 4, 6, 7};
    if (at[-5] == 0xe8) return 1;
    for (size_t i = 0; i < sizeof length; i++)
        if (at[-length[i]] == 0xff && (at[1 - length[i]] >> 3 & 7) == 2) return 1;
    return 0;
}

uint32_t program_trace(const uint8_t *stack, size_t bytes, const uint8_t *code, uint64_t at,
                       uint64_t code_bytes, uint64_t *out, uint32_t max)
{
    uint32_t n = 0;
    for (size_t i = 0; i + 8 <= bytes && n < max; i += 8) {
        uint64_t word;
        memcpy(&word, stack + i, sizeof word);
        if (word < at + LONGEST_CALL || word > at + code_bytes) continue;
        if (follows_call(code + (word - at))) out[n++] = word;
    }
    return n;
}
