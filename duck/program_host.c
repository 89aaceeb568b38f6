/* program_host.c: a program that arrived goes to the platform. */
#include "duck/duck_internal.h"

void duck__program_arrived(struct duck *d, struct wire_put_ack *ack)
{
    struct receiver *r = &d->store.program;
    uint64_t hash = wire_object_hash(r->data, r->total);
    ack->status = WIRE_PUT_REFUSED;
    ack->value = hash;
    ack->reason = WIRE_PUT_BAD_HASH;
    if (hash != r->hash) return;
    duck__drain(d); // nobody is inside the old one
    d->store.program_hash = 0;
    ack->reason = WIRE_PUT_BAD_PROGRAM;
    ack->value = (uint64_t)d->p->program->load(d->p->self, r->data, r->total);
    if (ack->value != PROGRAM_OK) return;
    d->store.program_hash = hash;
    ack->status = WIRE_PUT_HELD;
    ack->reason = 0;
    duck__log(d, "program loaded, bytes", r->total);
}
