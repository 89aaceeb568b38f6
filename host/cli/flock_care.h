/* flock_care.h: what `duckd flock` does; one function per verb that is more than a few lines. */
#ifndef DUCKD_HOST_CLI_FLOCK_CARE_H
#define DUCKD_HOST_CLI_FLOCK_CARE_H

#include "host/cli/commands.h"
#include "host/flock/net/status.h"

/* `wanted`: per duck of the specification; NULL: all. */
int flock_status(const struct options *o, const struct flock_spec *spec, const bool *wanted,
                 struct error *err);
/* Moves those that were asked for to the front; returns how many there are. */
uint32_t flock_keep_wanted(struct net_status *status, uint32_t count);

#endif
