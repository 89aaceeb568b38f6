/* fuzz_host_frames.c: a host with an open session and a step on its way gets arbitrary frames as if from its
 * duck. Whatever comes, it must not touch memory that is not its own, and it must end: with a result or a
 * failure.
 *
 * Input: records { u8 how, u16 length, bytes }. how & 3: 1 seal with the session key, 2 with the flock key
 * (magic, version, length, session and source are made right, so that the frame gets past the tag), 0 as it
 * is; how & 4: a millisecond passes; how & 8: the duck's own frames are delivered first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/net/world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct duck_bank_shape bank = {3, 1, 16};
static const struct duck_run run = {0, 0, 2};
static const struct duck_shape shape = {.hidden = 16, .banks = 1, .bank = &bank, .runs = 1, .run = &run};

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "after the frames: %s\n", what);
    abort();
}

static void inject(struct world *w, uint8_t how, const uint8_t *bytes, uint32_t length)
{
    static uint8_t frame[WIRE_DATAGRAM_MAX];
    struct net_flock *f = &w->host[0].flock;
    const struct net_peer from = {.address = 0x0a150065, .port = WIRE_DUCK_PORT, .mac = {2, 0, 0, 0, 0, 1}};
    if (length > sizeof frame) length = sizeof frame;
    memcpy(frame, bytes, length);
    if (how & 3 && length >= WIRE_HEADER) {
        struct wire_header h;
        memcpy(&h, frame, sizeof h);
        h.length = (uint16_t)(length - WIRE_HEADER);
        h.session = (how & 3) == 1 ? f->session : 0;
        if ((how & 3) == 1) h.source = 0;
        wire_seal(frame, h, (how & 3) == 1 ? &f->key : &f->flock_key);
    }
    uint64_t before = f->port[0].frames_in;
    net_port_input(&f->port[0], &from, frame, length, w->time);
    require(f->port[0].frames_in == before + 1, "a frame was not counted");
}

static bool ended(struct world *w, int host)
{
    return net_poll(&w->host[host].flock, 0, w->time, NULL) != 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct world_step s;
    world_duck_memory = (size_t)5 << 20;
    world_make(&w, &shape, 1, 1, 1, 5);
    world_host_start(&w, 0, 1, 3, WIRE_F32);
    require(world_open(&w, 0), "setting up");
    world_step_make(&w, 0, &s, 0, 2, 2, 1);
    require(net_submit(&w.host[0].flock, 0, &s.step, w.time, NULL) == 0, "submitting");
    while (size >= 3) {
        uint8_t how = data[0];
        uint32_t length = (uint32_t)data[1] | (uint32_t)data[2] << 8;
        data += 3;
        size -= 3;
        if (length > size) length = (uint32_t)size;
        if (how & 8) world_run(&w, NULL, 0, 50000);
        inject(&w, how, data, length);
        if (how & 4) world_run(&w, NULL, 0, 1000000);
        data += length;
        size -= length;
    }
    require(world_run(&w, ended, 0, 10000000000u), "the step neither ended nor failed");
    world_step_free(&s);
    world_free(&w);
    return 0;
}
