/* mtp.h: one draft per round, and how it is verified.
 *
 * The draft for token n is the MTP layer's largest logit, whatever the sampler's parameters say. It is
 * verified by computing rows n - 1 and n of the main model in one round and sampling each as if there were no
 * draft: it is accepted iff the sample of the first row equals it. So the tokens are those of decoding
 * without MTP, for every temperature. */
#ifndef DUCKD_HOST_ENGINE_MTP_H
#define DUCKD_HOST_ENGINE_MTP_H

#include <stdbool.h>
#include <stdint.h>

#include "host/engine/lanes.h"
#include "host/engine/sequence.h"

/* The two rows are one job of two rows (weights are read once for both) or two lanes of one row each (one is
 * on the backend while the other is on the flock). Same bits either way. */
enum mtp_verify { MTP_ONE_JOB, MTP_TWO_LANES };

/* Backend and ducks on the same cores gain nothing from overlap: one job. Otherwise two lanes. */
enum mtp_verify mtp_verify_policy(const char *backend_name, bool local_flock);

/* Starts the two rows; the draft is put at ids[count]. *jobs: how many were started, also on failure (they
 * still have to finish). */
int mtp_start_verify(struct lanes *l, enum mtp_verify how, struct sequence *s, int32_t draft,
                     const uint32_t lane[2], uint32_t *jobs, struct error *err);

/* Where the logits of verify row i are. */
struct mtp_place {
    uint32_t lane, row;
};
struct mtp_place mtp_row(enum mtp_verify how, const uint32_t lane[2], uint32_t i);

#endif
