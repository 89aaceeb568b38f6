/* metrics_flock.h: the ducks' part of /metrics: a family per figure, a line per duck. */
#ifndef DUCKD_HOST_HTTP_METRICS_FLOCK_H
#define DUCKD_HOST_HTTP_METRICS_FLOCK_H

#include "host/http/worker.h"
#include "host/text/buffer.h"

void metrics_flock(struct buffer *b, const struct worker_figures *f);

#endif
