/* See conversation.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "conversation.h"

struct bed bed_open(bool mtp, uint64_t positions)
{
    struct bed t = {.fake = fake_open()};
    t.fake->max_tokens = 8;
    const struct flock_seam seam = fake_flock(t.fake);
    const struct engine_settings set = {.lanes = 2,
                                        .prefill_chunk = 8,
                                        .step_timeout_ms = 5000,
                                        .mtp = mtp,
                                        .verify = MTP_ONE_JOB,
                                        .prefix_cache_bytes = positions * POSITION_BYTES,
                                        .bytes_per_position = POSITION_BYTES};
    struct error err;
    assert_int_equal(engine__assemble(&t.engine, &t.fake->model, &t.fake->backend, &seam, &set, &err), 0);
    return t;
}

void bed_close(struct bed t)
{
    engine_close(t.engine);
    for (uint32_t i = 0; i < FAKE_SEQS; i++) assert_false(t.fake->seq[i].open);
    free(t.fake);
}

static bool append(void *ctx, const struct generated *g)
{
    struct text *t = ctx;
    t->id[t->count++] = g->id;
    return true;
}

uint32_t text_go_on(struct bed b, struct text *t, uint32_t more)
{
    struct text prompt = *t;
    const struct generation_request r = {.prompt = prompt.id,
                                         .prompt_count = prompt.count,
                                         .max_tokens = more,
                                         .ignore_eos = true,
                                         .ids_only = more % 2 == 0,
                                         .sampling = SAMPLING_GREEDY,
                                         .on_token = append,
                                         .ctx = t};
    struct generation *g;
    struct error err;
    assert_int_equal(engine_start(b.engine, &g, &r, &err), 0);
    while (engine_step(b.engine)) {
    }
    const struct generation_result *result = generation_result(g);
    assert_int_equal(result->reason, FINISH_LENGTH);
    uint32_t cached = result->cached_tokens;
    generation_free(g);
    struct sampling greedy = SAMPLING_GREEDY;
    struct sampler *s = sampler_open(FAKE_VOCAB, &greedy);
    for (uint32_t n = prompt.count; n < t->count; n++) {
        float logits[FAKE_VOCAB];
        fake_reference(t->id, n, logits, NULL);
        assert_int_equal(t->id[n], sampler_sample(s, logits, n));
    }
    sampler_close(s);
    return cached;
}

void text_say(struct text *t, uint32_t count, uint32_t variant)
{
    for (uint32_t i = 0; i < count; i++)
        t->id[t->count++] = (int32_t)((i * i * 7 + variant * 5 + i) % (FAKE_VOCAB - 1));
}
