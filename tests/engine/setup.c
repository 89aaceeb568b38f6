/* See setup.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "setup.h"

const struct setup_mode setup_modes[SETUP_MODES] = {
    {false, MTP_ONE_JOB}, {true, MTP_ONE_JOB}, {true, MTP_TWO_LANES}, {false, MTP_TWO_LANES}};

static bool collect(void *ctx, const struct generated *t)
{
    struct collected *c = ctx;
    assert_int_equal(t->index, c->count);
    assert_true(t->gpu_ms >= 0 && t->flock_ms >= 0 && t->wait_ms >= 0 && t->t_ms >= 0);
    assert_true((t->logits != NULL) != (t->candidates != NULL));
    c->id[c->count++] = t->id;
    c->accepted += t->accepted;
    c->stop_seen |= t->stop;
    if (c->count == 2 && c->cancel_at_2) generation_cancel(c->cancel_at_2);
    if (c->count == 2 && c->free_at_2) generation_free(c->free_at_2);
    return c->count != c->stop_after;
}

static void on_prefill(void *ctx, uint32_t done, uint32_t total)
{
    struct collected *c = ctx;
    assert_true(done > c->prefilled && done <= total);
    c->prefilled = done;
}

struct setup setup_open(uint32_t lanes, uint32_t chunk, bool mtp, enum mtp_verify verify)
{
    struct setup t = {.fake = fake_open()};
    t.fake->max_tokens = chunk;
    t.fake->two_lanes = verify == MTP_TWO_LANES;
    const struct flock_seam seam = fake_flock(t.fake);
    const struct engine_settings set = {
        .lanes = lanes, .prefill_chunk = chunk, .step_timeout_ms = 5000, .mtp = mtp, .verify = verify};
    struct error err;
    assert_int_equal(engine__assemble(&t.engine, &t.fake->model, &t.fake->backend, &seam, &set, &err), 0);
    return t;
}

void setup_close(struct setup t)
{
    engine_close(t.engine);
    for (uint32_t i = 0; i < FAKE_SEQS; i++) assert_false(t.fake->seq[i].open);
    free(t.fake);
}

struct sampling sampling_kind(int kind)
{
    static const struct logit_bias bias[] = {{3, 1.5f}, {5, -2.0f}};
    struct sampling s = SAMPLING_GREEDY;
    if (kind == 0) return s;
    s.temperature = 0.7f;
    s.seed = (uint64_t)kind * 1000;
    if (kind == 1) return s;
    s.top_p = 0.9f;
    s.top_k = 12;
    s.presence_penalty = 0.8f;
    s.frequency_penalty = 0.3f;
    s.repetition_penalty = 1.2f;
    s.bias = bias;
    s.bias_count = 2;
    return s;
}

void make_prompt(int32_t *ids, uint32_t count, uint32_t variant)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i * i * 7 + variant * 13 + i) % (FAKE_VOCAB - 1));
}

uint32_t plain_loop(const int32_t *prompt, uint32_t count, uint32_t max, bool ignore_eos,
                    const struct sampling *sampling, int32_t *out)
{
    int32_t ids[FAKE_POSITIONS + 1];
    float logits[FAKE_VOCAB];
    memcpy(ids, prompt, count * sizeof *ids);
    struct sampler *s = sampler_open(FAKE_VOCAB, sampling);
    uint32_t n = 0;
    while (n < max) {
        fake_reference(ids, count + n, logits, NULL);
        int32_t id = sampler_sample(s, logits, count + n);
        sampler_accept(s, id);
        ids[count + n] = out[n] = id;
        n++;
        if (id == FAKE_EOS && !ignore_eos) break;
    }
    sampler_close(s);
    return n;
}

struct generation *setup_start(struct setup t, const int32_t *prompt, uint32_t count, uint32_t max,
                               const struct sampling *s, bool ignore_eos, struct collected *c)
{
    struct generation *g = NULL;
    struct error err = {""};
    const struct generation_request r = {.prompt = prompt,
                                         .prompt_count = count,
                                         .max_tokens = max,
                                         .ignore_eos = ignore_eos,
                                         .sampling = *s,
                                         .on_token = collect,
                                         .on_prefill = on_prefill,
                                         .ctx = c};
    if (engine_start(t.engine, &g, &r, &err)) fail_msg("%s", err.text);
    return g;
}

void setup_run(struct setup t)
{
    int steps = 0;
    while (engine_step(t.engine)) assert_true(++steps < 10000);
}

void expect_kv(const struct fake_seq *s, const int32_t *prompt, uint32_t count, const int32_t *more,
               uint32_t n)
{
    int32_t ids[FAKE_POSITIONS + 1];
    float logits[FAKE_VOCAB];
    struct fake_kv kv;
    memcpy(ids, prompt, count * sizeof *ids);
    memcpy(ids + count, more, n * sizeof *ids);
    fake_reference(ids, count + n, logits, &kv);
    for (uint32_t l = 0; l < FAKE_LAYERS; l++)
        assert_memory_equal(s->kv.main[l], kv.main[l], (count + n - 2) * sizeof(uint32_t));
    assert_true(s->mtp_end < count + n);
    assert_memory_equal(s->kv.mtp, kv.mtp, s->mtp_end * sizeof(uint32_t));
}
