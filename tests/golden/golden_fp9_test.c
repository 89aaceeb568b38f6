/* golden_fp9_test.c: the bits of the logits do not depend on how the experts' work is divided: over how many
 * ducks, threads, lanes, in which chunks; and every duck does its share.
 *
 * synth-2048 is a random model whose experts are 2048 columns wide (256 slices), so that 32 ducks all hold
 * some of each; duckling's 16 slices leave ducks beyond 16 without routed experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "host/engine/engine_internal.h"
#include "host/engine/rng.h"
#include "tests/golden/compare.h"

#define SYNTH BINARY_DIR "/tests/synth-2048"

enum { ROWS = REDUCED ? 12 : 40, SAMPLED = REDUCED ? 16 : 48 };

static const struct engine_options base = {
    .backend = "cpu", .flock = "local:3", .mtp = true, .kv_dtype = KV_F32, .kv_dtype_set = true};

struct bits {
    uint64_t hash;
    uint32_t vocab, rows;
    bool all_zero;
};

static void add_bits(struct bits *b, const float *logits)
{
    for (uint32_t i = 0; i < b->vocab; i++) {
        uint32_t x;
        memcpy(&x, &logits[i], sizeof x);
        b->hash = (b->hash ^ x) * 0x100000001b3u;
        b->all_zero &= x << 1 == 0;
    }
    b->rows++;
}

static void add_main_bits(void *ctx, uint32_t position, const float *logits)
{
    (void)position;
    add_bits(ctx, logits);
}

static void add_mtp_bits(void *ctx, uint32_t position, const float *logits)
{
    (void)position;
    add_bits((struct bits *)ctx + 1, logits);
}

/* Hash of all main and MTP logits of one text. */
static uint64_t logits_bits(struct engine *e)
{
    uint32_t vocab = engine_model(e)->config.vocab_size;
    struct bits b[2] = {{0xcbf29ce484222325u, vocab, 0, true}, {1, vocab, 0, true}};
    const struct engine_rows out = {.row = add_main_bits, .mtp_row = add_mtp_bits, .ctx = b};
    int32_t ids[ROWS];
    struct error err;
    for (uint32_t i = 0; i < ROWS; i++) ids[i] = (int32_t)(rng_uniform(5, i) * vocab);
    if (engine_evaluate(e, ids, ROWS, 0, &out, &err)) fail_msg("%s", err.text);
    assert_int_equal(b[0].rows, ROWS);
    assert_int_equal(b[1].rows, ROWS - 1);
    assert_false(b[0].all_zero || b[1].all_zero);
    return b[0].hash * 31 + b[1].hash;
}

static const char *const flocks[] = {"local:1", "local:2", "local:3", "local:5", "local:7", "local:32"};
static const uint32_t ducks[] = {1, 2, 3, 5, 7, 32};

/* Experts kept as e4m3: the bits of fp9, from 8 / 9 of the bytes. */
static void check_e4m3(const char *dir, const char *flock, uint64_t right, uint64_t fp9_read)
{
    struct engine_options o = base;
    o.flock = flock;
    o.expert_format = FP9_E4M3;
    struct engine *e = compare_open(dir, &o);
    uint64_t bits = logits_bits(e), read = 0;
    for (uint32_t d = 0; d < flock_ducks(engine_flock(e)); d++) {
        struct duck_stats s;
        flock_duck_stats(engine_flock(e), d, &s);
        read += s.expert_bytes;
    }
    if (bits != right) fail_msg("%s: other bits with e4m3 than with fp9 on %s", dir, flock);
    assert_true(read > 0 && read < fp9_read);
    engine_close(e);
}

static void check_flocks(const char *dir, bool all_work)
{
    uint64_t first = 0;
    for (size_t f = 0; f < 6; f++) {
        if (REDUCED && f % 2 == 1 && f < 5) continue;
        struct engine_options o = base;
        o.flock = flocks[f];
        struct engine *e = compare_open(dir, &o);
        uint64_t bits = logits_bits(e), slices = 0, bytes = 0;
        if (f == 0) first = bits;
        if (bits != first) fail_msg("%s: other bits on %s than on one duck", dir, flocks[f]);
        struct flock *flock = engine_flock(e);
        assert_int_equal(flock_ducks(flock), ducks[f]);
        for (uint32_t d = 0; d < ducks[f]; d++) {
            struct duck_stats s;
            flock_duck_stats(flock, d, &s);
            slices += s.slices;
            bytes += s.expert_bytes;
            if (s.slices > 0) assert_true(s.expert_reads > 0 && s.expert_bytes > 0 && s.weight_bytes > 0);
            if (all_work) assert_true(s.slices > 0);
        }
        print_message("  %s %s: %lu slices, %.1f MB of experts read\n", dir, flocks[f], (unsigned long)slices,
                      (double)bytes * 1e-6);
        engine_close(e);
        if (f % 2 == 0) check_e4m3(dir, flocks[f], first, bytes);
    }
}

static void any_number_of_ducks_gives_the_same_bits_synth_2048(void **state)
{
    (void)state;
    check_flocks(SYNTH, true);
}

static void any_number_of_ducks_gives_the_same_bits_duckling(void **state)
{
    (void)state;
    check_flocks("models/duckling", true);
}

