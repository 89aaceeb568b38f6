/* engine_test.c: generations on the hash model: the tokens must be those of the plain loop "whole text in,
 * sample, append", whatever is done to produce them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct collected {
    int32_t id[FAKE_POSITIONS];
    uint32_t count, calls, stop_after; // stop_after: on_token says false at this many
    uint32_t accepted, prefilled;
    bool stop_seen;
    struct generation *cancel_at_2, *free_at_2;
};

static bool collect(void *ctx, const struct generated *t)
{
    struct collected *c = ctx;
    assert_int_equal(t->index, c->count);
    assert_true(t->gpu_ms >= 0 && t->flock_ms >= 0 && t->wait_ms >= 0 && t->t_ms >= 0);
    assert_non_null(t->logits);
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

struct setup {
    struct fake *fake;
    struct engine *engine;
};

static struct setup open_engine(uint32_t lanes, uint32_t chunk, bool mtp, enum mtp_verify verify)
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

static void close_engine(struct setup t)
{
    engine_close(t.engine);
    for (uint32_t i = 0; i < FAKE_SEQS; i++) assert_false(t.fake->seq[i].open);
    free(t.fake);
}

static struct sampling sampling_kind(int kind)
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

static void make_prompt(int32_t *ids, uint32_t count, uint32_t variant)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i * i * 7 + variant * 13 + i) % (FAKE_VOCAB - 1));
}

/* The plain loop. Returns how many tokens were made into out. */
static uint32_t plain(const int32_t *prompt, uint32_t count, uint32_t max, bool ignore_eos,
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

static struct generation *start(struct setup t, const int32_t *prompt, uint32_t count, uint32_t max,
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

static void run_all(struct setup t)
{
    int steps = 0;
    while (engine_step(t.engine)) assert_true(++steps < 10000);
}

/* All KV that was written in the end is what the whole text gives. */
static void expect_kv(const struct fake_seq *s, const int32_t *prompt, uint32_t count, const int32_t *more,
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

static const struct {
    bool mtp;
    enum mtp_verify verify;
} modes[] = {{false, MTP_ONE_JOB}, {true, MTP_ONE_JOB}, {true, MTP_TWO_LANES}, {false, MTP_TWO_LANES}};

static void every_way_gives_the_plain_loops_tokens(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 8, 17, 30}, chunks[] = {2, 3, 8, 64};
    uint32_t proposed = 0, accepted = 0;
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        for (size_t c = 0; c < 4; c++)
            for (int kind = 0; kind < 3; kind++)
                for (size_t p = 0; p < 6; p++) {
                    struct setup t = open_engine(2, chunks[c], modes[m].mtp, modes[m].verify);
                    int32_t prompt[32], want[64];
                    make_prompt(prompt, lengths[p], (uint32_t)p);
                    struct sampling s = sampling_kind(kind);
                    uint32_t n = plain(prompt, lengths[p], 40, true, &s, want);
                    struct collected got = {0};
                    struct generation *g = start(t, prompt, lengths[p], 40, &s, true, &got);
                    run_all(t);
                    const struct generation_result *r = generation_result(g);
                    assert_int_equal(r->reason, FINISH_LENGTH);
                    assert_int_equal(got.count, n);
                    assert_memory_equal(got.id, want, n * sizeof *want);
                    assert_int_equal(got.prefilled, lengths[p]);
                    assert_int_equal(r->generated_tokens, n);
                    assert_int_equal(got.accepted, r->drafts_accepted);
                    expect_kv(&t.fake->last_closed, prompt, lengths[p], want, n);
                    proposed += r->drafts_proposed;
                    accepted += r->drafts_accepted;
                    if (!modes[m].mtp) assert_int_equal(r->drafts_proposed, 0);
                    generation_free(g);
                    close_engine(t);
                }
    assert_true(accepted > 500 && proposed - accepted > 500); // both paths were taken
}

/* A prompt's chunks go in pairs, each on a lane of its own and both at the same time; the MTP layer's
 * likewise. */
static void two_chunks_of_a_prompt_overlap(void **state)
{
    (void)state;
    for (int mtp = 0; mtp < 2; mtp++) {
        struct setup t = open_engine(3, 8, mtp, MTP_TWO_LANES);
        int32_t prompt[40];
        make_prompt(prompt, 40, 1);
        struct sampling s = SAMPLING_GREEDY;
        struct collected got = {0};
        t.fake->slow = 3;
        struct generation *g = start(t, prompt, 40, 1, &s, true, &got);
        run_all(t);
        assert_int_equal(generation_result(g)->reason, FINISH_LENGTH);
        assert_int_equal(t.fake->most_at_once, 2);
        uint32_t chunks = 0, lanes_seen[2] = {0};
        for (uint32_t i = 0; i < t.fake->starts; i++) {
            const struct fake_start *j = &t.fake->start[i];
            if (j->kind != BACKEND_MAIN) continue;
            assert_int_equal(j->position, 8 * chunks);
            assert_true(j->lane < 2);
            lanes_seen[j->lane]++;
            chunks++;
        }
        assert_int_equal(chunks, 5);
        assert_int_equal(lanes_seen[0], 3);
        assert_int_equal(lanes_seen[1], 2);
        generation_free(g);
        close_engine(t);
    }
}

static void verifying_on_two_lanes_overlaps(void **state)
{
    (void)state;
    struct setup t = open_engine(2, 8, true, MTP_TWO_LANES);
    int32_t prompt[4] = {1, 2, 3, 4};
    struct sampling s = SAMPLING_GREEDY;
    struct collected got = {0};
    struct generation *g = start(t, prompt, 4, 20, &s, true, &got);
    run_all(t);
    assert_int_equal(t.fake->most_at_once, 2);
    generation_free(g);
    close_engine(t);
}

static void several_at_once_do_not_touch_each_other(void **state)
{
    (void)state;
    static const uint32_t lengths[6] = {5, 30, 1, 12, 22, 9};
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        for (uint32_t run = 0; run < 8; run++) {
            uint32_t lanes = 1 + run / 2;
            struct setup t = open_engine(lanes, 4, modes[m].mtp, modes[m].verify);
            t.engine->set.adapt = run % 2; // whatever the clock says of drafts: the texts are the same
            if (lanes == 1) t.engine->set.verify = MTP_ONE_JOB;
            struct generation *g[6];
            struct collected got[6];
            memset(got, 0, sizeof got);
            int32_t prompt[6][32], want[64];
            for (uint32_t i = 0; i < 6; i++) {
                struct sampling s = sampling_kind((int)i % 3);
                make_prompt(prompt[i], lengths[i], i);
                g[i] = start(t, prompt[i], lengths[i], 10 + 3 * i, &s, false, &got[i]);
            }
            run_all(t);
            for (uint32_t i = 0; i < 6; i++) {
                struct sampling s = sampling_kind((int)i % 3);
                uint32_t n = plain(prompt[i], lengths[i], 10 + 3 * i, false, &s, want);
                assert_int_equal(got[i].count, n);
                assert_memory_equal(got[i].id, want, n * sizeof *want);
                generation_free(g[i]);
            }
            bool pairs = modes[m].mtp && modes[m].verify == MTP_TWO_LANES && lanes > 1;
            if (!t.engine->set.adapt) assert_int_equal(t.fake->most_at_once, pairs ? lanes / 2 * 2 : lanes);
            close_engine(t);
        }
}

static void a_long_prompt_does_not_stall_who_decodes(void **state)
{
    (void)state;
    struct setup t = open_engine(4, 4, false, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[40];
    make_prompt(prompt, 40, 1);
    struct collected got[3];
    memset(got, 0, sizeof got);
    struct generation *g[3];
    g[0] = start(t, prompt, 3, 100, &s, true, &got[0]);
    engine_step(t.engine);
    assert_int_equal(got[0].count, 1);
    g[1] = start(t, prompt, 40, 5, &s, true, &got[1]);
    g[2] = start(t, prompt, 40, 5, &s, true, &got[2]);
    for (uint32_t step = 1; step <= 20; step++) { // 10 chunks each, in turns
        engine_step(t.engine);
        assert_int_equal(got[0].count, 1 + step);
        assert_int_equal(got[1].prefilled + got[2].prefilled, 4 * step);
        assert_int_equal(got[1].prefilled - got[2].prefilled, step % 2 ? 4 : 0);
    }
    run_all(t);
    assert_int_equal(got[1].count, 5);
    assert_int_equal(got[2].count, 5);
    for (int i = 0; i < 3; i++) generation_free(g[i]);
    close_engine(t);
}

/* Short prompts share a round, and do not wait for a long one that came before them. */
static void short_prompts_do_not_wait_for_a_long_one(void **state)
{
    (void)state;
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        struct setup t = open_engine(8, 8, false, MTP_ONE_JOB);
        t.engine->share.adaptive = anywhere;
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[100];
        make_prompt(prompt, 100, 1);
        struct collected got[6];
        memset(got, 0, sizeof got);
        struct generation *g[6];
        g[0] = start(t, prompt, 3, 50, &s, true, &got[0]);
        engine_step(t.engine);
        g[1] = start(t, prompt, 100, 5, &s, true, &got[1]);
        for (int i = 2; i < 6; i++) g[i] = start(t, prompt, 4, 5, &s, true, &got[i]);
        for (int step = 0; step < 4; step++) engine_step(t.engine);
        assert_int_equal(got[0].count, 5); // who decodes did so in every round
        for (int i = 2; i < 6; i++) assert_true(got[i].count > 0);
        assert_true(got[1].count == 0 && got[1].prefilled >= 8);
        run_all(t);
        for (int i = 1; i < 6; i++) assert_int_equal(got[i].count, 5);
        for (int i = 0; i < 6; i++) generation_free(g[i]);
        close_engine(t);
    }
}

/* The rows that prompts get follow what rounds take. */
static void prompts_get_their_share(void **state)
{
    (void)state;
    struct prefill_share p;
    prefill_share_begin(&p, false, 512);
    prefill_share_measured(&p, 1, 512, 9000000000u);
    assert_int_equal(prefill_share_rows(&p, 1), 512);
    assert_int_equal(prefill_share_cut(&p, 600, 512), 512);
    assert_int_equal(prefill_share_cut(&p, 600, 500), 0); // whole chunks only
    prefill_share_begin(&p, true, 512);
    assert_int_equal(prefill_share_rows(&p, 0), 1024);
    assert_int_equal(prefill_share_rows(&p, 1), 0); // first it is seen what decoding takes
    prefill_share_measured(&p, 1, 0, 1000000);
    uint32_t first = prefill_share_rows(&p, 1);
    assert_int_equal(prefill_share_cut(&p, 600, 20), 20);
    for (int i = 0; i < 50; i++) prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 10000000);
    assert_int_equal(prefill_share_rows(&p, 1), 512); // 10 ms a round: nobody notices
    for (int i = 0; i < 50; i++)                      // 5 ms a row: about 50 rows are a quarter of a second
        prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 5000000u * prefill_share_rows(&p, 1));
    assert_in_range(prefill_share_rows(&p, 1), 25, first);
    for (int i = 0; i < 50; i++) prefill_share_measured(&p, 10, 0, 1000000000);
    for (int i = 0; i < 50; i++) // decoding takes a second: prompts may add 0.4 s
        prefill_share_measured(&p, 10, prefill_share_rows(&p, 1),
                               1000000000u + 5000000u * prefill_share_rows(&p, 1));
    assert_in_range(prefill_share_rows(&p, 1), 40, 90);
    for (int i = 0; i < 90; i++) prefill_share_measured(&p, 1, prefill_share_rows(&p, 1), 9000000000u);
    assert_int_equal(prefill_share_rows(&p, 1), 16);
}

