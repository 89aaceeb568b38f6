/* fake.c: the hash model, once as a backend and a flock, once directly. */
#include "fake.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/backend/largest.h"

/* ---- the model ---- */

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

static uint32_t attend(const uint32_t *kv, uint32_t first, uint32_t position)
{
    uint32_t a = 1;
    for (uint32_t p = first; p <= position; p++) {
        assert(kv[p] != FAKE_NOTHING);
        a = mix(a, kv[p]);
    }
    return a;
}

static float expert(uint32_t layer, float x)
{
    return (float)(mix(layer + 77, (uint32_t)x) & 0xffff);
}

static uint32_t after_expert(uint32_t attention, float y)
{
    return mix(attention, (uint32_t)y + 5);
}

/* Noise from the whole context, and a preference that depends on the last token alone, so that drafts are
 * often right and often wrong. */
static void head(uint32_t h, int32_t last, float *logits)
{
    for (uint32_t v = 0; v < FAKE_VOCAB; v++) logits[v] = (float)(mix(h, v) >> 8) * 0x1p-24f * 4.0f;
    logits[mix((uint32_t)last, 9) % FAKE_VOCAB] += 3.0f;
}

void fake_reference(const int32_t *ids, uint32_t count, float *logits, struct fake_kv *kv)
{
    struct fake_kv own;
    assert(count > 0);
    if (!kv) kv = &own;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t h = mix(3, (uint32_t)ids[p]);
        for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
            kv->main[l][p] = h;
            uint32_t a = attend(kv->main[l], 0, p);
            h = after_expert(a, expert(l, (float)(a & 0xffff)));
        }
        kv->hidden[p] = h;
        if (p + 1 < count) kv->mtp[p] = mix(h, (uint32_t)ids[p + 1]);
    }
    head(kv->hidden[count - 1], ids[count - 1], logits);
}

void fake_mtp_reference(const int32_t *ids, uint32_t count, float *logits)
{
    struct fake_kv kv;
    fake_reference(ids, count, logits, &kv);
    uint32_t a = attend(kv.mtp, 0, count - 2);
    head(after_expert(a, expert(FAKE_LAYERS, (float)(a & 0xffff))), ids[count - 1], logits);
}

/* ---- the backend ---- */

static struct fake *fake_of(struct backend *b)
{
    return (struct fake *)(void *)b;
}

static uint32_t some_delay(struct fake *f)
{
    f->random = mix(f->random, 1);
    return f->slow ? f->random % (f->slow + 1) : 0;
}

static bool is_sick(const struct fake *f, const struct fake_lane *a, enum fake_sickness kind)
{
    return f->sick == kind && a->job.seq == f->sick_seq && f->sick_position >= a->job.position &&
           f->sick_position < a->job.position + a->job.tokens;
}

static int seq_open(struct backend *b, backend_seq *out, uint32_t capacity, struct error *err)
{
    struct fake *f = fake_of(b);
    uint32_t i = 0;
    while (i < FAKE_SEQS && f->seq[i].open) i++;
    if (f->most_seqs && i >= f->most_seqs) return error_set(err, -EBUSY, "all %u sequences are in use", i);
    assert(i < FAKE_SEQS && capacity <= FAKE_POSITIONS);
    if (f->sick == SICK_OPEN && i == f->sick_seq) return error_set(err, -ENOMEM, "no memory for the cache");
    memset(&f->seq[i].kv, (int)(FAKE_NOTHING & 0xff), sizeof f->seq[i].kv);
    f->seq[i].open = true;
    f->seq[i].capacity = capacity;
    f->seq[i].main_end = f->seq[i].mtp_end = 0;
    *out = i;
    return 0;
}

