/* world.c: the simulated clock, wire, ducks and hosts. */
#include "tests/net/world.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fp9/fp9_random.h"

#define HOST_ADDRESS 0x0a150001u // 10.21.0.1; port p: 10.21.p.1 + host
#define MS 1000000ull

size_t world_duck_memory = (size_t)24 << 20;
const struct fp9_kernels *world_duck_kernels;

static void *must(void *p)
{
    if (!p) abort();
    return p;
}

static bool chance(struct world *w, double p)
{
    return p > 0 && (double)(random_next(&w->seed) >> 11) * 0x1p-53 < p;
}

/* ---- the wire ---- */

static bool before(const struct world_event *a, const struct world_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void heap_push(struct world *w, struct world_event e)
{
    if (w->events == w->room) {
        w->room = w->room ? 2 * w->room : 256;
        w->heap = must(realloc(w->heap, w->room * sizeof *w->heap));
    }
    size_t i = w->events++;
    for (; i > 0 && before(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
}

static struct world_event heap_pop(struct world *w)
{
    struct world_event top = w->heap[0], e = w->heap[--w->events];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->events) break;
        if (child + 1 < w->events && before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!before(&w->heap[child], &e)) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = e;
    return top;
}

static void transmit(struct world *w, int duck, int host, int port, struct peer from, const uint8_t *data,
                     uint32_t bytes)
{
    if (chance(w, w->faults.lose)) return;
    for (int copies = 1 + chance(w, w->faults.twice); copies; copies--) {
        uint64_t at = w->time + w->faults.delay_ns + 1000;
        if (chance(w, w->faults.late)) at += random_below(&w->seed, (uint32_t)w->faults.jitter_ns + 1);
        struct world_event e = {.at = at,
                                .order = w->order++,
                                .duck = duck,
                                .host = host,
                                .port = port,
                                .peer = from,
                                .bytes = bytes,
                                .data = must(malloc(bytes))};
        memcpy(e.data, data, bytes);
        heap_push(w, e);
    }
    w->frames++;
}

/* ---- ducks ---- */

static uint64_t duck_now(void *self)
{
    struct world_duck *d = self;
    return d->world->time += 50; // everything takes some time
}

static void duck_random(void *self, uint8_t *out, size_t bytes)
{
    struct world_duck *d = self;
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)random_next(&d->world->seed);
}

static void duck_log(void *self, const char *line)
{
    (void)self, (void)line;
}

static void duck_sleep(void *self, const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    (void)self, (void)word, (void)seen, (void)ns;
}

static void duck_wake(void *self, const _Atomic uint32_t *word)
{
    (void)self, (void)word;
}

static void duck_idle(void *self, uint64_t ns)
{
    (void)self, (void)ns;
}

static void duck_power(void *self, int off)
{
    (void)self, (void)off;
}

static uint32_t duck_recv(void *self, struct datagram *out, uint32_t max)
{
    struct world_duck *d = self;
    uint32_t n = d->inbox_count < max ? d->inbox_count : max;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *to = d->received + (size_t)i * WIRE_DATAGRAM_MAX;
        memcpy(to, d->inbox[i].data, d->inbox[i].bytes);
        out[i] = (struct datagram){.peer = d->inbox[i].peer, .bytes = d->inbox[i].bytes, .data = to};
        free(d->inbox[i].data);
    }
    memmove(d->inbox, d->inbox + n, (d->inbox_count - n) * sizeof *d->inbox);
    d->inbox_count -= n;
    return n;
}

static struct peer duck_peer(const struct world_duck *d)
{
    return (struct peer){0x0a150000u | d->port << 8 | (101 + d->index), WIRE_DUCK_PORT, {2, 0, 0, 0, 0, 1}};
}

static uint32_t duck_send(void *self, struct datagram *frames, uint32_t count)
{
    struct world_duck *d = self;
    for (uint32_t i = 0; i < count; i++) {
        int host = (int)(frames[i].peer.address & 255) - 1;
        const struct peer *to = &frames[i].peer, from = duck_peer(d);
        if (d->world->capture) {
            struct net_peer a = {from.address, from.port, {0}}, b = {to->address, to->port, {0}};
            memcpy(a.mac, from.mac, sizeof a.mac);
            capture_add(d->world->capture, &a, &b, frames[i].data, frames[i].bytes, d->world->time);
        }
        transmit(d->world, -1, host, (int)d->port, from, frames[i].data, frames[i].bytes);
    }
    return count;
}

static void duck_state(void *self, struct link_state *out)
{
    struct world_duck *d = self;
    *out =
        (struct link_state){.mbps = 2500, .payload = WIRE_PAYLOAD, .mac = {2, 0, 0, 0, 1, (uint8_t)d->index}};
}

