/* scripted_server.c: the HTTP server in front of a model that says what it is told to.
 *
 * The model's answer is the text between the last "[[" and "]]" of its prompt (control tokens recognised),
 * then EOS: so that a test can have any answer, in particular calls of tools, which duckling was not trained
 * to make. Everything else is the real thing: server, chat encoding, engine, sampler, prefix cache. Only the
 * backend is replaced, behind its seam: its "KV" of a position is the token there. usage: scripted-server DIR
 * [v31] */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/engine/engine_internal.h"
#include "host/http/http.h"
#include "host/text/buffer.h"

enum { LANES = 4, SEQS = 80 };

struct script {
    struct backend backend;
    struct model model;
    struct tokenizer *tokenizer;
    struct {
        int32_t *id; // (capacity) NULL: closed
        uint32_t capacity;
    } seq[SEQS];
    struct backend_job job[LANES];
    float *logits[LANES]; // (vocab)
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
    const struct timespec pace = {.tv_nsec = 1000000}; // tokens that come one by one, as from a model
    nanosleep(&pace, NULL);
    memset(s->logits[lane], 0, s->model.config.vocab_size * sizeof(float));
    s->logits[lane][next_token(s, s->seq[job->seq].id, count)] = 100;
    return BACKEND_DONE;
}

static const float *logits(struct backend *b, uint32_t lane, uint32_t row)
{
    (void)row; // the last one is the only one asked for
    return script_of(b)->logits[lane];
}

static void copy_position(struct backend *b, backend_seq from, backend_seq to, uint32_t positions)
{
    struct script *s = script_of(b);
    memcpy(s->seq[to].id, s->seq[from].id, positions * sizeof(int32_t));
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
                                       .seq_close = seq_close,
                                       .start = start,
                                       .poll = poll,
                                       .resume = nothing,
                                       .logits = logits,
                                       .cancel = nothing,
                                       .copy_position = copy_position,
                                       .memory_bytes = memory_bytes};

static int load(void *ctx, struct engine **out, struct error *err)
{
    struct script *s = ctx;
    const struct flock_seam none = {0}; // no job is ever published
    const struct engine_settings set = {.lanes = LANES,
                                        .prefill_chunk = 512,
                                        .step_timeout_ms = 5000,
                                        .prefix_cache_bytes = 1u << 20,
                                        .bytes_per_position = 4};
    return engine__assemble(out, &s->model, &s->backend, &none, &set, err);
}

int main(int argc, char **argv)
{
    static struct script s = {.backend = {.ops = &ops}};
    struct chat_encoding chat;
    struct error err;
    int rc = argc < 2 ? error_set(&err, -EINVAL, "usage: scripted-server DIR [v31]")
                      : model_config_read(&s.model.config, argv[1], &err);
    const struct model_config *c = &s.model.config;
    if (!rc) rc = tokenizer_open(&s.tokenizer, argv[1], &err);
    if (!rc) rc = chat_encoding_init(&chat, s.tokenizer, c->bos_id, c->eos_id[0], &err);
    if (!rc && argc > 2) chat.tools = CHAT_TOOLS_V31;
    for (int i = 0; i < LANES && !rc; i++) {
        s.logits[i] = calloc(c->vocab_size, sizeof(float));
        if (!s.logits[i]) rc = error_set(&err, -ENOMEM, "out of memory");
    }
    const struct http_options o = {.listen = "127.0.0.1:0",
                                   .model_name = "script",
                                   .lanes = LANES,
                                   .queue = 16,
                                   .connections = 64,
                                   .max_body = 4u << 20,
                                   .request_timeout_s = 10,
                                   .idle_timeout_s = 10,
                                   .drain_timeout_s = 5,
                                   .config = c,
                                   .tokenizer = s.tokenizer,
                                   .chat = &chat,
                                   .sampling = SAMPLING_GREEDY,
                                   .load = load,
                                   .ctx = &s};
    if (!rc) rc = http_serve(&o, &err);
    if (rc) fprintf(stderr, "scripted-server: %s\n", err.text);
    for (int i = 0; i < LANES; i++) free(s.logits[i]);
    tokenizer_close(s.tokenizer);
    return rc ? 1 : 0;
}