static void those_who_wait_are_served_in_order(void **state)
{
    (void)state;
    struct setup t = open_engine(1, 8, false, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[3] = {1, 2, 3};
    struct collected got[3];
    memset(got, 0, sizeof got);
    struct generation *g[3];
    for (int i = 0; i < 3; i++) g[i] = start(t, prompt, 3, 4, &s, true, &got[i]);
    for (uint32_t step = 0; step < 12; step++) {
        engine_step(t.engine);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t expected = step + 1 > 4 * i ? step + 1 - 4 * i : 0;
            assert_int_equal(got[i].count, expected < 4 ? expected : 4);
        }
    }
    assert_false(engine_step(t.engine));
    for (int i = 0; i < 3; i++) generation_free(g[i]);
    close_engine(t);
}

static void what_ends_a_generation(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t prompt, max, stop_after;
        bool ignore_eos;
        enum finish_reason reason;
        uint32_t tokens; // 0: as the plain loop with EOS says
    } cases[] = {
        {"max_tokens 1", 5, 1, 0, true, FINISH_LENGTH, 1},
        {"max_tokens 2", 5, 2, 0, true, FINISH_LENGTH, 2},
        {"max_tokens 3", 5, 3, 0, true, FINISH_LENGTH, 3},
        {"positions", FAKE_POSITIONS - 6, 50, 0, true, FINISH_LENGTH, 6},
        {"positions without max_tokens", FAKE_POSITIONS - 9, 0, 0, true, FINISH_LENGTH, 9},
        {"one position left", FAKE_POSITIONS - 1, 0, 0, true, FINISH_LENGTH, 1},
        {"no position left", FAKE_POSITIONS, 5, 0, true, FINISH_LENGTH, 1},
        {"end-of-sequence token", 7, 0, 0, false, FINISH_STOP, 0},
        {"callback says no at once", 5, 20, 1, true, FINISH_STOP, 1},
        {"callback says no at 7", 5, 20, 7, true, FINISH_STOP, 7},
        {"callback says no at 8", 5, 20, 8, true, FINISH_STOP, 8},
        {"callback says no at 9", 5, 20, 9, true, FINISH_STOP, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            struct setup t = open_engine(2, 8, modes[m].mtp, modes[m].verify);
            int32_t prompt[FAKE_POSITIONS], want[FAKE_POSITIONS];
            make_prompt(prompt, cases[i].prompt, 3);
            struct sampling s = sampling_kind(cases[i].tokens ? 0 : 1);
            uint32_t n = cases[i].tokens;
            if (n)
                plain(prompt, cases[i].prompt, n, true, &s, want);
            else
                n = plain(prompt, cases[i].prompt, FAKE_POSITIONS - cases[i].prompt, false, &s, want);
            struct collected got = {.stop_after = cases[i].stop_after};
            struct generation *g =
                start(t, prompt, cases[i].prompt, cases[i].max, &s, cases[i].ignore_eos, &got);
            run_all(t);
            if (generation_result(g)->reason != cases[i].reason || got.count != n)
                fail_msg("%s: reason %d, %u tokens", cases[i].name, generation_result(g)->reason, got.count);
            assert_memory_equal(got.id, want, n * sizeof *want);
            assert_int_equal(generation_result(g)->generated_tokens, n);
            if (!cases[i].tokens) {
                assert_true(n > 2 && got.stop_seen && got.id[n - 1] == FAKE_EOS);
            }
            generation_free(g);
            close_engine(t);
        }
}

