/* capture.c: the pcap format of 1998, nanoseconds, Ethernet. */
#include "tests/net/capture.h"

#include <stdlib.h>
#include <string.h>

#include "host/flock/dpdk/frame.h"

static void must(int good)
{
    if (!good) abort();
}

static void put(FILE *f, const uint32_t *words, size_t count)
{
    must(fwrite(words, sizeof *words, count, f) == count);
}

FILE *capture_open(const char *path)
{
    FILE *f = fopen(path, "wbe");
    must(f != NULL);
    const uint32_t head[6] = {0xa1b23c4d, 2 | 4 << 16, 0, 0, 65535, 1};
    put(f, head, 6);
    return f;
}

void capture_add(FILE *f, const struct net_peer *from, const struct net_peer *to, const uint8_t *datagram,
                 uint32_t bytes, uint64_t ns)
{
    static uint8_t frame[FRAME_HEADERS + WIRE_DATAGRAM_MAX];
    struct frame_self self = {.udp = from->port, .address = from->address, .broadcast = 0xffffffff};
    memcpy(self.mac, from->mac, sizeof self.mac);
    memcpy(frame + FRAME_HEADERS, datagram, bytes);
    uint32_t length = frame_write(&self, to, frame, bytes);
    const uint32_t head[4] = {(uint32_t)(ns / 1000000000), (uint32_t)(ns % 1000000000), length, length};
    put(f, head, 4);
    must(fwrite(frame, 1, length, f) == length);
}

void capture_close(FILE *f)
{
    must(fclose(f) == 0);
}
