/* mtp.c: the draft and the start of its verification. What follows from the samples is generation.c's. */
#include "host/engine/mtp.h"

#include <string.h>

enum mtp_verify mtp_verify_policy(const char *backend_name, bool local_flock)
{
    return local_flock && strcmp(backend_name, "cpu") == 0 ? MTP_ONE_JOB : MTP_TWO_LANES;
}

int mtp_start_verify(struct lanes *l, enum mtp_verify how, struct sequence *s, int32_t draft,
                     const uint32_t lane[2], uint32_t *jobs, struct error *err)
{
    s->ids[s->count] = draft;
    *jobs = 0;
    struct backend_job job = sequence_main_job(s, how == MTP_ONE_JOB ? 2 : 1, 0);
    int rc = lanes_start(l, lane[0], &job, LANE_NONE, err);
    if (rc) return rc;
    *jobs = 1;
    if (how == MTP_ONE_JOB) return 0;
    job.position++;
    job.ids++;
    rc = lanes_start(l, lane[1], &job, lane[0], err);
    if (!rc) *jobs = 2;
    return rc;
}

struct mtp_place mtp_row(enum mtp_verify how, const uint32_t lane[2], uint32_t i)
{
    return how == MTP_ONE_JOB ? (struct mtp_place){lane[0], i} : (struct mtp_place){lane[i], 0};
}