static void a_failure_is_one_generations_own(void **state)
{
    (void)state;
    static const struct {
        enum fake_sickness sick;
        uint32_t position;
        const char *text;
    } cases[] = {
        {SICK_OPEN, 0, "no memory for the cache"}, {SICK_START, 2, "start is sick"},
        {SICK_START, 14, "start is sick"},         {SICK_POLL, 2, "poll is sick"},
        {SICK_POLL, 15, "poll is sick"},           {SICK_SUBMIT, 2, "submit is sick"},
        {SICK_SUBMIT, 16, "submit is sick"},       {SICK_ANSWER, 2, "answer is sick"},
        {SICK_ANSWER, 17, "answer is sick"},       {SICK_NAN, 18, "logits of position 18"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            struct setup t = open_engine(4, 4, modes[m].mtp, modes[m].verify);
            t.fake->sick_seq = 0;
            t.fake->sick_position = cases[i].position;
            struct sampling s = SAMPLING_GREEDY;
            int32_t prompt[10], want[40];
            make_prompt(prompt, 10, 2);
            struct collected sick = {0}, well = {0}, later = {0};
            struct generation *a, *b, *c;
            t.fake->sick = cases[i].sick;
            a = start(t, prompt, 10, 30, &s, true, &sick);
            b = start(t, prompt, 10, 30, &s, true, &well);
            run_all(t);
            assert_int_equal(generation_result(a)->reason, FINISH_ERROR);
            if (!strstr(generation_result(a)->error.text, cases[i].text))
                fail_msg("'%s' says '%s'", cases[i].text, generation_result(a)->error.text);
            plain(prompt, 10, 30, true, &s, want);
            assert_memory_equal(sick.id, want, sick.count * sizeof *want); // right up to the failure
            t.fake->sick = SICK_NO;
            c = start(t, prompt, 10, 30, &s, true, &later);
            run_all(t);
            if (cases[i].sick != SICK_OPEN) { // there the healthy one is given the same handle
                assert_int_equal(well.count, 30);
                assert_memory_equal(well.id, want, sizeof(int32_t) * 30);
            }
            assert_int_equal(later.count, 30);
            assert_memory_equal(later.id, want, sizeof(int32_t) * 30);
            generation_free(a);
            generation_free(b);
            generation_free(c);
            close_engine(t);
        }
}

static void no_wait_is_without_end(void **state)
{
    (void)state;
    for (int backend = 0; backend < 2; backend++) {
        struct setup t = open_engine(1, 8, true, MTP_ONE_JOB);
        const struct flock_seam seam = fake_flock(t.fake);
        lanes_close(t.engine->lanes);
        t.engine->lanes = lanes_open(&t.fake->backend, &seam, 1, 30);
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[5] = {1, 2, 3, 4, 5}, want[6];
        plain(prompt, 5, 6, true, &s, want);
        struct collected got[3];
        memset(got, 0, sizeof got);
        struct generation *g[3];
        t.fake->never_answers = !backend;
        t.fake->never_publishes = backend;
        g[0] = start(t, prompt, 5, 6, &s, true, &got[0]);
        run_all(t);
        assert_int_equal(generation_result(g[0])->reason, FINISH_ERROR);
        assert_string_equal(generation_result(g[0])->error.text,
                            backend ? "lane 0: positions 0 to 4 did not leave the fake backend within 0.03 s"
                                    : "layer 0 of positions 0 to 4: no answer from the flock within 0.03 s");
        g[1] = start(t, prompt, 5, 6, &s, true, &got[1]);
        run_all(t);
        assert_int_equal(generation_result(g[1])->reason, FINISH_ERROR);
        if (!backend)
            assert_string_equal(generation_result(g[1])->error.text,
                                "no lane: all 1 still wait for answers from the flock");
        t.fake->never_answers = t.fake->never_publishes =
            false; // the late answer comes: the lane is free again
        g[2] = start(t, prompt, 5, 6, &s, true, &got[2]);
        while (generation_result(g[2])->reason == FINISH_NONE) engine_step(t.engine);
        for (int tries = 0; got[2].count == 0 && tries < 5; tries++) { // each try polls the late answer once
            generation_free(g[2]);
            g[2] = start(t, prompt, 5, 6, &s, true, &got[2]);
            run_all(t);
        }
        assert_int_equal(got[2].count, 6);
        assert_memory_equal(got[2].id, want, sizeof want);
        for (int i = 0; i < 3; i++) generation_free(g[i]);
        close_engine(t);
    }
}

static void cancelling_and_freeing_at_any_time(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        struct setup t = open_engine(4, 4, modes[m].mtp, modes[m].verify);
        struct sampling s = SAMPLING_GREEDY;
        int32_t prompt[10], want[30];
        make_prompt(prompt, 10, 2);
        plain(prompt, 10, 30, true, &s, want);
        struct collected got[6];
        memset(got, 0, sizeof got);
        struct generation *g[6];
        for (int i = 0; i < 6; i++) g[i] = start(t, prompt, 10, 30, &s, true, &got[i]);
        got[0].cancel_at_2 = g[0]; // itself
        got[1].free_at_2 = g[1];   // itself
        for (int step = 0; step < 2; step++) engine_step(t.engine);
        generation_cancel(g[2]); // while it reads its prompt
        assert_true(generation_done(g[2]));
        assert_int_equal(generation_result(g[2])->reason, FINISH_CANCELLED);
        generation_free(g[5]); // while it waits
        got[3].cancel_at_2 = g[4];
        run_all(t);
        assert_int_equal(generation_result(g[0])->reason, FINISH_CANCELLED);
        assert_int_equal(got[0].count, 2);
        assert_int_equal(got[1].count, 2);
        assert_int_equal(got[3].count, 30);
        assert_memory_equal(got[3].id, want, sizeof want);
        assert_int_equal(generation_result(g[4])->reason, FINISH_CANCELLED);
        assert_int_equal(got[5].count, 0);
        generation_free(g[0]);
        generation_free(g[2]);
        generation_free(g[3]);
        got[2] = (struct collected){0};
        g[1] = start(t, prompt, 10, 30, &s, true, &got[2]);
        engine_step(t.engine);
        close_engine(t); // with one under way
        generation_free(g[1]);
        generation_free(g[4]);
    }
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct setup t = open_engine(1, 8, false, MTP_ONE_JOB);
    int32_t prompt[FAKE_POSITIONS + 1] = {0}, bad[2] = {1, FAKE_VOCAB}, negative[1] = {-1};
    struct generation_request r[5];
    for (int i = 0; i < 5; i++)
        r[i] = (struct generation_request){.prompt = prompt, .prompt_count = 4, .sampling = SAMPLING_GREEDY};
    static const char *const text[5] = {
        "the prompt has no tokens", "the prompt has 161 tokens; the model has 160 positions",
        "prompt token 1 is 40; the vocabulary has 40", "prompt token 0 is -1; the vocabulary has 40",
        "temperature is -1; it can be 0 to inf"};
    r[0].prompt_count = 0;
    r[1].prompt_count = FAKE_POSITIONS + 1;
    r[2].prompt = bad;
    r[2].prompt_count = 2;
    r[3].prompt = negative;
    r[3].prompt_count = 1;
    r[4].sampling.temperature = -1.0f;
    for (int i = 0; i < 5; i++) {
        struct generation *g = NULL;
        struct error err;
        assert_true(engine_start(t.engine, &g, &r[i], &err) < 0);
        assert_string_equal(err.text, text[i]);
        assert_null(g);
    }
    assert_false(engine_step(t.engine));
    close_engine(t);
}

