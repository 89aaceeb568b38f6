/* inside.h: a duck in the host's own memory, beside those on the network: the whole duck (duck/duck.h) and
 * its port's worker in one thread of this process, its further cores in others. Frames between the two are
 * copied through a ring that only that thread touches; protocol, session and counters are those of any duck.
 */
#ifndef DUCKD_HOST_FLOCK_NET_INSIDE_H
#define DUCKD_HOST_FLOCK_NET_INSIDE_H

#include "host/flock/net/net.h"

struct inside;

/* After the workers have started: the flock's last port, which has no wire. */
int inside_start(struct inside **out, struct net_flock *f, struct error *err);
/* Before the workers stop. NULL is fine. */
void inside_stop(struct inside *in);

#endif