static int seq_fork(struct backend *b, backend_seq *out, backend_seq from, uint32_t positions,
                    uint32_t capacity, struct error *err)
{
    struct fake *f = fake_of(b);
    const struct fake_seq *a = &f->seq[from];
    assert(from < FAKE_SEQS && a->open && positions > 0 && positions <= a->main_end && positions <= capacity);
    int rc = seq_open(b, out, capacity, err);
    if (rc) return rc;
    struct fake_seq *z = &f->seq[*out]; // without hidden states: nobody may rely on them
    for (uint32_t l = 0; l < FAKE_LAYERS; l++)
        memcpy(z->kv.main[l], a->kv.main[l], positions * sizeof(uint32_t));
    memcpy(z->kv.mtp, a->kv.mtp, positions * sizeof(uint32_t));
    z->main_end = positions;
    z->mtp_end = positions < a->mtp_end ? positions : a->mtp_end;
    return 0;
}

static uint64_t kv_bytes(const struct backend *b, uint32_t positions)
{
    (void)b;
    return (FAKE_LAYERS + 1) * (uint64_t)positions * sizeof(uint32_t);
}

static int kv_save(struct backend *b, backend_seq seq, uint32_t positions, void *image, struct error *err)
{
    const struct fake_seq *a = &fake_of(b)->seq[seq];
    size_t bytes = positions * sizeof(uint32_t);
    (void)err;
    assert(a->open && positions <= a->main_end);
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) memcpy((char *)image + l * bytes, a->kv.main[l], bytes);
    memcpy((char *)image + FAKE_LAYERS * bytes, a->kv.mtp, bytes);
    return 0;
}

static int kv_load(struct backend *b, backend_seq seq, uint32_t positions, const void *image,
                   struct error *err)
{
    struct fake_seq *z = &fake_of(b)->seq[seq];
    size_t bytes = positions * sizeof(uint32_t);
    (void)err;
    assert(z->open && positions <= z->capacity && z->main_end == 0);
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) memcpy(z->kv.main[l], (const char *)image + l * bytes, bytes);
    memcpy(z->kv.mtp, (const char *)image + FAKE_LAYERS * bytes, bytes);
    z->main_end = z->mtp_end = positions;
    return 0;
}

static void seq_close(struct backend *b, backend_seq seq)
{
    struct fake *f = fake_of(b);
    assert(f->seq[seq].open);
    for (uint32_t i = 0; i < FAKE_LANES; i++)
        assert(f->lane[i].job.seq != seq || f->lane[i].state == FAKE_FREE || f->lane[i].state == FAKE_READY ||
               f->lane[i].at_flock);
    f->seq[seq].open = false;
    f->last_closed = f->seq[seq];
}

static int start(struct backend *b, uint32_t lane, const struct backend_job *job, struct error *err)
{
    struct fake *f = fake_of(b);
    struct fake_lane *a = &f->lane[lane];
    struct fake_seq *s = &f->seq[job->seq];
    assert(a->state == FAKE_FREE || a->state == FAKE_READY);
    assert(s->open && job->tokens > 0 && job->tokens <= f->max_tokens && job->logits_from <= job->tokens);
    assert(job->position + job->tokens <= s->capacity);
    uint32_t ahead = f->two_lanes ? f->max_tokens : 0; // of what is there: the job before is under way
    bool begins = job->kind == BACKEND_MTP && job->first_key == job->position;
    assert(begins || job->position <= (job->kind == BACKEND_MAIN ? s->main_end : s->mtp_end) + ahead);
    if (job->kind == BACKEND_MTP) {
        assert(job->first_key % BACKEND_KEY_UNIT == 0 && job->first_key <= job->position);
        for (uint32_t i = 0; i < job->tokens; i++) assert(s->kv.hidden[job->position + i] != FAKE_NOTHING);
        assert(job->position + job->tokens <= s->main_end);
        assert(job->position + f->max_tokens + ahead >=
               s->main_end); // only recent rows' hidden states are kept
    }
    a->job = *job;
    if (is_sick(f, a, SICK_START)) {
        a->state = FAKE_FREE;
        return error_set(err, -EIO, "start is sick");
    }
    memcpy(a->ids, job->ids, job->tokens * sizeof *job->ids);
    a->job.ids = a->ids;
    a->layer = job->kind == BACKEND_MAIN ? 0 : FAKE_LAYERS;
    for (uint32_t i = 0; i < job->tokens; i++)
        a->h[i] = job->kind == BACKEND_MAIN ? mix(3, (uint32_t)a->ids[i])
                                            : mix(s->kv.hidden[job->position + i], (uint32_t)a->ids[i]);
    a->state = FAKE_COMPUTE;
    a->busy = some_delay(f);
    f->start[f->starts++ % 4096] = (struct fake_start){job->kind, job->seq, lane, job->position, job->tokens};
    uint32_t at_once = 0;
    for (uint32_t i = 0; i < FAKE_LANES; i++)
        at_once += f->lane[i].state == FAKE_COMPUTE || f->lane[i].state == FAKE_PUBLISHED;
    if (at_once > f->most_at_once) f->most_at_once = at_once;
    return 0;
}

