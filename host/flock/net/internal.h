/* internal.h: shared by the files of host/flock/net only. */
#ifndef DUCKD_HOST_FLOCK_NET_INTERNAL_H
#define DUCKD_HOST_FLOCK_NET_INTERNAL_H

#include "host/flock/net/net.h"

#define NET_MS 1000000ull
#define NET_US 1000ull

/* Every counter has one writer, so it needs no read-modify-write. */
static inline void net__count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static inline void net__sooner(uint64_t *deadline, uint64_t at)
{
    if (at < *deadline) *deadline = at;
}

/* ---- port.c ---- */

/* Room for a datagram's payload; NULL: none now. */
uint8_t *net__room(struct net_port *p);
/* Sends what was written into the room. `duck` NULL: to all of the port. Header's source, length and session
 * are filled in; `inside`: session and its key, else session 0 and the flock's. */
void net__send(struct net_port *p, struct net_duck *duck, struct wire_header h, size_t length, bool inside);
/* room, copy, send. False: no room. */
bool net__message(struct net_port *p, struct net_duck *duck, enum wire_type type, uint32_t sequence,
                  const void *payload, size_t length, bool inside);

/* ---- session.c ---- */

void net__hello(struct net_port *p, const struct net_peer *from, const struct wire_hello *h);
/* places.c */
struct net_duck *net__place_for(const struct net_port *p, const struct net_peer *from,
                                const struct wire_hello *h); // NULL: there is none for it
void net__places_read(struct net_flock *f);
/* care.c */
void net__care_answer(struct net_port *p, const struct net_peer *from, const struct wire_header *h,
                      const uint8_t *payload);
void net__care_work(struct net_duck *d, uint64_t now, uint64_t *deadline);
void net__opened(struct net_duck *d, const struct wire_opened *o, uint64_t now);
void net__refused(struct net_port *p, const struct net_peer *from, const struct wire_refused *r,
                  uint64_t now);
void net__unit_hashes(struct net_duck *d, const uint8_t *payload, size_t length, uint64_t now);
void net__kat(struct net_duck *d, const struct wire_kat *k, uint64_t now);
void net__fault(struct net_duck *d, const struct wire_fault *f);
void net__session_work(struct net_port *p, int goal, uint64_t now, uint64_t *deadline);

/* ---- put.c ---- */

/* An object on its way to a duck. */
struct net_put {
    struct net_put *next; // in the duck's queue
    uint32_t kind, object, total;
    uint8_t *bytes;                // owned
    uint64_t hash, key;            // of the object; of the manifest (units)
    const char *file, *name;       // of a unit's tensor, for messages; NULL: unknown
    uint32_t chunks, base, unsent; // chunks before `base` are there; `unsent`: first never sent
    uint32_t in_flight;
    uint64_t *sent_ns; // (chunks) 0: to be sent; NET_CHUNK_THERE
    bool received;     // the duck has it all and packs it
    bool no_room;      // the duck could not take it; not before timer_ns
    uint64_t timer_ns;
    uint32_t tries, restarts;
};
#define NET_CHUNK_THERE UINT64_MAX

/* Queues a copy of *what: kind, object, total, bytes (taken over, also when it fails), hash and what belongs
 * to units. Any thread. */
int net__put(struct net_duck *d, const struct net_put *what);
void net__put_ack(struct net_duck *d, const struct wire_put_ack *a, uint64_t now);
void net__put_work(struct net_duck *d, uint64_t now, uint64_t *deadline);
void net__put_free(struct net_duck *d);

/* ---- steps.c ---- */

void net__step_ack(struct net_duck *d, uint32_t step, const struct wire_step_ack *a, uint64_t now);
void net__step_resend(struct net_duck *d, uint32_t step, const uint8_t *payload, size_t length);
void net__result(struct net_duck *d, const struct wire_header *h, const uint8_t *payload, uint64_t now);
void net__done(struct net_duck *d, uint32_t step, const struct wire_done *done, uint64_t now);
void net__steps_work(struct net_port *p, uint64_t now, uint64_t *deadline);

#endif
