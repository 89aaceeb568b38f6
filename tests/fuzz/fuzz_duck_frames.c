/* fuzz_duck_frames.c: a duck in a session, with weights, gets arbitrary frames. What must hold afterwards: it
 * still answers the holder of its session or a new OPEN, and its counters add up.
 *
 * Input: records { u8 how, u16 length, bytes }. how & 3: 1 seal with the session key, 2 with the flock key
 * (magic, version, length, session and source are made right, so that the frame gets past the tag), 0 as it
 * is; how & 4: the bytes are an Ethernet frame for duck/net.c; how & 8: 10 ms pass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck/net.h"
#include "tests/duck/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY = 5 << 20 };

static const struct duck_bank_shape bank = {3, 1, 16};
static const struct duck_run run = {0, 0, 2};
static const struct duck_shape shape = {.hidden = 16, .banks = 1, .bank = &bank, .runs = 1, .run = &run};

static struct sim *sim, sim_before;
static struct mini_host host;
static uint8_t *memory_before;

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "after the frames: %s\n", what);
    abort();
}

/* A duck that has been given its weights and has done a step; later inputs begin from a copy. */
static void prepare(void)
{
    static float out[64];
    struct layers *l = layers_make(&shape, 1, 5);
    sim = sim_make(MEMORY, 1);
    host = mini_host_make(sim_wire(sim), (struct siphash_key){1, 2}, 9);
    host.terms.max_tokens = 3;
    host.terms.plan_hash = wire_object_hash(l->plan, l->plan_bytes);
    require(mini_discover(&host) && mini_open(&host) == 1 && mini_load(&host, l), "setting up");
    size_t bytes;
    uint8_t *step = layers_step(l, 0, 1, 2, WIRE_F32, WIRE_F32, WIRE_PAYLOAD, 1, &bytes);
    mini_send_step(&host, 1, step, bytes);
    require(mini_collect(&host, 1, step, bytes, duck_core_subtrees(l->core, 0, NULL, 0), out, NULL),
            "a step");
    free(step);
    layers_free(l);
    sim_before = *sim;
    memory_before = malloc(MEMORY);
    if (!memory_before) abort();
    memcpy(memory_before, sim->platform.memory, MEMORY);
}

/* ---- raw frames ---- */

static struct frame raw;

static uint32_t nic_recv(void *self, struct frame *out, uint32_t max)
{
    (void)self, (void)max;
    *out = raw;
    return 1;
}

static uint32_t nic_send(void *self, const struct frame *f, uint32_t count)
{
    (void)self;
    for (uint32_t i = 0; i < count; i++)
        require(f[i].bytes >= 14 && f[i].bytes <= 128, "answers are small frames");
    return count;
}

static void give_raw(const uint8_t *bytes, uint32_t count)
{
    static struct net net;
    static const struct nic nic = {
        .mac = {2, 0, 0, 0, 0, 9}, .mtu = 1500, .recv = nic_recv, .send = nic_send};
    struct datagram d;
    net_init(&net, &nic, 0x0a000009, WIRE_DUCK_PORT);
    raw.data = malloc(count ? count : 1); // exact, so that a read beyond it is seen
    if (!raw.data) abort();
    memcpy(raw.data, bytes, count);
    raw.bytes = count;
    if (net.link.recv(net.link.self, &d, 1))
        require(d.data >= raw.data && d.data + d.bytes <= raw.data + count, "a datagram lies in its frame");
    free(raw.data);
}

static void give(uint8_t how, const uint8_t *bytes, uint32_t count)
{
    static uint8_t d[WIRE_DATAGRAM_MAX];
    struct wire_header h;
    if (how & 8) sim_run(sim, 10000000);
    if (how & 4) {
        give_raw(bytes, count);
        return;
    }
    if (count > sizeof d) return;
    memcpy(d, bytes, count);
    if ((how & 3) && count >= WIRE_HEADER) {
        memcpy(&h, d, sizeof h);
        h.length = (uint16_t)(count - WIRE_HEADER);
        h.session = (how & 3) == 1 ? host.terms.session : 0;
        h.source = WIRE_HOST;
        // the host's nonce of OPEN and POWER is the duck's: let half of them be right
        if ((how & 16) && h.length >= WIRE_NONCE) memcpy(d + WIRE_HEADER, host.hello.nonce, WIRE_NONCE);
        wire_seal(d, h, (how & 3) == 1 ? &host.key : &host.flock_key);
    }
    host.wire.send(host.wire.self, d, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!sim) prepare();
    struct sim_queue in = sim->to_duck, out = sim->to_host;
    *sim = sim_before;
    sim->to_duck.frame = in.frame;
    sim->to_host.frame = out.frame;
    sim->to_duck.count = sim->to_host.count = 0;
    memcpy(sim->platform.memory, memory_before, MEMORY);
    struct mini_host h = host;
    require(mini_discover(&h), "answers DISCOVER");
    memcpy(host.hello.nonce, h.hello.nonce, WIRE_NONCE);
    while (size >= 3) {
        uint32_t count = (uint32_t)(data[1] | data[2] << 8);
        if (count > size - 3) count = (uint32_t)size - 3;
        give(data[0], data + 3, count);
        data += 3 + count;
        size -= 3 + count;
    }
    sim_run(sim, 200000000);
    sim->to_host.count = 0;
    require(mini_discover(&h), "answers DISCOVER");
    struct wire_stats s = sim_stats(&h);
    h.terms.session = 0; // outside of the session
    if (s.frames_in == 0) s = sim_stats(&h);
    require(s.frames_in > 0, "answers STATS");
    require(s.frames_in >= s.bad_frame + s.bad_tag + s.stranger + s.duplicate + s.late, "counters add up");
    return 0;
}
