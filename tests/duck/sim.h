/* sim.h: a duck on a simulated machine: a clock that only moves when asked, a wire that loses, duplicates and
 * reorders frames by a seed. One thread; repeatable. */
#ifndef TESTS_DUCK_SIM_H
#define TESTS_DUCK_SIM_H

#include "duck/duck.h"
#include "tests/duck/mini_host.h"

enum { SIM_FRAMES = 2048 };

struct sim_frame {
    uint32_t bytes;
    struct peer peer;
    uint8_t data[WIRE_DATAGRAM_MAX];
};

struct sim_queue {
    struct sim_frame *frame; // (SIM_FRAMES)
    uint32_t first, count;
};

struct sim {
    struct platform platform;
    struct link link;
    struct link_state state;
    struct duck *duck;
    uint64_t time;
    struct sim_queue to_duck, to_host;
    uint8_t *received; // frames handed to the duck by recv()
    uint64_t seed;
    double lose, twice, reorder; // of every frame, both ways
    uint32_t send_room, taken;   // frames the link takes between two recv(); UINT32_MAX: all
    int power;                   // 1 + argument of the last power()
    uint64_t randoms;
    char log[8192];
};

struct sim *sim_make(uint64_t memory, uint64_t seed);
void sim_free(struct sim *s);
struct mini_wire sim_wire(struct sim *s);
/* The duck runs until it has nothing to do, or for `ns` of simulated time. */
void sim_run(struct sim *s, uint64_t ns);
struct wire_stats sim_stats(struct mini_host *h);

#endif
