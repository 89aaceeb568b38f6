/* sequence.c: bookkeeping only; nothing here computes. */
#include "host/engine/sequence.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int set_ids(struct sequence *s, const struct sequence_start *start, struct error *err)
{
    *s = (struct sequence){.count = start->count, .room = start->room};
    s->ids = malloc((size_t)start->room * sizeof *s->ids);
    if (!s->ids) return error_set(err, -ENOMEM, "no memory for %u token ids", start->room);
    memcpy(s->ids, start->ids, (size_t)start->count * sizeof *s->ids);
    return 0;
}

static int opened(struct sequence *s, struct backend *b, int rc)
{
    if (rc)
        sequence_close(s);
    else
        s->backend = b;
    return rc;
}

int sequence_open(struct sequence *s, struct backend *b, const struct sequence_start *start,
                  struct error *err)
{
    int rc = set_ids(s, start, err);
    if (!rc) rc = b->ops->seq_open(b, &s->handle, start->positions, err);
    return opened(s, b, rc);
}

int sequence_fork(struct sequence *s, const struct sequence *from, uint32_t n,
                  const struct sequence_start *start, struct error *err)
{
    struct backend *b = from->backend;
    int rc = set_ids(s, start, err);
    if (!rc) rc = b->ops->seq_fork(b, &s->handle, from->handle, n, start->positions, err);
    return opened(s, b, rc);
}

void sequence_close(struct sequence *s)
{
    if (s->backend) s->backend->ops->seq_close(s->backend, s->handle);
    free(s->ids);
    *s = (struct sequence){0};
}

void sequence_push(struct sequence *s, int32_t id)
{
    s->ids[s->count++] = id;
}

static uint32_t less(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

struct backend_job sequence_main_job(const struct sequence *s, uint32_t rows, uint32_t logits_from)
{
    return (struct backend_job){.kind = BACKEND_MAIN,
                                .seq = s->handle,
                                .position = s->main_done,
                                .tokens = rows,
                                .ids = s->ids + s->main_done,
                                .logits_from = logits_from,
                                .best_only = s->best_only,
                                .candidates = s->candidates,
                                .temperature = s->temperature,
                                .hidden_from = less(s->hidden_from, s->main_done)};
}

void sequence_mtp_skip(struct sequence *s, uint32_t window)
{
    uint32_t to = less(s->main_done, window);
    if (to < s->hidden_from) to = s->hidden_from;
    if (to <= s->mtp_done) return;
    s->mtp_from = s->mtp_done = (to + BACKEND_KEY_UNIT - 1) / BACKEND_KEY_UNIT * BACKEND_KEY_UNIT;
}

uint32_t sequence_mtp_rows(const struct sequence *s)
{
    uint32_t end = s->main_done < s->count ? s->main_done : s->count - 1;
    return less(end, s->mtp_done);
}

struct backend_job sequence_mtp_job(const struct sequence *s, uint32_t rows, uint32_t logits_from)
{
    return (struct backend_job){.kind = BACKEND_MTP,
                                .seq = s->handle,
                                .position = s->mtp_done,
                                .tokens = rows,
                                .ids = s->ids + s->mtp_done + 1,
                                .logits_from = logits_from,
                                .first_key = s->mtp_from};
}

struct backend_job sequence_job_behind(struct backend_job job, uint32_t skip)
{
    job.position += skip;
    job.ids += skip;
    job.tokens -= skip;
    job.logits_from -= skip;
    job.hidden_from = less(job.hidden_from, skip);
    return job;
}
