/* evaluate.c: a teacher-forced pass: known tokens in, logits of every position out. */
#include <errno.h>
#include <string.h>

#include "host/engine/engine_internal.h"

/* Logits of a chunk are held at once; a large vocabulary gets smaller chunks. */
#define EVALUATE_LOGITS_BYTES (64u << 20)

struct outcome {
    int rc;
    struct error *err;
};

static void job_done(void *ctx, uint32_t lane, int rc, const struct error *err)
{
    (void)lane;
    struct outcome *o = ctx;
    o->rc = rc;
    if (rc && o->err) *o->err = *err;
}

static int run_job(struct engine *e, uint32_t lane, const struct backend_job *job, struct error *err)
{
    struct outcome o = {0, err};
    int rc = lanes_start(e->lanes, lane, job, LANE_NONE, err);
    if (rc) return rc;
    e->in_step = true; // callbacks of this pass may not start another
    lanes_run(e->lanes, job_done, &o);
    e->in_step = false;
    lanes_take_times(e->lanes, lane);
    return o.rc;
}

/* Rows of a chunk at `position` that lie before `from`. */
static uint32_t rows_before(uint32_t position, uint32_t rows, uint32_t from)
{
    if (from <= position) return 0;
    return from - position < rows ? from - position : rows;
}

static int run_chunk(struct engine *e, uint32_t lane, struct sequence *s, uint32_t rows, uint32_t from,
                     const struct engine_rows *out, struct error *err)
{
    struct backend *b = e->backend;
    uint32_t first = rows_before(s->main_done, rows, from);
    struct backend_job job = sequence_main_job(s, rows, first);
    int rc = run_job(e, lane, &job, err);
    if (rc) return rc;
    for (uint32_t i = first; i < rows; i++)
        if (out->row) out->row(out->ctx, s->main_done + i, b->ops->logits(b, lane, i));
    s->main_done += rows;
    uint32_t mtp_rows = sequence_mtp_rows(s);
    if (!out->mtp_row || mtp_rows == 0) return 0;

    first = rows_before(s->mtp_done, mtp_rows, from);
    job = sequence_mtp_job(s, mtp_rows, first);
    rc = run_job(e, lane, &job, err);
    if (rc) return rc;
    for (uint32_t i = first; i < mtp_rows; i++)
        out->mtp_row(out->ctx, s->mtp_done + i, b->ops->logits(b, lane, i));
    s->mtp_done += mtp_rows;
    return 0;
}

static int check(const struct engine *e, const int32_t *ids, uint32_t count, const struct engine_rows *rows,
                 struct error *err)
{
    const struct model_config *c = &e->model->config;
    if (e->in_step) return error_set(err, -EBUSY, "a teacher-forced pass cannot start inside a callback");
    if (count == 0) return error_set(err, -EINVAL, "no tokens to evaluate");
    if (count > c->max_positions)
        return error_set(err, -E2BIG, "%u tokens to evaluate; the model has %u positions", count,
                         c->max_positions);
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= c->vocab_size)
            return error_set(err, -EINVAL, "token %u is %d; the vocabulary has %u", i, ids[i], c->vocab_size);
    if (rows->mtp_row && !e->set.mtp)
        return error_set(err, -EINVAL, "MTP logits are wanted, but the MTP layer is not loaded");
    return 0;
}

int engine_evaluate(struct engine *e, const int32_t *ids, uint32_t count, uint32_t from,
                    const struct engine_rows *rows, struct error *err)
{
    int rc = check(e, ids, count, rows, err);
    if (rc) return rc;
    uint32_t lane = 0; // between rounds a generation's lane is idle and its logits are used up
    while (lane < e->set.lanes && !lanes_idle(e->lanes, lane)) lane++;
    if (lane == e->set.lanes)
        return error_set(err, -EBUSY, "no lane: all %u still wait for answers from the flock", e->set.lanes);

    uint32_t chunk = EVALUATE_LOGITS_BYTES / (e->model->config.vocab_size * (uint32_t)sizeof(float));
    if (chunk > e->set.prefill_chunk) chunk = e->set.prefill_chunk;
    if (chunk == 0) chunk = 1;
    struct sequence s;
    rc = sequence_open(&s, e->backend, &(struct sequence_start){ids, count, count, count}, err);
    while (!rc && s.main_done < count) {
        uint32_t left = count - s.main_done;
        rc = run_chunk(e, lane, &s, left < chunk ? left : chunk, from, rows, err);
        if (!rc && rows->progress) rows->progress(rows->ctx, s.main_done, count);
    }
    sequence_close(&s);
    return rc;
}
