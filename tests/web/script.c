/* script.c: see script.h. */
#include "tests/web/script.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/backend/largest.h"
#include "host/engine/engine_internal.h"
#include "host/text/buffer.h"

enum { SEQS = 80 };

struct script {
    struct backend backend;
    long pace_ns;
    struct model model;
    struct tokenizer *tokenizer;
    struct {
        int32_t *id; // (capacity) NULL: closed
        uint32_t capacity;
    } seq[SEQS];
    struct backend_job job[SCRIPT_LANES];
    float *logits[SCRIPT_LANES]; // (vocab)
};

static struct script *script_of(struct backend *b)
{
    return (struct script *)(void *)b;
}

static int seq_open(struct backend *b, backend_seq *out, uint32_t capacity, struct error *err)
{
    struct script *s = script_of(b);
    uint32_t i = 0;
    while (i < SEQS && s->seq[i].id) i++;
    int32_t *id = i < SEQS ? calloc(capacity, sizeof *id) : NULL;
    if (!id) return error_set(err, -ENOMEM, "no sequence left of %d", SEQS);
    s->seq[i].id = id;
    s->seq[i].capacity = capacity;
    *out = i;
    return 0;
}

static int seq_fork(struct backend *b, backend_seq *out, backend_seq from, uint32_t positions,
                    uint32_t capacity, struct error *err)
{
    struct script *s = script_of(b);
    int rc = seq_open(b, out, capacity, err);
    if (!rc) memcpy(s->seq[*out].id, s->seq[from].id, positions * sizeof(int32_t));
    return rc;
}

static void seq_close(struct backend *b, backend_seq seq)
{
    struct script *s = script_of(b);
    free(s->seq[seq].id);
    s->seq[seq].id = NULL;
}

static int start(struct backend *b, uint32_t lane, const struct backend_job *job, struct error *err)
{
    struct script *s = script_of(b);
    if (job->position + job->tokens > s->seq[job->seq].capacity)
        return error_set(err, -E2BIG, "past the end");
    memcpy(s->seq[job->seq].id + job->position, job->ids, job->tokens * sizeof *job->ids);
    s->job[lane] = *job;
    return 0;
}

/* Texts of ids[count], one behind the other. */
static char *text_of(const struct script *s, const int32_t *ids, uint32_t count)
{
    struct buffer b = {0};
    for (uint32_t i = 0; i < count; i++) {
        size_t length;
        bool added;
        const char *text = tokenizer_token(s->tokenizer, ids[i], &length, &added);
        if (text) buffer_append(&b, text, length);
    }
    buffer_append(&b, "", 1);
    return b.data;
}

/* The part of the script that the text already ends with is said; what comes next? */
static int32_t next_token(const struct script *s, const int32_t *ids, uint32_t count)
{
    int32_t eos = s->model.config.eos_id[0], next = eos;
    struct ids told = {0};
    struct error err;
    char *text = text_of(s, ids, count), *from = NULL;
    for (char *at = text; at && (at = strstr(at, "[[")); at += 2) from = at + 2;
    char *end = from ? strstr(from, "]]") : NULL;
    if (end && tokenizer_encode(s->tokenizer, from, (size_t)(end - from), true, &told, &err) == 0) {
        size_t said = told.count < count ? told.count : count;
        while (said && memcmp(ids + count - said, told.id, said * sizeof *ids) != 0) said--;
        if (said < told.count) next = told.id[said];
    }
    free(text);
    ids_free(&told);
    return next;
}

static enum backend_event poll(struct backend *b, uint32_t lane, struct mlp_step *step, struct error *err)
{
    struct script *s = script_of(b);
    const struct backend_job *job = &s->job[lane];
    uint32_t count = job->position + job->tokens;
    (void)step;
    (void)err;
    if (job->logits_from >= job->tokens) return BACKEND_DONE;
    const struct timespec pace = {s->pace_ns / 1000000000, s->pace_ns % 1000000000};
    if (s->pace_ns && job->position > 0) nanosleep(&pace, NULL);
    memset(s->logits[lane], 0, s->model.config.vocab_size * sizeof(float));
    s->logits[lane][next_token(s, s->seq[job->seq].id, count)] = 100;
    return BACKEND_DONE;
}

static const float *logits(struct backend *b, uint32_t lane, uint32_t row)
{
    (void)row; // the last one is the only one asked for
    return script_of(b)->logits[lane];
}

static int32_t best(struct backend *b, uint32_t lane, uint32_t row)
{
    return largest_logit(logits(b, lane, row), script_of(b)->model.config.vocab_size);
}

static void nothing(struct backend *b, uint32_t lane)
{
    (void)b;
    (void)lane;
}

static uint64_t memory_bytes(const struct backend *b)
{
    (void)b;
    return 0;
}

static const struct backend_ops ops = {.name = "script",
                                       .seq_open = seq_open,
                                       .seq_fork = seq_fork,
                                       .seq_close = seq_close,
                                       .start = start,
                                       .poll = poll,
                                       .resume = nothing,
                                       .logits = logits,
                                       .best = best,
                                       .cancel = nothing,
                                       .memory_bytes = memory_bytes};

int script_load(void *ctx, struct engine **out, struct error *err)
{
    struct script *s = ctx;
    const struct flock_seam none = {0}; // no job is ever published
    const struct engine_settings set = {.lanes = SCRIPT_LANES,
                                        .prefill_chunk = 512,
                                        .step_timeout_ms = 5000,
                                        .prefix_cache_bytes = 1u << 20,
                                        .bytes_per_position = 4};
    return engine__assemble(out, &s->model, &s->backend, &none, &set, err);
}

const struct model_config *script_config(const struct script *s)
{
    return &s->model.config;
}

const struct tokenizer *script_tokenizer(const struct script *s)
{
    return s->tokenizer;
}

int script_open(struct script **out, const char *dir, long pace_ns, struct error *err)
{
    struct script *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, -ENOMEM, "out of memory");
    s->backend.ops = &ops;
    s->pace_ns = pace_ns;
    int rc = model_config_read(&s->model.config, dir, err);
    if (!rc) rc = tokenizer_open(&s->tokenizer, dir, err);
    for (int i = 0; i < SCRIPT_LANES && !rc; i++) {
        s->logits[i] = calloc(s->model.config.vocab_size, sizeof(float));
        if (!s->logits[i]) rc = error_set(err, -ENOMEM, "out of memory");
    }
    if (rc)
        script_close(s);
    else
        *out = s;
    return rc;
}

void script_close(struct script *s)
{
    if (!s) return;
    for (int i = 0; i < SCRIPT_LANES; i++) free(s->logits[i]);
    tokenizer_close(s->tokenizer);
    free(s);
}