static void finish_job(struct fake *f, struct fake_lane *a)
{
    struct fake_seq *s = &f->seq[a->job.seq];
    uint32_t end = a->job.position + a->job.tokens;
    for (uint32_t i = 0; i < a->job.tokens; i++) {
        if (a->job.kind == BACKEND_MAIN)
            s->kv.hidden[a->job.position + i] = i < a->job.hidden_from ? FAKE_NOTHING : a->h[i];
        if (i < a->job.logits_from) continue;
        head(a->h[i], a->ids[i], a->logits[i]);
        if (is_sick(f, a, SICK_NAN) && f->sick_position == a->job.position + i) a->logits[i][7] = NAN;
    }
    if (a->job.kind == BACKEND_MAIN)
        s->main_end = end;
    else
        s->mtp_end = end;
    a->state = FAKE_READY;
}

static enum backend_event poll(struct backend *b, uint32_t lane, struct mlp_step *step, struct error *err)
{
    struct fake *f = fake_of(b);
    struct fake_lane *a = &f->lane[lane];
    assert(a->state == FAKE_COMPUTE);
    if (f->never_publishes) return BACKEND_BUSY;
    if (a->busy > 0) {
        a->busy--;
        return BACKEND_BUSY;
    }
    if (is_sick(f, a, SICK_POLL)) {
        error_set(err, -EIO, "poll is sick");
        return BACKEND_FAILED;
    }
    bool mtp = a->job.kind == BACKEND_MTP;
    if (a->layer == (mtp ? FAKE_LAYERS + 1 : FAKE_LAYERS)) {
        finish_job(f, a);
        return BACKEND_DONE;
    }
    uint32_t *kv = mtp ? f->seq[a->job.seq].kv.mtp : f->seq[a->job.seq].kv.main[a->layer];
    for (uint32_t i = 0; i < a->job.tokens; i++) {
        kv[a->job.position + i] = a->h[i];
        a->h[i] = attend(kv, mtp ? a->job.first_key : 0, a->job.position + i);
        a->x[2 * (size_t)i] = (float)(a->h[i] & 0xffff);
    }
    *step = (struct mlp_step){.layer = a->layer, .tokens = a->job.tokens, .x = a->x, .y = a->y};
    a->state = FAKE_PUBLISHED;
    return BACKEND_MLP;
}

static void resume(struct backend *b, uint32_t lane)
{
    struct fake *f = fake_of(b);
    struct fake_lane *a = &f->lane[lane];
    assert(a->state == FAKE_PUBLISHED && !a->at_flock);
    for (uint32_t i = 0; i < a->job.tokens; i++) a->h[i] = after_expert(a->h[i], a->y[2 * (size_t)i]);
    a->layer++;
    a->busy = some_delay(f);
    a->state = FAKE_COMPUTE;
}

static const float *logits(struct backend *b, uint32_t lane, uint32_t row)
{
    struct fake_lane *a = &fake_of(b)->lane[lane];
    assert(a->state == FAKE_READY && row >= a->job.logits_from && row < a->job.tokens && !a->job.best_only);
    fake_of(b)->rows_asked += a->job.candidates;
    return a->logits[row];
}

static int32_t best(struct backend *b, uint32_t lane, uint32_t row)
{
    struct fake_lane *a = &fake_of(b)->lane[lane];
    assert(a->state == FAKE_READY && row >= a->job.logits_from && row < a->job.tokens && a->job.best_only);
    return largest_logit(a->logits[row], FAKE_VOCAB);
}

