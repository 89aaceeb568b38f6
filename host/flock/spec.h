/* spec.h: --flock's argument: "local", "local:N" or a JSON file (docs/flock.md), as a list of ducks. */
#ifndef DUCKD_HOST_FLOCK_SPEC_H
#define DUCKD_HOST_FLOCK_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/flock/net/config.h"
#include "host/flock/plan.h"
#include "host/util/error.h"

#define FLOCK_MAX_DUCKS 256u

struct spec_duck {
    char name[48];
    struct plan_duck plan; // weight and memory
    bool weighed;          // the weight was given
    bool absent;           // has not answered; weight and memory are guesses (the transport's find() says so)
};

struct flock_spec {
    const struct transport_ops *transport;
    uint32_t ducks;
    struct spec_duck *duck; // (ducks)
    struct net_config *net; // network transports only
};

int flock_spec_read(struct flock_spec *out, const char *text, struct error *err);
/* The parser of the JSON form; `name` is used in messages only. */
int flock_spec_parse(struct flock_spec *out, const char *json, size_t length, const char *name,
                     struct error *err);
void flock_spec_free(struct flock_spec *s);
/* Whether the text itself is wrong, which takes no look at files or the machine: a path never is. */
int flock_spec_check_text(const char *text, struct error *err);

#endif