/* ---- the teacher-forced pass ---- */

struct rows_seen {
    int32_t *ids;
    uint32_t next, next_mtp, progress;
};

static void check_row(void *ctx, uint32_t position, const float *logits)
{
    struct rows_seen *s = ctx;
    float want[FAKE_VOCAB];
    assert_int_equal(position, s->next++);
    fake_reference(s->ids, position + 1, want, NULL);
    assert_memory_equal(logits, want, sizeof want);
}

static void check_mtp_row(void *ctx, uint32_t position, const float *logits)
{
    struct rows_seen *s = ctx;
    float want[FAKE_VOCAB];
    assert_int_equal(position, s->next_mtp++);
    fake_mtp_reference(s->ids, position + 2, want);
    assert_memory_equal(logits, want, sizeof want);
}

static void note_progress(void *ctx, uint32_t done, uint32_t total)
{
    struct rows_seen *s = ctx;
    assert_true(done > s->progress && done <= total);
    s->progress = done;
}

static void evaluating_gives_every_row_once_in_order(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2, 5, 8, 64}, froms[] = {0, 1, 7, 28, 29, 30};
    int32_t ids[30];
    make_prompt(ids, 30, 4);
    for (size_t c = 0; c < 4; c++)
        for (size_t f = 0; f < 6; f++)
            for (int mtp = 0; mtp < 2; mtp++) {
                struct setup t = open_engine(1, chunks[c], mtp, MTP_ONE_JOB);
                struct rows_seen seen = {ids, froms[f], froms[f], 0};
                const struct engine_rows rows = {check_row, mtp ? check_mtp_row : NULL, note_progress, &seen};
                struct error err;
                assert_int_equal(engine_evaluate(t.engine, ids, 30, froms[f], &rows, &err), 0);
                assert_int_equal(seen.next, 30);
                assert_int_equal(seen.next_mtp, mtp && froms[f] < 29 ? 29 : froms[f]);
                assert_int_equal(seen.progress, 30);
                close_engine(t);
            }
}

