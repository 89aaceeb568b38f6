/* world.h: ducks and hosts of a flock in one thread, on a simulated clock and a wire that misbehaves by a
 * seed.
 *
 * The host side is host/flock/net, the ducks run their real protocol code (duck/duck.h). Repeatable, no
 * sockets, no sleeping: thousands of steps with losses take milliseconds. */
#ifndef TESTS_NET_WORLD_H
#define TESTS_NET_WORLD_H

#include "duck/duck.h"
#include "host/flock/net/net.h"
#include "tests/duck/layers.h"
#include "tests/net/capture.h"

enum { WORLD_DUCKS = 8, WORLD_PORTS = 4, WORLD_HOSTS = 2 };

struct wire_faults {
    double lose, twice, late; // of every frame; `late` ones take up to jitter_ns longer
    uint64_t delay_ns, jitter_ns;
    double lose_broadcast; // of every step: not one fragment of it reaches any duck
};

struct world_event {
    uint64_t at, order;
    int duck, host, port; // to the duck, or (-1) to a host's port
    struct peer peer;     // sender
    uint32_t bytes;
    uint8_t *data;
};

struct world;

struct world_duck {
    struct world *world;
    uint32_t index, port;
    struct platform platform;
    struct link link;
    struct duck *duck;
    uint64_t next;         // when it is polled at the latest
    uint64_t paused_until; // UINT64_MAX: dead
    struct world_event inbox[64];
    uint32_t inbox_count;
    uint8_t *received;
};

struct world_port {
    struct world *world;
    int host, port;
    uint8_t room[WIRE_DATAGRAM_MAX];
    uint64_t next;
    uint32_t lost_step; // every fragment of this broadcast is lost
};

struct world_host {
    bool alive;
    struct net_config config;
    struct net_match match[WORLD_DUCKS];
    struct net_flock flock;
    struct world_port port[WORLD_PORTS];
};

struct world {
    uint64_t time, order, seed;
    struct wire_faults faults;
    uint32_t ducks, ports;
    struct world_duck duck[WORLD_DUCKS];
    struct world_host host[WORLD_HOSTS];
    struct world_event *heap;
    size_t events, room;
    uint64_t frames;
    FILE *capture; // of what ducks send; NULL: none

    struct layers *layers; // of all slices
    struct plan plan;
};

extern size_t world_duck_memory;                     // of each duck made from now on
extern const struct fp9_kernels *world_duck_kernels; // likewise; NULL: the best for this CPU

/* Ducks take turns over the ports. `shape` has one run per bank: all of its slices. */
void world_make(struct world *w, const struct duck_shape *shape, uint32_t ports, uint32_t ducks,
                uint32_t element_bytes, uint64_t seed);
void world_free(struct world *w);

/* A daemon starts and dies; the manifest passes from one life to the next if given. */
void world_host_start(struct world *w, int host, uint32_t lanes, uint32_t max_tokens,
                      enum wire_dtype activation);
void world_host_end(struct world *w, int host);

/* Runs until `until` says 1 or `ns` of simulated time have passed; returns whether it did. */
bool world_run(struct world *w, bool (*until)(struct world *w, int host), int host, uint64_t ns);

/* Finds, opens and loads. False: failed, see net_failure(). */
bool world_open(struct world *w, int host);
struct net_session world_session(const struct world *w, int host);
/* Hands every matrix of every expert to another flock that has the world's plan. */
void world_load(struct world *w, struct net_flock *f);

/* A random step of a bank, computed by the flock and compared, bit by bit, with one core that holds
 * everything. */
struct world_step {
    struct mlp_step step;
    uint8_t *bytes;
    float *x, *weights, *y, *expected;
    int32_t *ids;
};
void world_step_make(struct world *w, int host, struct world_step *s, uint32_t bank, uint32_t tokens,
                     uint32_t top_k, uint64_t seed);
bool world_step_is_right(const struct world *w, const struct world_step *s);
void world_step_free(struct world_step *s);

#endif