static void any_number_of_ducks_gives_the_same_bits_v32_tiny(void **state)
{
    (void)state;
    check_flocks("tests/goldens/v32-tiny", false);
}

static void threads_chunks_and_lanes_do_not_matter(void **state)
{
    (void)state;
    static const struct {
        unsigned threads;
        uint32_t chunk, lanes;
    } cases[] = {{1, 512, 4}, {2, 512, 4}, {3, 512, 1}, {1, 2, 1}, {2, 7, 2}, {2, 39, 2}};
    static const char *const dirs[] = {"models/duckling", "tests/goldens/v32-tiny", SYNTH};
    for (size_t d = 0; d < (REDUCED ? 1 : 3); d++) {
        uint64_t first = 0;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i += REDUCED ? 2 : 1) {
            struct engine_options o = base;
            o.threads = cases[i].threads;
            o.prefill_chunk = cases[i].chunk;
            o.lanes = cases[i].lanes;
            struct engine *e = compare_open(dirs[d], &o);
            uint64_t bits = logits_bits(e);
            if (i == 0) first = bits;
            if (bits != first)
                fail_msg("%s: other bits with %u threads, chunks of %u, %u lanes", dirs[d], o.threads,
                         o.prefill_chunk, o.lanes);
            engine_close(e);
        }
    }
}

/* Rounding on the wire is part of the arithmetic: it changes bits, but not with the number of ducks. */
static void rounded_wires_are_exact_too(void **state)
{
    (void)state;
    static const enum wire_dtype wires[] = {WIRE_BF16, WIRE_FP8};
    struct engine *e = compare_open(SYNTH, &base);
    uint64_t plain = logits_bits(e);
    engine_close(e);
    for (size_t w = 0; w < 2; w++) {
        uint64_t first = 0;
        for (size_t f = 0; f < 6; f += 5) {
            struct engine_options o = base;
            o.flock = flocks[f];
            o.wire_activation = wires[w];
            e = compare_open(SYNTH, &o);
            uint64_t bits = logits_bits(e);
            if (f == 0) first = bits;
            assert_true(bits == first && bits != plain);
            engine_close(e);
        }
    }
}

struct sampled {
    int32_t id[64];
    uint32_t count;
    uint64_t bits;
    uint32_t vocab;
};

static bool keep(void *ctx, const struct generated *t)
{
    struct sampled *s = ctx;
    s->id[s->count++] = t->id;
    struct bits b = {s->bits, s->vocab, 0, true};
    add_bits(&b, t->logits);
    s->bits = b.hash;
    return true;
}

/* Ids and logits of seeded sampling: MTP on or off, alone or beside others, drafts verified as one
 * job or on two lanes. */
static void sampled_text_is_the_same_however_it_is_made(void **state)
{
    (void)state;
    static const int32_t prompt[4] = {0, 6389, 2000, 6390};
    struct sampled first = {.count = 0};
    for (int mode = 0; mode < 4; mode++) {
        struct engine_options o = base;
        o.mtp = mode > 0;
        struct engine *e = compare_open("models/duckling", &o);
        e->set.verify = mode == 3 ? MTP_TWO_LANES : MTP_ONE_JOB;
        struct sampled got[3];
        struct generation *g[3];
        uint32_t n = mode >= 2 ? 3 : 1, accepted = 0;
        memset(got, 0, sizeof got);
        for (uint32_t i = 0; i < n; i++) {
            struct generation_request r = {.prompt = prompt,
                                           .prompt_count = 4,
                                           .max_tokens = SAMPLED,
                                           .ignore_eos = true,
                                           .sampling = SAMPLING_GREEDY,
                                           .on_token = keep,
                                           .ctx = &got[i]};
            r.sampling.temperature = 0.8f;
            r.sampling.seed = 11 + i;
            r.sampling.presence_penalty = 0.2f;
            got[i].vocab = engine_model(e)->config.vocab_size;
            struct error err;
            if (engine_start(e, &g[i], &r, &err)) fail_msg("%s", err.text);
        }
        while (engine_step(e)) continue;
        for (uint32_t i = 0; i < n; i++) {
            accepted += generation_result(g[i])->drafts_accepted;
            assert_int_equal(got[i].count, SAMPLED);
            generation_free(g[i]);
        }
        if (mode == 0) first = got[0];
        assert_memory_equal(got[0].id, first.id, sizeof first.id);
        assert_true(got[0].bits == first.bits);
        if (mode > 0) assert_true(accepted > 0);
        if (n > 1) assert_memory_not_equal(got[1].id, first.id, sizeof first.id);
        engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ducks_gives_the_same_bits_synth_2048),
        cmocka_unit_test(any_number_of_ducks_gives_the_same_bits_duckling),
        cmocka_unit_test(any_number_of_ducks_gives_the_same_bits_v32_tiny),
        cmocka_unit_test(threads_chunks_and_lanes_do_not_matter),
        cmocka_unit_test(rounded_wires_are_exact_too),
        cmocka_unit_test(sampled_text_is_the_same_however_it_is_made),
    };
    return cmocka_run_group_tests_name("golden-fp9", tests, NULL, NULL);
}