static void evaluating_between_rounds_disturbs_nobody(void **state)
{
    (void)state;
    struct setup t = open_engine(1, 8, true, MTP_ONE_JOB);
    struct sampling s = SAMPLING_GREEDY;
    int32_t prompt[10], want[20];
    make_prompt(prompt, 10, 5);
    plain(prompt, 10, 20, true, &s, want);
    struct collected got = {0};
    struct generation *g = start(t, prompt, 10, 20, &s, true, &got);
    do {
        struct rows_seen seen = {prompt, 0, 0, 0};
        const struct engine_rows rows = {check_row, check_mtp_row, NULL, &seen};
        struct error err;
        assert_int_equal(engine_evaluate(t.engine, prompt, 10, 0, &rows, &err), 0);
    } while (engine_step(t.engine));
    assert_int_equal(got.count, 20);
    assert_memory_equal(got.id, want, sizeof want);
    generation_free(g);
    close_engine(t);
}

static void what_cannot_be_evaluated(void **state)
{
    (void)state;
    struct setup t = open_engine(1, 8, false, MTP_ONE_JOB);
    int32_t ids[FAKE_POSITIONS + 1] = {0};
    struct rows_seen seen = {ids, 0, 0, 0};
    const struct engine_rows rows = {check_row, NULL, NULL, &seen},
                             mtp = {check_row, check_mtp_row, NULL, &seen};
    struct error err;
    assert_true(engine_evaluate(t.engine, ids, 0, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "no tokens to evaluate");
    assert_true(engine_evaluate(t.engine, ids, FAKE_POSITIONS + 1, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "161 tokens to evaluate; the model has 160 positions");
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &mtp, &err) < 0);
    assert_string_equal(err.text, "MTP logits are wanted, but the MTP layer is not loaded");
    ids[2] = FAKE_VOCAB;
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "token 2 is 40; the vocabulary has 40");
    ids[2] = 0;
    t.fake->sick_seq = 0;
    t.fake->sick_position = 3;
    t.fake->sick = SICK_ANSWER;
    assert_true(engine_evaluate(t.engine, ids, 4, 0, &rows, &err) < 0);
    assert_string_equal(err.text, "answer is sick");
    assert_int_equal(seen.next, 0);
    close_engine(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_plain_loops_tokens),
        cmocka_unit_test(two_chunks_of_a_prompt_overlap),
        cmocka_unit_test(verifying_on_two_lanes_overlaps),
        cmocka_unit_test(several_at_once_do_not_touch_each_other),
        cmocka_unit_test(a_long_prompt_does_not_stall_who_decodes),
        cmocka_unit_test(short_prompts_do_not_wait_for_a_long_one),
        cmocka_unit_test(prompts_get_their_share),
        cmocka_unit_test(those_who_wait_are_served_in_order),
        cmocka_unit_test(what_ends_a_generation),
        cmocka_unit_test(a_failure_is_one_generations_own),
        cmocka_unit_test(no_wait_is_without_end),
        cmocka_unit_test(cancelling_and_freeing_at_any_time),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(evaluating_gives_every_row_once_in_order),
        cmocka_unit_test(evaluating_between_rounds_disturbs_nobody),
        cmocka_unit_test(what_cannot_be_evaluated),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