struct ranked {
    float logit, rank; // rank: a NaN comes before everything
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank ? -1 : 1) : x->id - y->id;
}

/* So few that samplers have to ask for the row now and then. */
static const struct backend_candidates *candidates(struct backend *b, uint32_t lane, uint32_t row)
{
    struct fake_lane *a = &fake_of(b)->lane[lane];
    assert(a->state == FAKE_READY && row >= a->job.logits_from && row < a->job.tokens && a->job.candidates);
    struct ranked all[FAKE_VOCAB];
    for (int32_t i = 0; i < FAKE_VOCAB; i++) {
        const float l = a->logits[row][i];
        all[i] = (struct ranked){l, isnan(l) ? INFINITY : l, i};
    }
    qsort(all, FAKE_VOCAB, sizeof *all, by_rank);
    struct backend_candidates *c = &a->candidates[row];
    *c = (struct backend_candidates){.count = FAKE_CANDIDATES};
    const double temperature = a->job.temperature > 0.0f ? (double)a->job.temperature : 1.0;
    for (uint32_t i = 0; i < FAKE_VOCAB; i++) {
        const double e = (double)all[i].logit - (double)all[0].logit;
        c->mass += exp(e);
        c->tempered += exp(e / temperature);
        if (i >= FAKE_CANDIDATES) continue;
        c->id[i] = all[i].id;
        c->logit[i] = all[i].logit;
    }
    return c;
}

static void cancel(struct backend *b, uint32_t lane)
{
    fake_of(b)->lane[lane].state = FAKE_FREE;
}

static const struct backend_ops fake_ops = {.name = "fake",
                                            .seq_open = seq_open,
                                            .seq_fork = seq_fork,
                                            .seq_close = seq_close,
                                            .start = start,
                                            .poll = poll,
                                            .resume = resume,
                                            .logits = logits,
                                            .best = best,
                                            .cancel = cancel,
                                            .kv_bytes = kv_bytes,
                                            .kv_save = kv_save,
                                            .kv_load = kv_load,
                                            .candidates = candidates};

/* ---- the flock ---- */

static int flock_submit_fake(void *flock, uint32_t lane, const struct mlp_step *step, struct error *err)
{
    struct fake *f = flock;
    struct fake_lane *a = &f->lane[lane];
    assert(!a->at_flock);
    if (is_sick(f, a, SICK_SUBMIT)) return error_set(err, -EIO, "submit is sick");
    a->step = *step;
    a->at_flock = true;
    a->delay = some_delay(f);
    return 0;
}

static int flock_poll_fake(void *flock, uint32_t lane, bool wait, struct error *err)
{
    struct fake *f = flock;
    struct fake_lane *a = &f->lane[lane];
    assert(a->at_flock);
    if (f->never_answers) return 0;
    if (a->delay > 0 && !wait) {
        a->delay--;
        return 0;
    }
    a->at_flock = false;
    if (is_sick(f, a, SICK_ANSWER)) return error_set(err, -EIO, "answer is sick");
    for (uint32_t i = 0; i < a->step.tokens; i++)
        a->step.y[2 * (size_t)i] = expert(a->step.layer, a->step.x[2 * (size_t)i]);
    return 1;
}

struct flock_seam fake_flock(struct fake *f)
{
    return (struct flock_seam){flock_submit_fake, flock_poll_fake, f, false};
}

struct fake *fake_open(void)
{
    struct fake *f = calloc(1, sizeof *f);
    assert(f);
    f->backend.ops = &fake_ops;
    f->max_tokens = 8;
    f->slow = 3;
    f->sick_seq = FAKE_SEQS;
    f->model.config = (struct model_config){.vocab_size = FAKE_VOCAB,
                                            .max_positions = FAKE_POSITIONS,
                                            .layers = FAKE_LAYERS,
                                            .mtp_layers = 1,
                                            .eos_id = {FAKE_EOS},
                                            .eos_count = 1};
    return f;
}
