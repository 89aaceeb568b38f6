/* plan_part.c: a plan as it is given on: whole, or one duck's part of it. Whatever else a plan says goes
 * along. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/flock/plan.h"

int plan_copy(struct plan *out, const struct plan *p, struct error *err)
{
    *out = *p;
    out->bank = malloc(p->banks * sizeof *out->bank);
    out->run = malloc(p->runs * sizeof *out->run + 1);
    if (!out->bank || !out->run) {
        plan_free(out);
        return error_set(err, -ENOMEM, "no memory for a plan of %u ducks", p->ducks);
    }
    memcpy(out->bank, p->bank, p->banks * sizeof *out->bank);
    memcpy(out->run, p->run, p->runs * sizeof *out->run);
    return 0;
}

int plan_part(struct plan *out, const struct plan *p, uint32_t duck, struct error *err)
{
    int rc = plan_copy(out, p, err);
    if (rc != 0) return rc;
    out->ducks = 1;
    out->runs = 0;
    for (uint32_t i = 0; i < p->runs; i++) {
        if (p->run[i].duck != duck) continue;
        out->run[out->runs] = p->run[i];
        out->run[out->runs++].duck = 0;
    }
    return 0;
}

struct duck_shape plan_shape(const struct plan *p, uint32_t duck, struct duck_run *run)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->runs; i++) {
        const struct plan_run *r = &p->run[i];
        if (r->duck == duck)
            run[n++] = (struct duck_run){.bank = r->bank, .first = r->first, .count = r->count};
    }
    return (struct duck_shape){
        .hidden = p->hidden, .banks = p->banks, .bank = p->bank, .runs = n, .run = run, .format = p->format};
}