static void duck_make(struct world *w, uint32_t i)
{
    struct world_duck *d = &w->duck[i];
    *d = (struct world_duck){.world = w, .index = i, .port = i % w->ports};
    d->received = must(malloc((size_t)64 * WIRE_DATAGRAM_MAX));
    d->platform = (struct platform){.self = d,
                                    .now = duck_now,
                                    .random = duck_random,
                                    .log = duck_log,
                                    .sleep = duck_sleep,
                                    .wake = duck_wake,
                                    .idle = duck_idle,
                                    .power = duck_power,
                                    .cores = 1,
                                    .memory = must(aligned_alloc(64, world_duck_memory)),
                                    .memory_bytes = world_duck_memory,
                                    .memory_total = world_duck_memory,
                                    .boot_id = 77 + i,
                                    .name = "world"};
    memset(d->platform.memory, 0, world_duck_memory);
    d->link = (struct link){.self = d, .recv = duck_recv, .send = duck_send, .state = duck_state};
    struct duck_options o = {.platform = &d->platform,
                             .link = &d->link,
                             .flock_key = {1, 2},
                             .kernels = world_duck_kernels ? world_duck_kernels : fp9_select(NULL)};
    d->duck = must(duck_start(&o));
}

/* ---- hosts ---- */

static uint8_t *port_buffer(void *self)
{
    return ((struct world_port *)self)->room;
}

static bool broadcast_is_lost(struct world_port *p)
{
    struct wire_header h;
    memcpy(&h, p->room, sizeof h);
    if (h.type != WIRE_STEP) return false;
    if (h.fragment == 0) p->lost_step = chance(p->world, p->world->faults.lose_broadcast) ? h.sequence : 0;
    return p->lost_step == h.sequence;
}

static void port_send(void *self, const struct net_peer *to, uint32_t bytes)
{
    struct world_port *p = self;
    struct world *w = p->world;
    struct peer from = {HOST_ADDRESS + ((uint32_t)p->port << 8) + (uint32_t)p->host, WIRE_HOST_PORT, {0}};
    if (!to && broadcast_is_lost(p)) return;
    for (uint32_t i = 0; i < w->ducks; i++) {
        struct world_duck *d = &w->duck[i];
        if (d->port != (uint32_t)p->port || (to && to->address != duck_peer(d).address)) continue;
        transmit(w, (int)i, p->host, p->port, from, p->room, bytes);
    }
}

void world_host_start(struct world *w, int host, uint32_t lanes, uint32_t max_tokens,
                      enum wire_dtype activation)
{
    struct world_host *h = &w->host[host];
    *h = (struct world_host){.alive = true};
    h->config = (struct net_config){.ports = w->ports,
                                    .ducks = w->ducks,
                                    .match = h->match,
                                    .key = {1, 2},
                                    .find_ms = 1000,
                                    .dead_ms = 2000,
                                    .lease_ms = 3000,
                                    .gap_us = 200,
                                    .payload = WIRE_PAYLOAD,
                                    .step_tokens = 16,
                                    .host_udp = WIRE_HOST_PORT};
    for (uint32_t i = 0; i < w->ducks; i++)
        h->match[i] =
            (struct net_match){.port = w->duck[i].port, .has_mac = true, .mac = {2, 0, 0, 0, 1, (uint8_t)i}};
    for (uint32_t i = 0; i < w->ports; i++)
        h->config.port[i].address = HOST_ADDRESS + (i << 8) + (uint32_t)host;
    if (net_flock_init(&h->flock, &h->config, NULL)) abort();
    for (uint32_t i = 0; i < w->ports; i++) {
        h->port[i] = (struct world_port){.world = w, .host = host, .port = (int)i};
        h->flock.port[i].io = (struct net_io){&h->port[i], port_buffer, port_send};
    }
    h->flock.lanes = lanes;
    h->flock.block_tokens = max_tokens;
    h->flock.activation = activation;
}

void world_host_end(struct world *w, int host)
{
    struct world_host *h = &w->host[host];
    h->alive = false;
    net_flock_free(&h->flock);
}

/* ---- time ---- */

static void deliver(struct world *w)
{
    while (w->events && w->heap[0].at <= w->time) {
        struct world_event e = heap_pop(w);
        if (e.duck >= 0) {
            struct world_duck *d = &w->duck[e.duck];
            if (d->inbox_count < 64) {
                d->inbox[d->inbox_count++] = e;
                d->next = w->time;
                continue;
            }
        } else if (e.host >= 0 && e.host < WORLD_HOSTS && w->host[e.host].alive) {
            struct net_peer from = {e.peer.address, e.peer.port, {0}};
            memcpy(from.mac, e.peer.mac, 6);
            net_port_input(&w->host[e.host].flock.port[e.port], &from, e.data, e.bytes, w->time);
            w->host[e.host].port[e.port].next = w->time;
        }
        free(e.data);
    }
}

