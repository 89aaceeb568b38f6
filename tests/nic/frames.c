/* frames.c: what models ask of a frame. */
#include <string.h>

#include "tests/nic/model.h"

int is_magic(const uint8_t *frame, uint32_t bytes, const uint8_t mac[6])
{
    enum { ADDRESS = 6, TIMES = 16 };
    uint8_t pattern[ADDRESS * (TIMES + 1)];
    memset(pattern, 0xff, ADDRESS);
    for (uint32_t i = 1; i <= TIMES; i++) memcpy(pattern + (size_t)i * ADDRESS, mac, ADDRESS);
    for (uint32_t at = 0; at + sizeof pattern <= bytes; at++)
        if (memcmp(frame + at, pattern, sizeof pattern) == 0) return 1;
    return 0;
}

uint32_t frame_sum(const uint8_t *frame, uint32_t bytes)
{
    uint32_t s = 2166136261u;
    for (uint32_t i = 0; i < bytes; i++) s = (s ^ frame[i]) * 16777619u;
    return s;
}
