/* sim.c: the simulated machine. */
#include "tests/duck/sim.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fp9/fp9_random.h"

static const struct peer host_peer = {0x0a000001, WIRE_HOST_PORT, {2, 0, 0, 0, 0, 1}};

static int chance(struct sim *s, double p)
{
    return p > 0 && (double)(random_next(&s->seed) >> 11) * 0x1p-53 < p;
}

static void push(struct sim *s, struct sim_queue *q, const struct peer *peer, const uint8_t *data,
                 uint32_t bytes)
{
    if (chance(s, s->lose) || bytes > WIRE_DATAGRAM_MAX) return;
    for (int copies = 1 + chance(s, s->twice); copies; copies--) {
        if (q->count == SIM_FRAMES) return; // as a switch would
        struct sim_frame *f = &q->frame[(q->first + q->count) % SIM_FRAMES];
        f->bytes = bytes;
        f->peer = *peer;
        memcpy(f->data, data, bytes);
        q->count++;
        if (q->count > 1 && chance(s, s->reorder)) { // changes places with one of the last eight
            uint32_t back = 1 + random_below(&s->seed, q->count - 1 < 8 ? q->count - 1 : 8);
            struct sim_frame *g = &q->frame[(q->first + q->count - 1 - back) % SIM_FRAMES];
            struct sim_frame *swap = malloc(sizeof *swap);
            if (!swap) abort();
            *swap = *f;
            *f = *g;
            *g = *swap;
            free(swap);
        }
    }
}

static const struct sim_frame *pop(struct sim_queue *q)
{
    if (q->count == 0) return NULL;
    const struct sim_frame *f = &q->frame[q->first];
    q->first = (q->first + 1) % SIM_FRAMES;
    q->count--;
    return f;
}

static uint64_t sim_now(void *self)
{
    struct sim *s = self;
    return s->time += 100; // everything takes some time
}

static void sim_random(void *self, uint8_t *out, size_t bytes)
{
    struct sim *s = self;
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)random_next(&s->randoms);
}

static void sim_log(void *self, const char *line)
{
    struct sim *s = self;
    size_t n = strlen(s->log);
    if (n + strlen(line) + 2 < sizeof s->log) {
        strcat(s->log, line);
        strcat(s->log, "\n");
    }
}

static void sim_sleep(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    (void)self, (void)word, (void)seen, (void)ns;
}

static void sim_wake(void *self, const _Atomic uint32_t *word)
{
    (void)self, (void)word;
}

static void sim_idle(void *self, uint64_t ns)
{
    struct sim *s = self;
    s->time += ns;
}

static void sim_power(void *self, int off)
{
    struct sim *s = self;
    s->power = 1 + off;
}

static uint32_t sim_recv(void *self, struct datagram *out, uint32_t max)
{
    struct sim *s = self;
    uint32_t n = 0;
    s->taken = 0;
    for (; n < max; n++) {
        const struct sim_frame *f = pop(&s->to_duck);
        if (!f) break;
        uint8_t *to = s->received + (size_t)n * WIRE_DATAGRAM_MAX;
        memcpy(to, f->data, f->bytes);
        out[n] = (struct datagram){.peer = f->peer, .bytes = f->bytes, .data = to};
    }
    return n;
}

static uint32_t sim_send(void *self, struct datagram *d, uint32_t count)
{
    struct sim *s = self;
    if (count > s->send_room - s->taken) count = s->send_room - s->taken;
    s->taken += count;
    for (uint32_t i = 0; i < count; i++) {
        memset(d[i].data - LINK_HEADROOM, 0xee, LINK_HEADROOM); // theirs to write
        push(s, &s->to_host, &d[i].peer, d[i].data, d[i].bytes);
    }
    return count;
}

static void sim_state(void *self, struct link_state *out)
{
    *out = ((struct sim *)self)->state;
}

struct sim *sim_make(uint64_t memory, uint64_t seed)
{
    struct sim *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->seed = seed;
    s->randoms = seed + 1;
    s->send_room = UINT32_MAX;
    s->state = (struct link_state){.mbps = 2500, .payload = WIRE_PAYLOAD};
    s->to_duck.frame = calloc(SIM_FRAMES, sizeof *s->to_duck.frame);
    s->to_host.frame = calloc(SIM_FRAMES, sizeof *s->to_host.frame);
    s->received = malloc((size_t)64 * WIRE_DATAGRAM_MAX);
    s->platform = (struct platform){.self = s,
                                    .now = sim_now,
                                    .random = sim_random,
                                    .log = sim_log,
                                    .sleep = sim_sleep,
                                    .wake = sim_wake,
                                    .idle = sim_idle,
                                    .power = sim_power,
                                    .cores = 1,
                                    .memory = aligned_alloc(64, memory),
                                    .memory_bytes = memory,
                                    .memory_total = memory,
                                    .boot_id = 77,
                                    .name = "sim"};
    if (!s->platform.memory || !s->received || !s->to_host.frame || !s->to_duck.frame) abort();
    memset(s->platform.memory, 0, memory);
    s->link = (struct link){.self = s, .recv = sim_recv, .send = sim_send, .state = sim_state};
    struct duck_options o = {
        .platform = &s->platform, .link = &s->link, .flock_key = {1, 2}, .kernels = fp9_select(NULL)};
    s->duck = duck_start(&o);
    return s;
}

void sim_free(struct sim *s)
{
    free(s->platform.memory);
    free(s->to_duck.frame);
    free(s->to_host.frame);
    free(s->received);
    free(s);
}

void sim_run(struct sim *s, uint64_t ns)
{
    uint64_t until = s->time + ns;
    while (s->time < until) {
        uint64_t wait = duck_poll(s->duck);
        if (wait == 0) continue;
        s->time = wait < until - s->time ? s->time + wait : until;
    }
}

/* ---- the host's end ---- */

static void wire_send(void *self, const uint8_t *datagram, uint32_t bytes)
{
    struct sim *s = self;
    if (s->to_duck.count > SIM_FRAMES / 2) duck_poll(s->duck);
    push(s, &s->to_duck, &host_peer, datagram, bytes);
}

static uint32_t wire_recv(void *self, uint8_t *datagram, uint64_t ns)
{
    struct sim *s = self;
    uint64_t until = s->time + ns;
    for (;;) {
        const struct sim_frame *f = pop(&s->to_host);
        if (f) {
            memcpy(datagram, f->data, f->bytes);
            return f->bytes;
        }
        if (s->time >= until) return 0;
        uint64_t wait = duck_poll(s->duck);
        if (wait && s->to_host.count == 0) s->time = wait < until - s->time ? s->time + wait : until;
    }
}

static uint64_t wire_now(void *self)
{
    return ((struct sim *)self)->time;
}

struct mini_wire sim_wire(struct sim *s)
{
    return (struct mini_wire){.self = s, .send = wire_send, .recv = wire_recv, .now = wire_now};
}

struct wire_stats sim_stats(struct mini_host *h)
{
    static uint8_t answer[WIRE_PAYLOAD_JUMBO];
    struct wire_stats stats = {0};
    if (mini_ask(h, WIRE_STATS, NULL, 0, WIRE_STATS_REPLY, WIRE_STATS_REPLY, answer))
        memcpy(&stats, answer, sizeof stats);
    return stats;
}