static uint64_t turn(struct world *w)
{
    uint64_t next = UINT64_MAX;
    for (int h = 0; h < WORLD_HOSTS; h++) {
        for (uint32_t p = 0; w->host[h].alive && p < w->ports; p++) {
            struct world_port *port = &w->host[h].port[p];
            if (w->host[h].flock.ports && port->next <= w->time)
                port->next = w->time + net_port_work(&w->host[h].flock.port[p], w->time);
            if (port->next < next) next = port->next;
        }
    }
    for (uint32_t i = 0; i < w->ducks; i++) {
        struct world_duck *d = &w->duck[i];
        uint64_t from = d->next > d->paused_until ? d->next : d->paused_until;
        if (from <= w->time) {
            uint64_t wait = duck_poll(d->duck);
            d->next = wait > 1000 * MS ? w->time + 1000 * MS : w->time + wait;
            from = d->next;
        }
        if (from < next) next = from;
    }
    if (w->events && w->heap[0].at < next) next = w->heap[0].at;
    return next;
}

bool world_run(struct world *w, bool (*until)(struct world *w, int host), int host, uint64_t ns)
{
    uint64_t end = w->time + ns;
    for (;;) {
        if (until && until(w, host)) return true;
        if (w->time >= end) return false;
        deliver(w);
        uint64_t next = turn(w);
        // The engine thread looks every 20 us, like the real one would when it waits.
        if (next > w->time + 20000) next = w->time + 20000 < next && until ? w->time + 20000 : next;
        if (next > w->time) w->time = next < end ? next : end;
        for (uint32_t p = 0; p < w->ports; p++) {
            struct net_flock *f = &w->host[host].flock;
            if (w->host[host].alive && f->published && f->port[p].sent != f->published)
                w->host[host].port[p].next = w->time; // what wake() does
        }
    }
}

/* ---- opening ---- */

static bool all_found(struct world *w, int host)
{
    return net_all_reached(&w->host[host].flock, NET_FOUND, NULL);
}

static bool all_ready(struct world *w, int host)
{
    return atomic_load(&w->host[host].flock.failed) || net_all_reached(&w->host[host].flock, NET_READY, NULL);
}

static bool all_held(struct world *w, int host)
{
    return atomic_load(&w->host[host].flock.failed) || w->host[host].flock.queued_bytes == 0;
}

/* Every matrix of every expert, as host/flock/load.c would list them. */
void world_load(struct world *w, struct net_flock *f)
{
    const struct duck_tensor *t = w->layers->tensor;
    for (uint32_t b = 0; b < w->plan.banks; b++) {
        const struct duck_bank_shape *s = &w->plan.bank[b];
        for (uint32_t e = 0; e < s->routed + s->always; e++) {
            bool always = e >= s->routed;
            const struct duck_tensor *mine = t + 3 * (always ? s->routed : e);
            for (uint32_t which = 0; which < 3; which++) {
                struct net_unit_source source = {.key = 1 + (uint64_t)(mine + which - w->layers->tensor),
                                                 .bank = b,
                                                 .expert = e,
                                                 .column = always ? (e - s->routed) * s->width : 0,
                                                 .tensor = mine + which};
                uint64_t where;
                if (net_load(f, &source, &where, NULL)) return;
            }
        }
        t += 3 * (s->routed + (s->always ? 1 : 0));
    }
}

struct net_session world_session(const struct world *w, int host)
{
    const struct net_flock *f = &w->host[host].flock;
    return (struct net_session){.plan = &w->plan,
                                .lanes = f->lanes,
                                .max_tokens = f->block_tokens,
                                .max_top_k = 4,
                                .element_bytes = w->layers->tensor[0].element_bytes,
                                .activation = f->activation,
                                .result = WIRE_F32};
}

bool world_open(struct world *w, int host)
{
    struct net_flock *f = &w->host[host].flock;
    struct manifest known = f->manifest;
    struct net_session s = world_session(w, host);
    uint8_t nonce[WIRE_NONCE];
    duck_random(&w->duck[0], nonce, sizeof nonce);
    if (!world_run(w, all_found, host, 1000 * MS)) return false;
    if (net_flock_prepare(f, &s, nonce, NULL)) return false;
    f->manifest = known;
    net_set_goal(f, NET_OPEN);
    if (!world_run(w, all_ready, host, 20000 * MS) || atomic_load(&f->failed)) return false;
    net_set_goal(f, NET_RUN);
    world_load(w, f);
    return world_run(w, all_held, host, 60000 * MS) && !atomic_load(&f->failed);
}

