/* nursery.h: ducks that were lost, on their way back: a thread of its own looks for them and loads their
 * weights, while the flock answers without them.
 *
 * The engine thread says which ducks are lost and asks, between steps, whether one is whole again; taking it
 * into the flock is the engine thread's business. */
#ifndef DUCKD_HOST_FLOCK_NURSERY_H
#define DUCKD_HOST_FLOCK_NURSERY_H

#include "host/flock/transport.h"
#include "host/model/model.h"

struct nursery;

/* `home`: the plan that gives every duck its share; all of it outlives the nursery. */
struct nursery_options {
    struct transport *host;
    const struct plan *home;
    const struct model *model;
    struct transport_options transport; // the plan and the pool aside
    const struct spec_duck *duck;       // names
};

int nursery_open(struct nursery **out, const struct nursery_options *o, struct error *err);
void nursery_close(struct nursery *n); // NULL is fine; ends what is under way

void nursery_add(struct nursery *n, uint32_t duck);
/* A duck that holds all it needs for `home`, -1: none. It is the caller's then. */
int nursery_take(struct nursery *n);

#endif
