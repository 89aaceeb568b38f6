/* weigh.c: what ducks say of their memory's bandwidth becomes their share of the work. */
#include <stdlib.h>
#include <string.h>

#include "host/flock/net/internal.h"
#include "host/util/log.h"

#define ALIKE 0.15 // of the median: two starts of one machine differ by less

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

void net_weigh_ducks(const struct net_flock *f, struct spec_duck *duck)
{
    double sorted[FLOCK_MAX_DUCKS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->ducks; i++) {
        double speed = (double)f->duck[i].hello.read_bytes_per_second;
        if (duck[i].weighed || (speed <= 0 && !duck[i].absent)) return;
        if (!duck[i].absent) sorted[n++] = speed;
    }
    qsort(sorted, n, sizeof *sorted, ascending);
    double median = sorted[n / 2];
    for (uint32_t i = 0; i < f->ducks; i++) {
        if (duck[i].absent) continue; // taken for an ordinary one
        double w = (double)f->duck[i].hello.read_bytes_per_second / median;
        duck[i].plan.weight = w > 1 - ALIKE && w < 1 + ALIKE ? 1 : w;
        if (duck[i].plan.weight != 1)
            log_detail("%s: weight %.2f by its memory, %.1f GB/s (median %.1f)", net_duck_name(&f->duck[i]).s,
                       w, w * median * 1e-9, median * 1e-9);
    }
}