/* ---- steps ---- */

void world_step_make(struct world *w, int host, struct world_step *s, uint32_t bank, uint32_t tokens,
                     uint32_t top_k, uint64_t seed)
{
    const struct net_flock *f = &w->host[host].flock;
    uint32_t hidden = w->plan.hidden, slices = w->plan.bank[bank].width / 8;
    size_t bytes, values, n = (size_t)tokens * hidden, pairs = (size_t)tokens * top_k;
    s->bytes =
        layers_step(w->layers, bank, tokens, top_k, f->activation, WIRE_F32, WIRE_PAYLOAD, seed, &bytes);
    struct wire_step_layout at = wire_step_layout(hidden, tokens, top_k, f->activation, WIRE_PAYLOAD);
    s->x = must(malloc(n * sizeof *s->x));
    s->y = must(calloc(n, sizeof *s->y));
    s->ids = must(malloc(pairs * sizeof *s->ids + 1));
    s->weights = must(malloc(pairs * sizeof *s->weights + 1));
    wire_unpack(f->activation, s->bytes + at.scales, tokens, hidden, s->x);
    memcpy(s->ids, s->bytes + at.ids, pairs * sizeof *s->ids);
    memcpy(s->weights, s->bytes + at.weights, pairs * sizeof *s->weights);
    s->step = (struct mlp_step){.layer = bank,
                                .tokens = tokens,
                                .top_k = top_k,
                                .x = s->x,
                                .ids = s->ids,
                                .weights = s->weights,
                                .y = s->y};
    float *partial = layers_expect(w->layers, s->bytes, WIRE_PAYLOAD, &values);
    struct duck_subtree subtree[64];
    struct tree_node node[64];
    uint32_t nodes = duck_core_subtrees(w->layers->core, bank, subtree, 64);
    for (uint32_t i = 0; i < nodes; i++)
        node[i] = (struct tree_node){subtree[i].first, subtree[i].level, partial + i * n};
    s->expected = must(malloc(n * sizeof *s->expected));
    memcpy(s->expected, tree_reduce(node, nodes, slices, n), n * sizeof *s->expected);
    free(partial);
}

bool world_step_is_right(const struct world *w, const struct world_step *s)
{
    return memcmp(s->y, s->expected, (size_t)s->step.tokens * w->plan.hidden * sizeof *s->y) == 0;
}

void world_step_free(struct world_step *s)
{
    free(s->bytes);
    free(s->x);
    free(s->y);
    free(s->ids);
    free(s->weights);
    free(s->expected);
}

/* ---- all of it ---- */

/* Slices dealt in neighbouring runs, a few more to every second duck. */
static void make_plan(struct world *w, const struct duck_shape *shape)
{
    w->plan = (struct plan){
        .hidden = shape->hidden, .banks = shape->banks, .ducks = w->ducks, .format = shape->format};
    w->plan.bank = must(malloc(shape->banks * sizeof *w->plan.bank));
    memcpy(w->plan.bank, shape->bank, shape->banks * sizeof *w->plan.bank);
    w->plan.run = must(calloc((size_t)shape->banks * w->ducks, sizeof *w->plan.run));
    for (uint32_t b = 0; b < shape->banks; b++) {
        uint32_t slices = shape->bank[b].width / 8, at = 0;
        for (uint32_t i = 0; i < w->ducks && at < slices; i++) {
            uint32_t left = slices - at, count = slices / w->ducks + i % 2;
            if (count == 0 || i == w->ducks - 1 || count > left)
                count = i == w->ducks - 1 ? left : count < left ? 1 : left;
            w->plan.run[w->plan.runs++] = (struct plan_run){(i + b) % w->ducks, b, at, count};
            at += count;
        }
    }
}

void world_make(struct world *w, const struct duck_shape *shape, uint32_t ports, uint32_t ducks,
                uint32_t element_bytes, uint64_t seed)
{
    *w = (struct world){.time = 1000000, .seed = seed, .ports = ports, .ducks = ducks};
    w->layers = layers_make(shape, element_bytes, seed);
    make_plan(w, shape);
    for (uint32_t i = 0; i < ducks; i++) duck_make(w, i);
}

void world_free(struct world *w)
{
    for (int h = 0; h < WORLD_HOSTS; h++)
        if (w->host[h].alive) world_host_end(w, h);
    for (uint32_t i = 0; i < w->ducks; i++) {
        for (uint32_t k = 0; k < w->duck[i].inbox_count; k++) free(w->duck[i].inbox[k].data);
        free(w->duck[i].received);
        free(w->duck[i].platform.memory);
    }
    while (w->events) free(heap_pop(w).data);
    free(w->heap);
    plan_free(&w->plan);
    layers_free(w->layers);
}
