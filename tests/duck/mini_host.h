/* mini_host.h: the least host that can drive one duck, for tests: blocking, one step at a time or several.
 * Every wait has a deadline on the wire's own clock (simulated or real). */
#ifndef TESTS_DUCK_MINI_HOST_H
#define TESTS_DUCK_MINI_HOST_H

#include "duck/wire.h"
#include "tests/duck/layers.h"

struct mini_wire {
    void *self;
    void (*send)(void *self, const uint8_t *datagram, uint32_t bytes);
    /* Bytes of a datagram; 0: none within `ns`. */
    uint32_t (*recv)(void *self, uint8_t *datagram, uint64_t ns);
    uint64_t (*now)(void *self);
};

struct mini_host {
    struct mini_wire wire;
    struct siphash_key flock_key, key;
    struct wire_open terms;
    uint32_t sequence; // of requests
    uint32_t hidden;
    uint32_t attempts; // 10 ms each, then there is no answer
    struct wire_hello hello;
    struct wire_opened opened;
    struct wire_refused refused;
    struct wire_header last; // of the frame mini_receive() took
    uint64_t step_resends, put_resends, result_resends;
};

#define MINI_DEADLINE_NS 20000000000u

struct mini_host mini_host_make(struct mini_wire wire, struct siphash_key flock_key, uint32_t session);
/* One frame, or a request. */
void mini_send(struct mini_host *h, struct wire_header header, const void *payload, uint32_t bytes);
/* A frame with a good tag within `ns`; payload of up to WIRE_PAYLOAD_JUMBO. 0: none. */
int mini_receive(struct mini_host *h, uint8_t *payload, uint64_t ns);
/* Sends and repeats a request until an answer of type `reply` or `other` (0: none) comes. 0: never. */
int mini_ask(struct mini_host *h, enum wire_type type, const void *payload, uint32_t bytes,
             enum wire_type reply, enum wire_type other, uint8_t *answer);
int mini_discover(struct mini_host *h);
/* 1: opened, 0: refused, -1: no answer. */
int mini_open(struct mini_host *h);
/* Puts an object; returns the last enum wire_put_status, -1: no progress. */
int mini_put(struct mini_host *h, enum wire_object kind, uint32_t object, const uint8_t *bytes, size_t count,
             struct wire_put_ack *last);
/* Plan and all units of `l`. 1: all held. */
int mini_load(struct mini_host *h, const struct layers *l);
void mini_send_step(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes);
/* Waits for the results of a step that has been sent. 1: all there in `out`. */
int mini_collect(struct mini_host *h, uint32_t number, const uint8_t *step, size_t bytes, uint32_t subtrees,
                 float *out, struct wire_done *done);

#endif
